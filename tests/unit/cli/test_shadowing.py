"""Files beside a handler that would be imported in place of modules that the program needs."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from rocketcrew.cli.running import reread_here
from rocketcrew.cli.surroundings import check_nothing_shadows
from rocketcrew.conf.needed_modules import OF_PYTHON, PACKAGES, WHERE_THERE, in_the_way
from rocketcrew.conf.settings import load
from rocketcrew.remoting.errors import UsageError

ROOT = Path(__file__).parents[3]


def test_modules_of_python_and_of_what_is_installed_are_in_the_way_and_no_others() -> None:
    names = ["queue", "handler", "spark", "json", "test", "numpy", "rocketcrew", "orders", "conf", "workers"]
    assert in_the_way(names) == ["json", "numpy", "queue", "rocketcrew"]


def test_modules_of_python_that_nothing_imports_are_let_be() -> None:
    names = [
        "wave",
        "sched",
        "trace",
        "mailbox",
        "imaplib",
        "shelve",
        "turtle",
        "calendar",
        "xmlrpc",
        "this",
        "graphlib",
    ]
    assert in_the_way(names) == ["calendar"]


IMPORTS = """
import importlib, json, pkgutil, sys
sys.modules["IPython"] = None  # is there for the tests of notebooks, and pyspark looks for it
before = set(sys.modules)
import rocketcrew
left = ("rocketcrew.__main__", "rocketcrew.testing", "rocketcrew.cli.chaos")
found = [one.name for one in pkgutil.walk_packages(rocketcrew.__path__, "rocketcrew.") if not one.name.startswith(left)]
found += ["pyarrow.parquet", "pyarrow.compute", "deltalake", "obstore", "duckdb", "msgspec", "opentelemetry.trace", "pandas"]
found += ["pyiceberg.catalog.sql", "pyiceberg.catalog.rest", "pyiceberg.io.pyarrow"]
found += ["pyspark.sql", "pyspark.sql.connect.session", "pyspark.worker", "encodings.idna", "click._termui_impl"]
found += ["sentry_sdk"]
for name in found:
    try:
        importlib.import_module(name)
    except ImportError:
        pass  # of an extra that is not installed
got = {name.partition(".")[0] for name in set(sys.modules) - before}
got = {name for name in got if not name.endswith("__mypyc")}  # of a package that mypyc compiled: a name of digits
print(json.dumps([name for name in got if sys.modules[name].__spec__ is not None]))
"""


def test_all_that_is_imported_is_known() -> None:
    done = subprocess.run([sys.executable, "-Ic", IMPORTS], capture_output=True, text=True, check=True)
    found = {name for name in json.loads(done.stdout.splitlines()[-1]) if not name.startswith("_")}
    assert {"queue", "asyncio", "pyarrow", "structlog", "rocketcrew"} <= found
    assert found & sys.stdlib_module_names <= OF_PYTHON
    assert found - sys.stdlib_module_names <= PACKAGES | WHERE_THERE
    assert not OF_PYTHON & (PACKAGES | WHERE_THERE)


def test_all_that_the_package_depends_on_is_known() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"]]
    lines += [line for extra, more in project["optional-dependencies"].items() if extra != "dev" for line in more]
    wanted = {canonicalize_name(Requirement(line).name) for line in lines}
    tops = {
        top for top, found in packages_distributions().items() if wanted & {canonicalize_name(one) for one in found}
    }
    assert len(tops) > 15
    assert {top for top in tops if top.isidentifier() and not top.startswith("_")} <= PACKAGES


@pytest.mark.parametrize(
    "kind",
    ["queue.py", "queue/__init__.py", "numpy.py", "rocketcrew.py", "sys.py", "typing_extensions.py", "colorama.py"],
)
def test_the_file_and_the_remedy_are_named(tmp_path: Path, kind: str) -> None:
    (tmp_path / kind).parent.mkdir(exist_ok=True)
    (tmp_path / kind).write_text("value = 1\n")
    (tmp_path / "handler.py").write_text("")
    name = kind.partition("/")[0].removesuffix(".py")
    with pytest.raises(UsageError, match=f"hides the module {name} ") as refused:
        check_nothing_shadows(tmp_path, [str(tmp_path), "", *sys.path])
    assert str(tmp_path / kind).removesuffix("/__init__.py") in str(refused.value)
    assert "Rename it" in str(refused.value)


def test_what_hides_nothing_is_let_be(tmp_path: Path) -> None:
    for name in ("handler.py", "test.py", "spark.py", "__init__.py"):
        (tmp_path / name).write_text("")
    (tmp_path / "json").mkdir()  # no package: the module of Python is found behind it
    check_nothing_shadows(tmp_path, sys.path)


@pytest.mark.parametrize("name", ["typing_extensions", "colorama", "duckdb", "winreg"])
def test_a_needed_name_is_refused_even_where_nothing_else_has_it(tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.py").write_text("")
    with pytest.raises(UsageError, match=f"hides the module {name} "):
        check_nothing_shadows(tmp_path, [str(tmp_path), str(tmp_path / "elsewhere")])


@pytest.mark.parametrize("sign", ["rocketcrew", "shop-1.0.dist-info"])
def test_the_folder_that_has_the_modules_hides_nothing(tmp_path: Path, sign: str) -> None:
    (tmp_path / sign).mkdir()
    (tmp_path / sign / "__init__.py").write_text("")
    (tmp_path / "duckdb.py").write_text("")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    check_nothing_shadows(tmp_path, [str(tmp_path), str(elsewhere)])
    (elsewhere / "duckdb.py").write_text("")
    with pytest.raises(UsageError, match="duckdb"):
        check_nothing_shadows(tmp_path, [str(tmp_path), str(elsewhere)])


def test_a_reload_is_refused_for_a_module_that_has_appeared(tmp_path: Path) -> None:
    settings, path = load({}, {}, None), [str(tmp_path), *sys.path]
    assert reread_here(lambda: settings, tmp_path, path) is settings
    (tmp_path / "queue.py").write_text("")
    with pytest.raises(UsageError, match="hides the module queue "):
        reread_here(lambda: settings, tmp_path, path)


def called(folder: Path, words: list[str]) -> subprocess.CompletedProcess[str]:
    start = "from rocketcrew.__main__ import main; main()"
    return subprocess.run(
        [sys.executable, "-Ic", start, *words], cwd=folder, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("name", ["queue", "json", "numpy", "rocketcrew"])
def test_run_refuses_in_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.py").write_text("value = 1\n")
    (tmp_path / "handler.py").write_text("def handle(message): ...\n")
    words = ["run", "handler:handle", "-t", "t", "-g", "g", "-n", "127.0.0.1:1"]
    found = called(tmp_path, words)
    assert found.returncode == 2, found.stderr
    assert f"{name}.py hides the module {name} " in found.stderr
    assert "Traceback" not in found.stderr


def test_the_checkups_say_what_run_would(tmp_path: Path) -> None:
    (tmp_path / "queue.py").write_text("value = 1\n")
    (tmp_path / "handler.py").write_text("def handle(message): ...\n")
    where = ["-n", "127.0.0.1:1"]
    check = called(tmp_path, ["config", "check", "--handler", "handler:handle", "--set", "consumer.topics=t", *where])
    assert check.returncode == 4, check.stderr
    assert "queue.py hides the module queue " in check.stderr
    doctor = called(tmp_path, ["doctor", "handler:handle", "-t", "t", "-g", "g", "--json", *where])
    assert doctor.returncode == 1, doctor.stderr
    (fault,) = [one for one in json.loads(doctor.stdout)["checks"] if one["check"] == "handler"]
    assert fault["level"] == "fault"
    assert "queue.py hides the module queue " in fault["found"]


@pytest.mark.parametrize("name", ["struct", "logging", "queue", "pyarrow", "json", "math", "select"])
def test_a_script_and_the_package_as_a_module_name_the_file_that_hides_a_module(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("x = 1\n")
    (tmp_path / "script.py").write_text("from rocketcrew import Crew\n")
    (tmp_path / "kit.py").write_text("from rocketcrew.testing import run\n")
    (tmp_path / "shop.py").write_text("def count(message): pass\n")
    member = ["-m", "rocketcrew", "run", "shop", "-t", "t", "-g", "g", "-n", "127.0.0.1:1"]
    for words, code in ((["script.py"], 1), (["kit.py"], 1), (member, 2)):
        ran = subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, check=False)
        last = ran.stderr.strip().splitlines()[-1]
        assert ran.returncode == code, ran.stderr
        assert f"{tmp_path / name} hides the module {name}" in last, ran.stderr
        assert "Rename it" in last
        assert "a fault in rocketcrew" not in ran.stderr


def test_a_script_that_hides_nothing_that_is_needed_is_let_be(tmp_path: Path) -> None:
    (tmp_path / "orders.py").write_text("x = 1\n")
    (tmp_path / "script.py").write_text("import orders, rocketcrew\nrocketcrew.Nothing\n")
    ran = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "has no attribute 'Nothing'" in ran.stderr.splitlines()[-1]


@pytest.mark.parametrize("name", ["conftest", "shop"])
def test_a_file_that_is_not_in_the_way_is_not_blamed_for_what_is_missing(name: str, tmp_path: Path) -> None:
    for folder in ("app", "lib"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{name}.py").write_text("x = 1\n")
    (tmp_path / "app/script.py").write_text(
        f"import sys, {name}\nsys.modules['pyarrow'] = None\nsys.path.append({str(tmp_path / 'lib')!r})\n"
        "from rocketcrew import read\n"
    )
    ran = subprocess.run([sys.executable, "app/script.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "hides the module" not in ran.stderr
    assert "import of pyarrow halted" in ran.stderr.splitlines()[-1]


def test_what_failed_is_told_beside_the_file_that_may_be_why(tmp_path: Path) -> None:
    (tmp_path / "calendar.py").write_text("x = 1\n")
    (tmp_path / "script.py").write_text(
        "import sys, calendar\nsys.modules['pyarrow'] = None\nfrom rocketcrew import read\n"
    )
    ran = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "calendar.py hides the module calendar" in ran.stderr.splitlines()[-1]
    assert "import of pyarrow halted" in ran.stderr.splitlines()[-1]
