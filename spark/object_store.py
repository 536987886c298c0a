"""Tables in a bucket of an S3 server: an object's key used like a path, and the proof that commits can be exclusive there.

A put is whole or not at all, and whoever lists or gets afterwards sees it (S3 since 2020): so a file that is written by one
put needs no draft, no rename and no fsync. What decides who has a batch's number is one conditional put, `If-None-Match: *`,
which delta-rs makes for each entry of the Delta log. A server that ignores that header would let two loaders have the same
number, so it is asked for a proof before anything is read or written (`check_conditional_puts`).

Region, endpoint and the like come from `spark.options` or from the environment (AWS_REGION, AWS_ENDPOINT_URL,
AWS_ALLOW_HTTP); keys from the environment or the machine's role alone, so that no setting has a secret in it.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections.abc import Generator, Iterator, Mapping
from datetime import timedelta
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..conf.formats import on_hdfs, on_s3
from ..durable.files import make_folders, spark_path, sync_path
from ..remoting.errors import UsageError
from .errors import LoaderError
from .hdfs import HdfsPath
from .remote_path import RemotePath, RemoteStat

if TYPE_CHECKING:
    from obstore.store import ObjectStore

OPTIONS: Final[Mapping[str, str]] = {
    "region": "AWS_REGION",
    "endpoint": "AWS_ENDPOINT_URL",
    "allow_http": "AWS_ALLOW_HTTP",
    "virtual_hosted_style_request": "AWS_VIRTUAL_HOSTED_STYLE_REQUEST",
}
"""What `spark.options` may name for a table in a bucket, and the variable of the environment that says the same."""
PROBE: Final = "probe-"
STATE_DIR: Final = "_rocketcrew"
RETRIES_MAX: Final = 3
RETRY_S: Final = 10
"""After a restart a loader tries again anyway; a supervisor asks at its start, and must not stand still for minutes."""
CONNECT_S: Final = 5
REQUEST_S: Final = 30
BOUNDS: Final[Mapping[str, str]] = {
    "max_retries": str(RETRIES_MAX),
    "retry_timeout": f"{RETRY_S}s",
    "connect_timeout": f"{CONNECT_S}s",
    "timeout": f"{REQUEST_S}s",
}
"""The same for delta-rs, whose own are ten tries in three minutes."""
SAID_MAX: Final = 300
"""Characters of what a server says that are passed on."""


def library() -> Any:
    """obstore, whose objects are those of delta-rs. Raises UsageError when it is not installed."""
    try:
        import obstore
    except ImportError as error:
        raise UsageError(f"tables on S3 need the obstore package ({error}): pip install 'rocketcrew[s3]'") from None
    return obstore


class Bucket:
    """The part of a bucket that a table has. Connects when it is first asked. `options` as `OPTIONS` names them."""

    def __init__(self, url: str, options: Mapping[str, str], store: ObjectStore | None = None) -> None:
        """`store`: another one than S3's, for tests."""
        self.url = url.replace("s3a://", "s3://", 1).rstrip("/")
        self.options = options
        self._store = store

    @property
    def store(self) -> ObjectStore:
        """The connection. Raises UsageError when the package is missing, or an option is not understood."""
        if self._store is None:
            self._store = self._connected()
        return self._store

    def _connected(self) -> ObjectStore:
        library()
        from obstore.exceptions import BaseError
        from obstore.store import S3Store

        allow_http = self.options.get("allow_http", os.environ.get("AWS_ALLOW_HTTP", "false"))
        config: Any = {name: value for name, value in self.options.items() if name != "allow_http"}
        config["conditional_put"] = "etag"
        try:
            return S3Store.from_url(
                self.url,
                config=config,
                client_options={
                    "allow_http": allow_http.lower() == "true",
                    "connect_timeout": timedelta(seconds=CONNECT_S),
                    "timeout": timedelta(seconds=REQUEST_S),
                },
                retry_config={"max_retries": RETRIES_MAX, "retry_timeout": timedelta(seconds=RETRY_S)},
            )  # fmt: skip
        except (BaseError, ValueError) as error:
            raise UsageError(f"{self.url} can't be opened: {short(error)}") from None


class ObjectPath(RemotePath[Bucket]):
    """An object of a bucket, or all objects with this prefix, used like a `pathlib.Path`: what of it tables need.

    Methods raise FileNotFoundError where there is no object, and LoaderError where the server can't be asked or refuses.
    """

    __slots__ = ()

    @property
    def storage_options(self) -> dict[str, str]:
        """For delta-rs, with the bounds of `Bucket`. It must make conditional puts, whatever the environment says."""
        named = {OPTIONS[name]: value for name, value in self.root.options.items()}
        return {**named, **BOUNDS, "AWS_CONDITIONAL_PUT": "etag"}

    def is_dir(self) -> bool:
        """Whether any object has this prefix."""
        with _translated(self):
            return any(True for _ in library().list(self.root.store, self._key or None, chunk_size=1))

    def exists(self) -> bool:
        """Whether there is such an object, or any with this prefix."""
        try:
            self.stat()
        except FileNotFoundError:
            return self.is_dir()
        return True

    def stat(self) -> RemoteStat:
        """Size and age of the object."""
        if not self._key:
            raise FileNotFoundError(str(self))
        with _translated(self):
            found = library().head(self.root.store, self._key)
        put_s = found["last_modified"].timestamp()
        return RemoteStat(found["size"], put_s, put_s)

    def read_bytes(self) -> bytes:
        """The whole object."""
        return bytes(self.read_buffer())

    def read_buffer(self) -> Any:
        """The whole object, as something with Python's buffer protocol, which is not copied."""
        with _translated(self):
            return library().get(self.root.store, self._key).bytes()

    def write_bytes(self, data: bytes) -> None:
        """Put the object, replacing what is there. Whole or not at all."""
        with _translated(self):
            library().put(self.root.store, self._key, data, use_multipart=False)

    def create(self, data: bytes) -> None:
        """Put the object if there is none. Raises FileExistsError."""
        with _translated(self):
            library().put(self.root.store, self._key, data, mode="create", use_multipart=False)

    def unlink(self, missing_ok: bool = True) -> None:
        """Delete the object. A server does not say whether there was one."""
        with _translated(self):
            library().delete(self.root.store, self._key)

    def iterdir(self) -> Iterator[ObjectPath]:
        """What is directly below: objects, and prefixes of more than one segment."""
        with _translated(self):
            found = library().list_with_delimiter(self.root.store, self._key or None)
        keys = [*found["common_prefixes"], *(one["path"] for one in found["objects"])]
        return iter([ObjectPath(self.root, key) for key in keys])

    def glob(self, pattern: str) -> Iterator[ObjectPath]:
        """What is directly below with such a name."""
        return (path for path in self.iterdir() if fnmatchcase(path.name, pattern))


PROBES_MAX = 3
KEYS_REMEDY = "Keys come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or from the role of the machine"
METADATA: Final = "http://169.254."
"""Where clouds tell a machine the keys of its role. It is asked where the environment has none."""
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
Place = Path | ObjectPath | HdfsPath
"""Where a table is, or something in it: on a disk, in a bucket, or on HDFS."""


@contextlib.contextmanager
def _translated(path: ObjectPath) -> Generator[None]:
    """Turns what obstore raises into what callers know."""
    library()
    from obstore.exceptions import AlreadyExistsError, BaseError, NotSupportedError

    try:
        yield
    except AlreadyExistsError:
        raise FileExistsError(str(path)) from None
    except NotSupportedError as error:
        raise UsageError(f"{path}: the S3 server does not know that request: {short(error)}") from None
    except BaseError as error:
        raise not_asked(path, error) from None


def not_asked(path: ObjectPath, error: Exception) -> LoaderError:
    """The error for what obstore raised; where it is about keys, with where they come from."""
    from obstore.exceptions import PermissionDeniedError, UnauthenticatedError

    about_keys = isinstance(error, PermissionDeniedError | UnauthenticatedError) or METADATA in str(error)
    remedy = f". {KEYS_REMEDY}" if about_keys else ""
    return LoaderError(f"{path}: the S3 server can't be asked: {short(error)}{remedy}")


def short(error: Exception) -> str:
    """What it says in one line, without the colours, and without the XML and the Rust that follow."""
    said = _COLOURS.sub("", str(error)).partition("<?xml")[0].partition("Debug source")[0]
    return ": ".join(filter(None, (line.strip(" ↳:.") for line in said.splitlines())))[:SAID_MAX]


def place_of(target: str, options: Mapping[str, str]) -> Place:
    """Where `spark.target` is. Nothing is asked yet.

    Raises UsageError for an option that a bucket does not take, and for a table on HDFS: what looks there has a session.
    """
    if on_hdfs(target):
        raise UsageError(f"{target} is on HDFS, which is read through the JVM of a Spark session only")
    if not on_s3(target):
        return Path(target)
    for name in options:
        if any(word in name.lower() for word in ("key", "secret", "token", "password")):
            raise UsageError(
                f"spark.options has {name}: keys of S3 do not go into settings, but into the environment"
                " (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN)"
            )
        if name not in OPTIONS:
            raise UsageError(f"spark.options has {name!r}, and a table on S3 takes {', '.join(OPTIONS)}")
    refuse_other_endpoint(options, os.environ)
    return ObjectPath(Bucket(target, options))


def refuse_other_endpoint(options: Mapping[str, str], environ: Mapping[str, str]) -> None:
    """Raise UsageError when a variable that wins over the option names another server: rows would go there."""
    named, wins = options.get("endpoint"), environ.get("AWS_ENDPOINT_URL_S3")
    if named and wins and named.rstrip("/") != wins.rstrip("/"):
        raise UsageError(
            f"spark.options.endpoint is {named}, and AWS_ENDPOINT_URL_S3 in the environment, which wins, is {wins}: take one"
            " of them away, or give both the same server"
        )


def in_spark(place: Place) -> str:
    """The place as Spark takes it."""
    return spark_path(place) if isinstance(place, Path) else str(place)


def absolute(target: str) -> str:
    """`spark.target` of a folder format as every process knows it, whatever folder it is started in."""
    if on_hdfs(target):
        return target.rstrip("/")
    return str(place_of(target, {})) if on_s3(target) else str(Path(target).absolute())


def write_whole(path: Place, data: bytes, *, as_old_as: float | None = None) -> None:
    """Write a file that is whole or not there, and survives a power failure. `as_old_as`: seconds since 1970.

    An object is as old as its put. Raises OSError; LoaderError where a server can't be asked.
    """
    if isinstance(path, ObjectPath):
        path.write_bytes(data)
        return
    if isinstance(path, HdfsPath):
        path.parent.make_folders()
        path.write_whole(data, as_old_as)
        return
    make_folders(path.parent)
    # Not by the process's id: in containers on two hosts that share the file system it may be one and the same.
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")
    draft.write_bytes(data)
    if as_old_as is not None:
        os.utime(draft, (as_old_as, as_old_as))
    sync_path(draft)
    draft.replace(path)
    sync_path(path.parent)


def check_conditional_puts(place: Place) -> None:
    """Raise UsageError unless the S3 server of `place` refuses to put an object that is there already, when asked to.

    A first put that is refused proves nothing, as its name is new: another name is tried, PROBES_MAX in all.
    """
    if not isinstance(place, ObjectPath):
        return
    for _ in range(PROBES_MAX):
        probe = place / STATE_DIR / f"{PROBE}{secrets.token_hex(8)}"
        try:
            probe.create(b"first")
        except FileExistsError:
            continue
        except FileNotFoundError:
            raise UsageError(
                f"{place}: there is no such bucket: make it, or name another one in spark.target"
            ) from None
        if _is_kept(probe):
            return
        raise UsageError(
            f"the S3 server of {place} ignores If-None-Match: of two puts of one new object it refused none. Two loaders"
            " could commit the same batch there, and rows would be lost or doubled. Use a server with conditional writes (AWS"
            " S3 since 2024, MinIO), or a folder of this host"
        )
    raise UsageError(
        f"the S3 server of {place} refused {PROBES_MAX} puts of new objects as if they were there already, so nothing shows"
        " that it keeps If-None-Match. Look at what answers at that address, or use a folder of this host"
    )


def _is_kept(probe: ObjectPath) -> bool:
    """Whether a second put is refused and the first one stands; the object is deleted."""
    try:
        try:
            probe.create(b"second")
        except FileExistsError:
            return probe.read_bytes() == b"first"
        return False
    finally:
        probe.unlink()
