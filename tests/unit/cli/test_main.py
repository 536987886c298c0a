from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import click
import pytest

from rocketcrew.cli.main import COMMANDS, rocketcrew, run


class Shell:
    """Runs commands in one folder, with an environment of its own."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.env: dict[str, str] = {}
        self._capsys = capsys

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        """Exit code, stdout, stderr."""
        code = run(arguments, self.env, self.folder)
        out, err = self._capsys.readouterr()
        return code, out, err

    def write(self, name: str, text: str) -> str:
        file = self.folder / name
        file.write_text(text)
        return str(file)


@pytest.fixture
def shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(tmp_path, capsys)


def every_command() -> list[tuple[str, click.Command]]:
    found: list[tuple[str, click.Command]] = []
    context = click.Context(rocketcrew)
    for name in COMMANDS:
        command = rocketcrew.get_command(context, name)
        assert command is not None
        found.append((name, command))
        if isinstance(command, click.Group):
            found += [(f"{name} {sub}", command.commands[sub]) for sub in command.commands]
    return found


def test_help_lists_every_command_and_the_exit_codes(shell: Shell) -> None:
    code, out, _ = shell("--help")
    assert code == 0
    words = " ".join(out.split())  # long lines are wrapped
    assert all(f"{name} {line}" in words for name, line in COMMANDS.items())
    assert "Exit codes: 0 fine, 1 failure, 2 usage" in out


@pytest.mark.parametrize(("name", "command"), every_command())
def test_every_command_and_option_is_explained(name: str, command: click.Command) -> None:
    assert command.help
    assert len(command.help) > 60, name
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{name} {parameter.opts}"


def test_version(shell: Shell) -> None:
    code, out, _ = shell("--version")
    assert code == 0
    assert out.startswith("rocketcrew 0.")


def test_a_mistyped_command_is_a_usage_error(shell: Shell) -> None:
    code, _, err = shell("confg")
    assert code == 2
    assert "No such command 'confg'" in err


def test_help_imports_nothing_heavy() -> None:
    look = (
        "import sys, pathlib; from rocketcrew.cli.main import run; run(['--help'], {}, pathlib.Path());"
        "heavy = {'pyarrow', 'pyspark', 'asyncio', 'structlog', 'rocketcrew.client'};"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr.strip() == "[]"


def test_config_check_tells_where_settings_come_from(shell: Shell) -> None:
    file = shell.write("rocketcrew.toml", '[consumer]\ngroup = "g"\n')
    shell.env["ROCKETCREW_WORKERS_COUNT"] = "2"
    code, out, err = shell("config", "check", "--set", "memory.pulled_bytes_mib=8")
    assert (code, err) == (0, "")
    assert "1 from environment" in out
    assert f"1 from file {file}" in out
    assert "1 from flag" in out


@pytest.mark.parametrize(
    ("link", "said"),
    [
        (None, "cannot be read: Is a directory"),
        ("rocketcrew.toml", "symbolic links"),
        ("gone", "is a link to what does not"),
    ],
)
def test_a_file_of_this_folder_that_cannot_be_read_is_not_left_out(shell: Shell, link: str | None, said: str) -> None:
    file = shell.folder / "rocketcrew.toml"
    if link is None:  # what Docker makes of a mount whose source is not there
        file.mkdir()
    else:
        file.symlink_to(link)
    code, out, err = shell("config", "check")
    assert (code, out) == (2, "")
    assert f"configuration file {file} " in err
    assert said in err


def test_config_check_fails_with_every_problem(shell: Shell) -> None:
    arguments = ("config", "check", "--set", "workers.count=many", "--set", "worker.count=1", "-n", "nowhere")
    code, out, err = shell(*arguments)
    assert (code, out) == (2, "")
    assert "3 problems" in err
    assert 'workers.count = "many" (from flag --set workers.count)' in err
    assert "(from flag --name-servers)" in err
    code, out, _ = shell(*arguments, "--json")
    assert code == 2
    result = json.loads(out)
    assert result["ok"] is False
    assert {problem["setting"] for problem in result["problems"]} == {
        "workers.count",
        "worker.count",
        "cluster.name_servers",
    }


def test_config_check_as_json(shell: Shell) -> None:
    assert shell("config", "check", "--json") == (0, '{"ok": true, "problems": []}\n', "")
    code, out, _ = shell("config", "check", "--json", "-c", "none.toml")
    assert code == 2
    assert "does not exist" in json.loads(out)["problems"][0]["wrong"]


def test_config_file_by_flag_then_environment_then_folder(shell: Shell) -> None:
    names = ("rocketcrew", "env", "flag")
    files = {name: shell.write(f"{name}.toml", f'[consumer]\ngroup = "{name}"\n') for name in names}
    show = ("config", "show", "consumer.group")
    assert shell(*show)[1] == 'consumer.group = "rocketcrew"  # file ' + files["rocketcrew"] + "\n"
    shell.env["ROCKETCREW_CONFIG"] = files["env"]
    assert '"env"' in shell(*show)[1]
    assert '"flag"' in shell(*show, "-c", files["flag"])[1]


def test_config_show_as_text_and_json(shell: Shell) -> None:
    code, out, _ = shell("config", "show", "cluster", "-n", "a:1;b:2")
    assert code == 0
    assert 'cluster.name_servers = ["a:1", "b:2"]' in out
    assert "# flag --name-servers" in out
    assert "consumer." not in out
    code, out, _ = shell("config", "show", "--json")
    tree = json.loads(out)
    assert tree["consumer"]["pull_batch_size"] == {"value": 32, "origin": "default"}
    assert shell("config", "show", "--changed")[1] == ""
    assert shell("config", "show", "nothing")[0] == 2


def test_config_show_reference_is_a_file_to_start_from(shell: Shell) -> None:
    code, out, _ = shell("config", "show", "--reference")
    assert code == 0
    assert shell("config", "check", "-c", shell.write("my.toml", out))[0] == 0


def test_the_same_thing_said_twice_is_refused(shell: Shell) -> None:
    code, _, err = shell("config", "check", "-n", "a:1", "--set", "cluster.name_servers=b:1")
    assert code == 2
    assert "twice" in err
    code, _, err = shell("config", "check", "--set", "novalue")
    assert code == 2
    assert "section.key=value" in err
    code, _, err = shell("config", "check", "--set", "secret_key=S3CRET")
    assert code == 2
    assert "'secret_key=...' is not section.key=value" in err


def test_config_show_hides_secrets(shell: Shell) -> None:
    shell.env = {"ROCKETCREW_SECURITY_ACCESS_KEY": "me", "ROCKETCREW_SECURITY_SECRET_KEY": "S3CRET"}
    for words in ((), ("--json",), ("security.secret_key",)):
        code, out, err = shell("config", "show", *words)
        assert code == 0
        assert "S3CRET" not in out + err
        assert "********" in out
    _, out, _ = shell("config", "show", "security.secret_key", "security.security_token")
    assert 'security.security_token = ""' in out  # that there is none may be seen


def test_config_check_reads_keys_and_certificates(shell: Shell) -> None:
    key = shell.write("key", "AccessKey=me\n")
    code, _, err = shell("config", "check", "--set", f"security.key_file={key}")
    assert code == 2
    assert "needs the lines AccessKey=... and SecretKey=..." in err
    tls = ("--set", "security.tls_enable=true", "--set", f"security.tls_trust_cert_path={key}")
    code, out, _ = shell("config", "check", "--json", *tls)
    assert code == 2
    assert "is no usable PEM file" in json.loads(out)["problems"][0]["wrong"]
    assert shell("config", "check", *tls[2:])[0] == 0  # what is off is not looked at


URLS = ("s3a://bucket/table", "hdfs://name", "gs://bucket/t", "file:///data/table", "abfss:/t", "table:db.rows")


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize(
    "words",
    [
        ("run", "shop:count", "-t", "orders", "-g", "billing", "-n", "127.0.0.1:1"),
        ("run", "shop:count", "-t", "orders", "-g", "billing", "-n", "127.0.0.1:1", "--engine", "spark"),
        ("load", "--staging", "."),
        ("query", "SELECT 1"),
        ("compact",),
        ("reconcile", "-g", "billing", "--no-brokers"),
        ("reset", "-g", "billing", "-t", "orders", "--to", "earliest", "--reprocess", "-n", "127.0.0.1:1"),
    ],
)
def test_a_table_that_is_no_folder_is_refused_by_name(shell: Shell, words: tuple[str, ...], url: str) -> None:
    """It would become a local folder of that name, and the data go with the container."""
    for given in (("--target", url), ("--set", f"spark.target={url}")):
        code, _, err = shell(*words, *given)
        assert code == 2
        assert url in err
        assert "spark.target" in err
        assert "is a URL" in err or "folder" in err or "is not hdfs://namenode" in err
    assert list(shell.folder.iterdir()) == []


MEASURE = "rocketcrew.examples.functions:measure"
BILLING = ("-g", "billing", "-n", "127.0.0.1:1")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("compact",), "exchange of both folders, which HDFS does not have"),
        (("reconcile", "-g", "billing", "--no-brokers"), "give the table's folder there as --target"),
        (
            ("reset", *BILLING, "-t", "orders", "--to", "earliest", "--reprocess"),
            "reads the table's epochs without Spark",
        ),
        (("query", "--engine", "duckdb", "SELECT 1"), "--engine spark"),
        (("run", MEASURE, *BILLING, "-t", "orders", "--engine", "spark"), "the engine writes no tables on HDFS"),
        (
            ("run", "shop:count", *BILLING, "-t", "orders", "--set", "spark.format=pyarrow"),
            "set spark.format = parquet",
        ),
        (("load", "--staging", ".", "--set", "spark.format=deltalake"), "set spark.format = parquet"),
        (("load", "--staging", ".", "--master", "sc://host:15002"), "use another spark.master"),
    ],
)
def test_what_does_not_work_on_hdfs_is_refused_with_the_reason(shell: Shell, words: tuple[str, ...], said: str) -> None:
    code, _, err = shell(*words, "--target", "hdfs://name:8020/table")
    assert (code, said in " ".join(err.split()), "Traceback" in err) == (2, True, False), err
    assert list(shell.folder.iterdir()) == []


def test_a_configuration_with_a_table_on_hdfs_is_checked_without_asking_it(shell: Shell) -> None:
    code, out, err = shell("config", "check", "--set", "spark.target=hdfs://name:8020/table")
    assert (code, "can be run" in out or not err) == (0, True), err


@pytest.mark.parametrize("url", URLS)
def test_compact_refuses_a_url_whatever_the_format(shell: Shell, url: str) -> None:
    code, _, err = shell("compact", "--target", url, "--set", "spark.format=iceberg")
    assert (code, url in err) == (2, True)


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize(
    "words",
    [
        ("load", "--target", "t", "--staging"),
        ("reconcile", "-g", "billing", "--target", "t", "--no-brokers", "--staging"),
        ("replay", "a:b", "--from", "2h", "-t", "orders", "-g", "billing", "-n", "127.0.0.1:1", "--diff"),
        ("replay", "a:b", "--from", "2h", "-t", "orders", "-g", "billing", "-n", "127.0.0.1:1", "--output"),
        ("run", "a:b", "-t", "orders", "-g", "billing", "-n", "127.0.0.1:1", "--set"),
    ],
)
def test_other_folders_are_refused_in_the_same_way(shell: Shell, words: tuple[str, ...], url: str) -> None:
    code, _, err = shell(*words, f"supervisor.data_dir={url}" if words[-1] == "--set" else url)
    assert (code, url in err) == (2, True)


def test_a_format_of_spark_may_save_to_a_url(shell: Shell) -> None:
    code, out, _ = shell("config", "check", "--set", "spark.format=orc", "--set", "spark.target=s3a://bucket/table")
    assert code == 0, out


@pytest.mark.parametrize("words", [("topics",), ("groups",), ("find", "k-1"), ("topics", "--json")])
def test_an_outage_is_not_an_empty_cluster(shell: Shell, words: tuple[str, ...]) -> None:
    code, out, err = shell(*words, "-n", "127.0.0.1:1", "--set", "cluster.connect_timeout_ms=100")
    assert (code, out) == (3, "")
    assert "127.0.0.1:1" in err


LONGEST = 80
"""Columns; what click does not wrap is written so."""
OF_NO_CLUSTER = {
    "dev",
    "init",
    "broker",
    "broker check",
    "broker convert",
    "load",
    "query",
    "compact",
    "config",
    "demo",
    "dlq",
}
"""Commands that ask no cluster. Those to a running supervisor don't either."""


@pytest.mark.parametrize(("name", "command"), every_command())
def test_every_help_has_one_width_and_an_example(name: str, command: click.Command) -> None:
    context = click.Context(command, info_name=name, parent=click.Context(rocketcrew, info_name="rocketcrew"))
    context.terminal_width = LONGEST
    text = command.get_help(context)
    assert max(map(len, text.splitlines())) <= LONGEST
    assert f"  rocketcrew {name} " in text or f"  rocketcrew {name}\n" in text
    options = {spelled for parameter in command.params for spelled in parameter.opts}
    assert ("--name-servers" in options) == (name not in OF_NO_CLUSTER and "--slot" not in options)
    assert "--json" in options or isinstance(command, click.Group) or name in ("run", "dev")


def test_no_help_imports_what_takes_its_time() -> None:
    """Measured as what is imported, in one process for all commands: whoever is guilty is found by `-X importtime`."""
    look = (
        "import sys, pathlib; from rocketcrew.cli.main import COMMANDS, run\n"
        "for name in COMMANDS: run([name, '--help'], {}, pathlib.Path())\n"
        "heavy = {'pyarrow', 'pyspark', 'duckdb', 'pandas', 'numpy', 'multiprocess', 'rocketcrew.supervisor.service'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr.strip() == "[]"


OF_RUN = {
    "the supervisor": ("cli.commands.run", "supervisor.service", "supervisor.notify", "workers.trial_import"),
    "the trial import of the handler": ("workers.trial_import",),
}
NOT_IN = {
    "the supervisor": {
        "pyarrow",
        "numpy",
        "pandas",
        "pyspark",
        "prometheus_client",
        "http.client",
        "rocketcrew.workers.runner",
        "rocketcrew.remoting.admin_headers",
        "rocketcrew.remoting.admin_bodies",
    },
    "the trial import of the handler": {"pyarrow", "numpy", "asyncio", "structlog", "ssl", "rocketcrew.supervisor"},
}
"""What processes of `rocketcrew run` never need, or not with the default settings: each start would pay for it."""


@pytest.mark.parametrize("process", OF_RUN)
def test_a_process_of_run_imports_only_what_it_needs(process: str) -> None:
    names = ", ".join(f"rocketcrew.{name}" for name in OF_RUN[process])
    look = f"import sys, {names}; print(sorted(set({sorted(NOT_IN[process])}) & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-Ic", look], capture_output=True, text=True, timeout=240, check=True)
    assert done.stdout.strip() == "[]"


def test_declared_columns_are_looked_at_without_pandas() -> None:
    """Which Arrow's first conversion would import."""
    look = (
        "import sys; from rocketcrew import handler; from rocketcrew.workers.loading import ready\n"
        "from rocketcrew.workers.trial_import import look_at_columns, look_at_settings\n"
        "look_at_columns(ready(handler(schema='n int')(lambda message: None)), '')\n"
        "print(look_at_settings('n int', 'm'), 'pandas' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-Ic", look], capture_output=True, text=True, timeout=240, check=True)
    assert "spark.partition_by" in done.stdout
    assert done.stdout.endswith(" False\n")


def test_a_batch_handler_of_messages_is_looked_at_without_arrow() -> None:
    look = (
        "import sys; from rocketcrew import handler; from rocketcrew.workers.loading import ready\n"
        "ready(handler(batch=True)(lambda messages: None)); print('pyarrow' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-Ic", look], capture_output=True, text=True, timeout=240, check=True)
    assert done.stdout.strip() == "False"


def test_nothing_is_collected_while_a_command_is_imported() -> None:
    """But once afterwards, of what is new since then. Each collection in between would look at all that was made so far."""
    look = (
        "import click, gc, json\n"
        "from rocketcrew.cli.main import rocketcrew\n"
        "seen = []\n"
        "gc.callbacks.append(lambda phase, _: seen.append(phase))\n"
        "rocketcrew.get_command(click.Context(rocketcrew), 'run')\n"
        "print(json.dumps([seen.count('start'), gc.isenabled()]))"
    )
    done = subprocess.run([sys.executable, "-Ic", look], capture_output=True, text=True, timeout=240, check=True)
    collections, enabled = json.loads(done.stdout)
    assert enabled
    assert collections <= 1


WITHOUT_A_LOOP = {"init", "doctor", "broker", "load", "query", "compact", "replay", "config"}
"""Commands whose help imports neither asyncio nor what it brings."""
MODULES_MAX, MODULES_WITHOUT_A_LOOP_MAX = 420, 270
COMPILED_MAX = 100
"""Standard dataclasses. Each takes as long as two small modules: where there are dozens, they are light_dataclass.py's."""


def test_the_help_of_a_command_imports_few_modules() -> None:
    """Counted, as a time would be the machine's. Each command in a process of its own, all forked from one."""
    look = (
        "import contextlib, dataclasses, io, json, os, pathlib, sys\n"
        "standard, compiled = dataclasses.dataclass, []\n"
        "def counted(cls=None, /, **options):\n"
        "    if options.get('init', True): compiled.append(1)\n"
        "    return standard(cls, **options)\n"
        "dataclasses.dataclass = counted\n"
        "from rocketcrew.cli.main import COMMANDS, run\n"
        "for name in COMMANDS:\n"
        "    if os.fork() == 0:\n"
        "        with contextlib.redirect_stdout(io.StringIO()): run([name, '--help'], {}, pathlib.Path())\n"
        "        print(json.dumps([name, len(sys.modules), 'asyncio' in sys.modules, len(compiled)]), flush=True)\n"
        "        os._exit(0)\n"
        "    os.wait()\n"
    )
    done = subprocess.run([sys.executable, "-Ic", look], capture_output=True, text=True, timeout=240, check=True)
    found = {name: counts for name, *counts in map(json.loads, done.stdout.splitlines())}
    assert found.keys() == COMMANDS.keys()
    assert {name for name in WITHOUT_A_LOOP if found[name][1]} == set()
    assert max(found[name][0] for name in WITHOUT_A_LOOP) <= MODULES_WITHOUT_A_LOOP_MAX
    assert max(modules for modules, _, _ in found.values()) <= MODULES_MAX
    assert max(compiled for _, _, compiled in found.values()) <= COMPILED_MAX


@pytest.mark.parametrize("sub", ["check", "convert"])
@pytest.mark.parametrize("option", ["--dir", "--port", "--set", "-c", "--log-level", "--json"])
def test_options_of_a_broker_that_runs_are_not_ignored_before_a_subcommand(shell: Shell, option: str, sub: str) -> None:
    """The store of the default folder was converted in place of the one that was named."""
    value = {"--port": "1", "--set": "broker.port=1", "-c": shell.write("a.toml", ""), "--log-level": "info"}
    words = [option] if option == "--json" else [option, value.get(option, str(shell.folder))]
    code, _, err = shell("broker", *words, sub)
    named = {"-c": "--config"}.get(option, option)
    assert (code, f"write it behind, as `rocketcrew broker {sub} {named} ...`" in err) == (2, True), err


@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
@pytest.mark.parametrize(
    "words",
    [
        "stop --wait --timeout",
        "lag --watch --interval",
        "tail -t orders --interval",
        "top --interval",
        "chaos --seconds",
    ],
)
def test_no_number_is_no_time(shell: Shell, words: str, number: str) -> None:
    code, _, err = shell(*words.split(), number)
    assert (code, "Invalid value for" in err) == (2, True), err


def test_a_mistyped_setting_is_answered_with_the_nearest(shell: Shell) -> None:
    for name, said in (
        ("consumer.gruop", ": did you mean consumer.group or "), ("consumr", ": did you mean consumer?"),
        ("nosuch.thing", "; sections are "),
    ):  # fmt: skip
        code, _, err = shell("config", "show", name)
        assert (code, f"no section and no setting {name!r}{said}" in err) == (2, True), err


def test_a_folder_of_segments_that_is_not_there_is_an_error(shell: Shell) -> None:
    for words in (
        ("load", "--target", "t"),
        ("reconcile", "-g", "billing", "--target", "t", "--no-brokers"),
        ("reset", "-g", "billing", "-t", "orders", "--to", "earliest", "--reprocess", "--target", "t", "-n", "h:1"),
    ):
        code, _, err = shell(*words, "--staging", str(shell.folder / "nosuch"))
        assert (code, "nosuch' does not exist" in err) == (2, True), err


@pytest.mark.parametrize("closed", ["0<&-", ">&-", "2>&-", "0<&- >&- 2>&-"])
def test_a_closed_standard_stream_ends_no_command(closed: str, tmp_path: Path) -> None:
    """Standard error of `run` is asked whether it is a terminal; 4: the handler cannot be imported, which is as far as it
    gets."""
    line = f'exec "$0" -m rocketcrew run nosuch:handle -t t -g g -n 127.0.0.1:9 {closed}'
    assert subprocess.run(["sh", "-c", line, sys.executable], cwd=tmp_path, timeout=60, check=False).returncode == 4


def test_closed_standard_streams_are_null_devices_that_children_have_too() -> None:
    look = (
        "import os, sys\n"
        "from rocketcrew.__main__ import open_closed_streams\n"
        "open_closed_streams()\n"
        "streams = (sys.stdin, sys.stdout, sys.stderr)\n"
        "there = all(each.fileno() == at and os.get_inheritable(at) for at, each in enumerate(streams))\n"
        "same = all(os.path.samestat(os.fstat(at), os.stat(os.devnull)) for at in range(3))\n"
        "os._exit(0 if there and same else 9)\n"
    )
    line = 'exec "$0" -c "$1" 0<&- >&- 2>&-'
    assert subprocess.run(["sh", "-c", line, sys.executable, look], timeout=60, check=False).returncode == 0


def test_name_servers_that_are_named_twice_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for alias in ("--namesrv", "--namesrvAddr"):
        assert run(["topics", "-n", "127.0.0.1:1", alias, "127.0.0.1:2"], {}, tmp_path) == 2
        assert "--name-servers and --namesrv say the same thing twice" in capsys.readouterr().err


def test_run_embedded_says_where_other_name_servers_are_configured(tmp_path: Path) -> None:
    """In a process of its own: `run` imports from the current folder."""
    look = (
        "import sys, pathlib; from rocketcrew.cli.main import run;"
        "sys.exit(run(['run', 'json:dumps', '-t', 't', '-g', 'g', '--embedded'], {'NAMESRV_ADDR': 'h:1'}, pathlib.Path()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", look], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert "name servers are configured: h:1 (from environment NAMESRV_ADDR). Leave one" in done.stderr
