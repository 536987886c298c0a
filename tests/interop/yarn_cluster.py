"""A genuine HDFS and YARN in one JVM (java/hadoop/Yarn.java). As root it runs as another user, and so do its containers."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

import psutil
from hdfs_cluster import hadoop_version, quick_jars
from servers import LIGHT_COMPILER, START_TIMEOUT_S, ServerError, resolved

from rocketcrew.cli.children import POLL_S
from rocketcrew.spark.java import find_java

OTHER: Final = 65534
"""The id of the user and the group `nobody`."""
NEEDED: Final = (
    "org.junit.jupiter:junit-jupiter-api:5.10.2", "ch.qos.reload4j:reload4j:1.2.25",
    "org.bouncycastle:bcprov-jdk18on:1.78.1", "org.bouncycastle:bcpkix-jdk18on:1.78.1",
)  # fmt: skip
"""What the mini cluster of YARN wants and does not name."""
OPTIONS: Final = ("-Xmx600m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true")


def yarn_jars() -> str:
    """The class path; resolved on first use. Raises ServerError."""
    version = hadoop_version()
    return quick_jars(
        resolved(f"hadoop-{version}-yarn", [f"org.apache.hadoop:hadoop-client-minicluster:{version}", *NEEDED])
    )


def open_to_all(path: Path) -> bool:
    """Whether every user may come there; links are followed."""
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in path.resolve().parents)


def python_for_all(folder: Path) -> Path:
    """A Python like this one that every user may start, with its packages; made below `folder` where this one is in a
    closed folder, as those of root's home are. Raises ServerError."""
    packages, checkout = Path(sysconfig.get_path("purelib")), Path(__file__)
    if not (open_to_all(packages) and open_to_all(checkout)):
        raise ServerError(f"{packages} and {checkout.parents[2]} are to be in folders that every user may enter")
    if open_to_all(Path(sys.executable)):
        return Path(sys.executable)
    home, name = folder / "python", f"python{sys.version_info.major}.{sys.version_info.minor}"
    unneeded = shutil.ignore_patterns("site-packages", "test", "idlelib", "config-*", "*.a")
    shutil.copytree(Path(sys.base_prefix) / "lib", home / "lib", ignore=unneeded, symlinks=True)
    (home / "bin").mkdir()
    shutil.copy(Path(sys.executable).resolve(), home / "bin" / name)
    links = home / "lib" / name / "site-packages"
    links.mkdir()
    (links / "packages.pth").write_text(f"import site; site.addsitedir({str(packages)!r})\n")
    starter = home / "bin" / "start"
    starter.write_text(
        f'#!/bin/sh\nexport PYTHONHOME={home} LD_LIBRARY_PATH={home / "lib"}\nexec {home / "bin" / name} "$@"\n'
    )
    starter.chmod(0o755)
    return starter


class YarnCluster:
    """It runs until `stop`. All that it has is below `folder`, which every user may look through."""

    def __init__(self) -> None:
        """Raises ServerError when it does not start."""
        self.folder = Path(tempfile.mkdtemp(prefix="rocketcrew-yarn-"))
        self.folder.chmod(0o755)
        self.other = OTHER if os.geteuid() == 0 else None
        self.conf = self.folder / "cluster" / "conf"
        self._log = self.folder / "yarn.log"
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self.python = python_for_all(self.folder)
            """For `spark.pyspark.python`: the user of the containers may start it."""
            self._start()
        except BaseException:
            self.stop()
            raise

    def _start(self) -> None:
        jars, cluster = self.folder / "jars", self.folder / "cluster"
        for folder in (jars, cluster):
            folder.mkdir()
        if self.other is not None:
            os.chown(cluster, self.other, self.other)
        for file in yarn_jars().split(":"):
            shutil.copy(file, jars)  # the user's own store may be closed to others
        source = Path(__file__).parent / "java" / "hadoop" / "Yarn.java"
        done = subprocess.run(
            ["javac", *LIGHT_COMPILER, "-nowarn", "-cp", f"{jars}/*", "-d", str(jars), str(source)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
            timeout=START_TIMEOUT_S,
        )  # fmt: skip
        if done.returncode != 0:
            raise ServerError(f"javac failed:\n{done.stdout}")
        java = find_java("", os.environ).home
        with self._log.open("wb") as out:
            self._process = subprocess.Popen(
                [f"{java}/bin/java", *OPTIONS, f"-Dtest.build.data={cluster}/test", "-cp", f"{jars}:{jars}/*", "Yarn",
                 str(cluster)],
                stdin=subprocess.PIPE, stdout=out, stderr=subprocess.STDOUT, cwd=cluster,
                env={"JAVA_HOME": str(java), "PATH": os.environ["PATH"], "HOME": str(cluster)},
                start_new_session=True, user=self.other, group=self.other,
                extra_groups=None if self.other is None else [],
            )  # fmt: skip
        ready = self.conf / "yarn-site.xml"
        deadline = time.monotonic() + 2 * START_TIMEOUT_S
        while not ready.exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise ServerError(f"YARN did not start:\n{self._log.read_text()[-4000:]}")
            time.sleep(POLL_S)

    def url(self, table: str) -> str:
        """A table on its HDFS."""
        told = ElementTree.parse(self.conf / "core-site.xml").iter("property")
        values = {one.findtext("name"): one.findtext("value") for one in told}
        return f"{values['fs.defaultFS']}/{table}"

    def share(self, folder: Path) -> None:
        """Make it, for us and the user of the containers to write."""
        folder.mkdir()
        if self.other is not None:
            os.chown(folder, -1, self.other)
            folder.chmod(0o2770)

    def stop(self) -> None:
        """End it: its stdin is its life. Containers that outlive their NodeManager are known by our folder's name."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if any(str(self.folder) in word for word in process.cmdline()):
                    process.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
