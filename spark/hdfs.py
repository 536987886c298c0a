"""Tables on HDFS: a file there used like a path, through the JVM of a Spark session, which has Hadoop's own client.

The commit is `FileContext.rename` with `Options.Rename.NONE`, which the NameNode refuses where the new name is there
already. `FileSystem.rename` would not do: onto a folder that is there it moves *into* it, so that of two loaders both are
told that they have the batch's number. What we write ourselves is hsynced, and its last block synced when it is closed;
the NameNode answers no rename before it is in its own log. Data files are Spark's: on the disks of their DataNodes when HDFS
has them there (`dfs.datanode.synconclose`).

Names, keys and high availability are those of Hadoop's configuration: HADOOP_CONF_DIR, or `spark.hadoop.*` in `spark.conf`.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Generator, Iterator
from fnmatch import fnmatchcase
from typing import Any, Final

from ..conf.formats import not_a_table
from ..remoting.errors import UsageError
from .errors import LoaderError, SparkDiedError
from .remote_path import RemotePath, RemoteStat

SAID_MAX: Final = 300
"""Characters of what Hadoop says that are passed on."""
_STAYS: Final = "Nothing was lost: the segments stay"
_NOT_THERE: Final = frozenset({"java.io.FileNotFoundException"})
_THERE: Final = frozenset({"org.apache.hadoop.fs.FileAlreadyExistsException"})
_SAFE_MODE: Final = "SafeModeException"
_REFUSED: Final = "AccessControlException"


class Hdfs:
    """The HDFS that `url` is on. Spark is started when it is first asked. One thread asks at a time."""

    def __init__(self, url: str, session: Callable[[], Any]) -> None:
        """`session` gives the SparkSession, whose JVM does the asking. It may start one, and raise what that raises."""
        self.url = url.rstrip("/")
        self._session = session
        self._jvm: Any = None
        self._gateway: Any = None
        self._conf: Any = None
        self._files: Any = None

    def path(self, text: str) -> Any:
        """Hadoop's path of that name."""
        return self.jvm.org.apache.hadoop.fs.Path(text)

    @property
    def jvm(self) -> Any:
        """The JVM's classes."""
        if self._files is None:
            self._open()
        return self._jvm

    @property
    def files(self) -> Any:
        """Hadoop's `FileContext`. Raises UsageError, LoaderError."""
        if self._files is None:
            self._open()
        return self._files

    def _open(self) -> None:
        spark = self._session()
        if not hasattr(spark, "_jvm"):
            raise UsageError(
                f"{self.url} is on HDFS, which is asked through the JVM of the Spark session, and a session of Spark Connect"
                " has none here: use another master than sc://"
            )
        context: Any = spark.sparkContext
        self._jvm, self._gateway = context._jvm, context._gateway
        with asked(self.url):
            self._conf = context._jsc.hadoopConfiguration()
            place = self._jvm.java.net.URI.create(self.url)
            self._files = self._jvm.org.apache.hadoop.fs.FileContext.getFileContext(place, self._conf)

    def write(self, path: HdfsPath, data: bytes) -> None:
        """Write the file and sync it, replacing what is there. Others may see a part of it meanwhile."""
        flags = self.jvm.org.apache.hadoop.fs.CreateFlag
        how = self.jvm.java.util.EnumSet.of(flags.CREATE, flags.OVERWRITE, flags.SYNC_BLOCK)
        options = self._gateway.new_array(getattr(self.jvm.org.apache.hadoop.fs, "Options$CreateOpts"), 0)
        stream = self.files.create(self.path(str(path)), how, options)
        try:
            stream.write(data)
            stream.hsync()
        finally:
            stream.close()

    def rename(self, old: HdfsPath, new: HdfsPath, *, replacing: bool) -> None:
        """Rename in one step, which either happens or does not. Raises FileExistsError unless `replacing`."""
        kinds = getattr(self.jvm.org.apache.hadoop.fs, "Options$Rename")
        options = self._gateway.new_array(kinds, 1)
        options[0] = kinds.OVERWRITE if replacing else kinds.NONE
        with asked(old):
            try:
                self.files.rename(self.path(str(old)), self.path(str(new)), options)
            except Exception as error:
                if java_kind(error) in _THERE:
                    raise FileExistsError(str(new)) from None
                raise

    def rows(self, file: HdfsPath) -> int:
        """How many rows the Parquet file has, by its footer."""
        with asked(file):
            hadoop = self.jvm.org.apache.parquet.hadoop
            reader = hadoop.ParquetFileReader.open(
                hadoop.util.HadoopInputFile.fromPath(self.path(str(file)), self._conf)
            )
            try:
                return int(reader.getRecordCount())
            finally:
                reader.close()


class HdfsPath(RemotePath[Hdfs]):
    """A file or folder on HDFS, used like a `pathlib.Path`: what of it tables need.

    Methods raise FileNotFoundError where there is none, SparkDiedError without the JVM, LoaderError for all else.
    """

    __slots__ = ()

    def _status(self) -> Any:
        with asked(self):
            return self.root.files.getFileStatus(self.root.path(str(self)))

    def is_dir(self) -> bool:
        """Whether it is a folder."""
        try:
            return bool(self._status().isDirectory())
        except FileNotFoundError:
            return False

    def exists(self) -> bool:
        """Whether it is there."""
        try:
            self._status()
        except FileNotFoundError:
            return False
        return True

    def stat(self) -> RemoteStat:
        """Size and age."""
        status = self._status()
        changed_s = int(status.getModificationTime()) / 1000
        return RemoteStat(int(status.getLen()), changed_s, changed_s)

    def read_bytes(self) -> bytes:
        """The whole file."""
        with asked(self):
            stream = self.root.files.open(self.root.path(str(self)))
            try:
                return bytes(stream.readAllBytes())
            finally:
                stream.close()

    def read_buffer(self) -> bytes:
        """As `read_bytes`."""
        return self.read_bytes()

    def write_bytes(self, data: bytes) -> None:
        """Write and sync the file, replacing what is there."""
        with asked(self):
            self.root.write(self, data)

    def write_whole(self, data: bytes, as_old_as: float | None = None) -> None:
        """Write the file so that it is whole or not there. `as_old_as`: seconds since 1970."""
        draft = self.parent / f".{self.name}.{secrets.token_hex(8)}.new"
        draft.write_bytes(data)
        if as_old_as is not None:
            with asked(draft):
                self.root.files.setTimes(self.root.path(str(draft)), int(as_old_as * 1000), -1)
        self.root.rename(draft, self, replacing=True)

    def make_folders(self) -> None:
        """Make the folder, and those above it."""
        with asked(self):
            permission = self.root.jvm.org.apache.hadoop.fs.permission.FsPermission.getDirDefault()
            self.root.files.mkdir(self.root.path(str(self)), permission, True)

    def unlink(self, missing_ok: bool = True) -> None:
        """Delete the file."""
        self._delete(whole=False, missing_ok=missing_ok)

    def remove_tree(self) -> None:
        """Delete the folder and all in it; missing is fine. It is one step for everyone who looks."""
        self._delete(whole=True, missing_ok=True)

    def _delete(self, *, whole: bool, missing_ok: bool) -> None:
        try:
            with asked(self):
                self.root.files.delete(self.root.path(str(self)), whole)
        except FileNotFoundError:
            if not missing_ok:
                raise

    def iterdir(self) -> Iterator[HdfsPath]:
        """What is directly below."""
        return iter([path for path, _ in self._below()])

    def _below(self) -> list[tuple[HdfsPath, bool]]:
        """What is directly below, each with whether it is a folder."""
        with asked(self):
            found = self.root.files.util().listStatus(self.root.path(str(self)))
            return [(self / str(one.getPath().getName()), bool(one.isDirectory())) for one in found]

    def glob(self, pattern: str) -> Iterator[HdfsPath]:
        """What is directly below with such a name."""
        return (path for path in self.iterdir() if fnmatchcase(path.name, pattern))

    def data_files(self) -> Iterator[HdfsPath]:
        """The files with rows in this folder and in those of partitions."""
        for path, is_folder in self._below():
            if path.name.startswith(("_", ".")):
                continue
            if is_folder:
                yield from path.data_files()
            elif path.name.endswith(".parquet"):
                yield path


def hdfs_table(target: str, spark: Any) -> HdfsPath:
    """The table at `target`, asked through this session. Raises UsageError for what is no table on HDFS."""
    wrong = not_a_table(target, "parquet")
    if wrong:
        raise UsageError(f"target {target!r} {wrong}")
    return HdfsPath(Hdfs(target, lambda: spark))


@contextlib.contextmanager
def asked(what: object) -> Generator[None]:
    """Turns what py4j and Hadoop raise into what callers know; `what` is the path that is asked for."""
    from py4j.protocol import Py4JError

    try:
        yield
    except java_errors() as error:
        kind, said = java_kind(error), java_said(error)
        if kind in _NOT_THERE:
            raise FileNotFoundError(str(what)) from None
        raise LoaderError(f"{what}: {_explained(kind, said)}. {_STAYS}") from None
    except (Py4JError, ConnectionError) as error:
        raise jvm_gone(f"{what} was asked for", error) from None


def jvm_gone(doing: str, error: Exception) -> SparkDiedError:
    """What to raise when py4j has no answer."""
    return SparkDiedError(
        f"Spark's JVM is gone, or does not answer, while {doing} ({str(error)[:SAID_MAX]}). The loader has to be started"
        " anew; the segments stay"
    )


def _explained(kind: str, said: str) -> str:
    if _SAFE_MODE in kind or "in safe mode" in said:
        return (
            f"the NameNode is in safe mode and takes no changes: wait until it leaves it, or see hdfs dfsadmin -safemode get"
            f" ({said})"
        )
    if _REFUSED in kind:
        return f"HDFS refuses it: {said}. Spark's user must be allowed to read and write the table"
    return f"HDFS can't be asked or fails: {said}"


def java_errors() -> tuple[type[Exception], ...]:
    """What a call of Java raises for what was thrown there. Of some classes, IllegalArgumentException and
    UnsupportedOperationException among them, pyspark makes errors of its own, which are no longer py4j's."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors.exceptions.captured import CapturedException

    return Py4JJavaError, CapturedException


def _thrown(error: Exception) -> Any:
    """What was thrown in Java; None for what is not Java's."""
    thrown = getattr(error, "java_exception", None)
    return getattr(error, "_origin", None) if thrown is None else thrown


def java_kind(error: Exception) -> str:
    """The class of what was thrown in Java, "" for what is not Java's; of an answer by a server what the server threw."""
    thrown = _thrown(error)
    if thrown is None:
        return ""
    kind = str(thrown.getClass().getName())
    return str(thrown.getClassName()) if kind == "org.apache.hadoop.ipc.RemoteException" else kind


def java_said(error: Any) -> str:
    """What it says, in one line and without the advice to look into Hadoop's wiki."""
    thrown = _thrown(error)
    text = str(error) if thrown is None else str(thrown.getMessage() or java_kind(error))
    said = text.partition("; For more details see")[0]
    return " ".join(said.split())[:SAID_MAX]
