"""From flags, environment, file and defaults to one table of checked values, with the origin of each.

Everything is looked at before anything is reported: a user who made three mistakes hears of three. Unknown names are
refused wherever they stand (a setting that is silently ignored is worse than one that stops the start), with the
nearest known name beside them; RocketMQ's camelCase names are understood well enough for that.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Final, cast

from ..remoting.arguments import plain
from ..remoting.errors import UsageError
from .java_words import JAVA_WORDS
from .redaction import HIDDEN, masked, masked_text, sounds_secret
from .schema import ALIASES, RELATIONS, SCHEMA

ENV_PREFIX: Final = "ROCKETCREW_"
CONFIG_FILE_VARIABLE: Final = "ROCKETCREW_CONFIG"
"""Names the configuration file; read by the command line, and no setting."""
DEFAULT_FILE: Final = "rocketcrew.toml"
"""The configuration file that is read when none is named and the current folder has it."""
FILE_BYTES_MAX: Final = 1 << 20
KNOWN: Final = tuple(f"{section}.{key}" for section, keys in SCHEMA.items() for key in keys)
_BY_ENVIRONMENT: Final = {ENV_PREFIX + name.replace(".", "_").upper(): name for name in KNOWN}
_SERVICE_LINK: Final = re.compile(r".+_SERVICE_(HOST|PORT(_\w+)?)|.+_PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?")
_SERVICE_ADDRESS: Final = re.compile(r"(tcp|udp|sctp)://.*")


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong: the setting, its value as given, where that came from, and what would be legal."""

    setting: str
    value: str
    origin: str
    wrong: str
    legal: str

    def __str__(self) -> str:
        head = f"{self.setting} = {self.value}" if self.value else self.setting
        origin = f" (from {self.origin})" if self.origin else ""
        return f"{head}{origin} {self.wrong}" + (f"; legal: {self.legal}" if self.legal else "")


class ConfigError(UsageError):
    """The configuration cannot be used. `problems` has every fault that was found."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        self.problems = problems
        count = "one problem" if len(problems) == 1 else f"{len(problems)} problems"
        super().__init__(f"{count} in the configuration:\n" + "\n".join(f"  {problem}" for problem in problems))

    def __reduce__(self) -> tuple[type[ConfigError], tuple[tuple[Problem, ...]]]:
        return (type(self), (self.problems,))


@dataclass(frozen=True, slots=True)
class Gathered:
    """Checked values by section and key, and the origin of each by "section.key"."""

    values: dict[str, dict[str, object]]
    origin: dict[str, str]


@dataclass(frozen=True, slots=True)
class _Given:
    """A value as some source gave it. Text is parsed, anything else only checked."""

    value: object
    origin: str
    is_text: bool


def find_file(named: Path | None, env: Mapping[str, str], folder: Path) -> Path | None:
    """The configuration file: the one that is named, that of the environment, the one in `folder`; None: there is none."""
    if named is not None:
        return named
    if env.get(CONFIG_FILE_VARIABLE):
        return Path(env[CONFIG_FILE_VARIABLE])
    # Also a link to nothing, or the folder that Docker makes for a mount whose source is not there: reading says so.
    return folder / DEFAULT_FILE if os.path.lexists(folder / DEFAULT_FILE) else None


def given_to(setting: str, flags: Mapping[str, object], env: Mapping[str, str], file: Path | None) -> object:
    """The value of "section.key" as it is given, unchecked, also where the rest cannot be read; None = the default."""
    if setting in flags:
        return flags[setting]
    if environment_name(setting) in env:
        return env[environment_name(setting)]
    section, _, key = setting.partition(".")
    try:
        table = None if file is None else read_file(file).get(section)
    except UsageError:  # told by who reads all of it
        return None
    return cast("dict[str, object]", table).get(key) if isinstance(table, dict) else None


def environment_name(setting: str) -> str:
    """The environment variable of "section.key"."""
    return ENV_PREFIX + setting.replace(".", "_").upper()


def without_settings(env: Mapping[str, str]) -> dict[str, str]:
    """The environment for a command that gets all of its settings from its parent: none in it, and no file is read. Some from
    here and others from there may contradict each other, such as an access key without its secret."""
    return {name: value for name, value in env.items() if not name.startswith(ENV_PREFIX)} | {
        CONFIG_FILE_VARIABLE: os.devnull
    }


def show(value: object) -> str:
    """A value as it would stand in a TOML file, for messages and `config show`; long ones are cut."""
    if isinstance(value, tuple):
        value = list(cast("tuple[object, ...]", value))
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 200 else text[:197] + "..."


def _show_unknown(name: str, value: object, near: str = "") -> str:
    """The value of `name`, which is no setting; empty where it may be a secret. `near` is the setting that was meant."""
    section = name.partition(".")[0]
    hidden = sounds_secret(name) or any(
        is_secret(f"{one}.{key}") for one in {section, near.partition(".")[0]} & SCHEMA.keys() for key in SCHEMA[one]
    )
    return "" if hidden else show(masked(value))


def is_secret(setting: str) -> bool:
    """Whether the value of "section.key" must not be shown."""
    section, _, key = setting.partition(".")
    return getattr(SCHEMA[section][key], "secret", False) is True


def show_setting(setting: str, value: object) -> str:
    """As `show`; of a secret only whether it is there."""
    return show(without_secrets(setting, value))


def without_secrets(setting: str, value: object) -> object:
    """The value as it may be shown: addresses may hold a password or a token, and Spark's settings the keys of a store."""
    return HIDDEN if value and is_secret(setting) else masked(value)


def holds_secret(setting: str, value: object) -> bool:
    """Whether something of the value must not be shown."""
    shown = without_secrets(setting, value)
    if isinstance(value, Mapping):
        value = dict(cast("Mapping[object, object]", value))
    return json.dumps(value) != json.dumps(shown)


def defaults_text() -> str:
    """`defaults.toml`, the commented reference."""
    return (resources.files(__package__ or "rocketcrew.conf") / "defaults.toml").read_text(encoding="utf-8")


def gather(
    flags: Mapping[str, object], env: Mapping[str, str], file: Path | None, flag_names: Mapping[str, str]
) -> Gathered:
    """Join the four sources, check each value and each relation; raise ConfigError with all problems."""
    problems: list[Problem] = []
    given = _from_tables(tomllib.loads(defaults_text()), "default", problems)
    if file is not None:
        given |= _from_tables(read_file(file), f"file {file}", problems)
    given |= _from_environment(env, problems)
    given |= _from_flags(flags, flag_names, problems)
    gathered = _check(given, problems)
    _relate(gathered, problems)
    if problems:
        raise ConfigError(tuple(problems))
    return gathered


def read_file(file: Path) -> dict[str, object]:
    """The tables of a configuration file, as they stand there. Raises UsageError."""
    try:
        with file.open("rb") as stream:
            data = stream.read(FILE_BYTES_MAX + 1)
        if len(data) > FILE_BYTES_MAX:
            raise UsageError(f"configuration file {file} is larger than {FILE_BYTES_MAX} bytes: is it the right file?")
        return tomllib.loads(data.decode("utf-8-sig"))  # editors of Windows put a byte order mark in front
    except FileNotFoundError:
        what = "is a link to what does not exist" if file.is_symlink() else "does not exist"
        raise UsageError(f"configuration file {file} {what}") from None
    except OSError as error:
        raise UsageError(f"configuration file {file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"configuration file {file} is not UTF-8 (byte {error.start})") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"configuration file {file} is not TOML: {error}") from None


def _from_tables(tables: Mapping[str, object], origin: str, problems: list[Problem]) -> dict[str, _Given]:
    """Values of a TOML document."""
    given: dict[str, _Given] = {}
    for section, table in tables.items():
        if section not in SCHEMA:
            problems.append(_unknown_section(section, table, origin))
        elif not isinstance(table, dict):
            shown = _show_unknown(section, table)
            problems.append(Problem(section, shown, origin, "is not a table", f"[{section}] with keys under it"))
        else:
            for key, value in cast("dict[str, object]", table).items():
                name = f"{section}.{key}"
                if key in SCHEMA[section]:
                    given[name] = _Given(value, origin, is_text=False)
                else:
                    problems.append(_unknown(name, value, origin))
    return given


def _from_environment(env: Mapping[str, str], problems: list[Problem]) -> dict[str, _Given]:
    given: dict[str, _Given] = {}
    addresses = env.get("NAMESRV_ADDR", "")
    if addresses.strip():
        given["cluster.name_servers"] = _Given(addresses, "environment NAMESRV_ADDR", is_text=True)
    links = [variable for variable in sorted(env) if _is_service_link(variable, env[variable])]
    if links:
        more = f" and {len(links) - 1} more" if len(links) > 1 else ""
        why = (
            "came with a Service: Kubernetes sets such variables in every pod of its namespace. Set `enableServiceLinks:"
            f" false` in the pod's spec, or give the Service a name that does not begin with {ENV_PREFIX.rstrip('_').lower()}"
        )
        problems.append(Problem(f"environment {links[0]}{more}", "", "", why, ""))
    for variable in sorted(env.keys() - links):
        if not variable.startswith(ENV_PREFIX) or variable == CONFIG_FILE_VARIABLE:
            continue
        name = _BY_ENVIRONMENT.get(variable)
        if name is not None:
            given[name] = _Given(env[variable], f"environment {variable}", is_text=True)
        else:
            near = difflib.get_close_matches(variable, _BY_ENVIRONMENT, n=1)
            hint = f"; did you mean {near[0]}?" if near else "; `rocketcrew config show` lists all settings"
            problems.append(Problem(f"environment {variable}", "", "", f"names no setting{hint}", ""))
    return given


def _is_service_link(variable: str, value: str) -> bool:
    """Whether Kubernetes has made the variable of a Service called rocketcrew, rocketcrew-metrics or the like. Its
    `…_METRICS_PORT` is also the name of a setting."""
    if not variable.startswith(ENV_PREFIX):
        return False
    if variable.endswith("_PORT") and _SERVICE_ADDRESS.fullmatch(value):
        return True
    return variable not in _BY_ENVIRONMENT and _SERVICE_LINK.fullmatch(variable) is not None


def _from_flags(
    flags: Mapping[str, object], flag_names: Mapping[str, str], problems: list[Problem]
) -> dict[str, _Given]:
    given: dict[str, _Given] = {}
    for name, given_value in flags.items():
        is_path = isinstance(given_value, os.PathLike)
        value = plain(os.fspath(cast("os.PathLike[str]", given_value)) if is_path else given_value)
        origin = _said_by(flag_names.get(name, "--set"))
        if name in KNOWN:
            given[name] = _Given(value, origin, is_text=isinstance(value, str))
        else:
            problems.append(_unknown(name, value, origin))
    return given


def _said_by(name: str) -> str:
    """Where a value of `flags` came from: "--group" is a flag of the command line, "group=" an argument of a call."""
    return f"argument {name}" if name.endswith("=") else f"flag {name}"


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def _nearest(key: str, section: str | None) -> str:
    """The known "section.key" that `key` was probably meant to be, or an empty text."""
    wanted = _snake(key.rpartition(".")[2])
    if wanted in ALIASES:
        return ALIASES[wanted]
    if section is not None:
        near = difflib.get_close_matches(wanted, SCHEMA[section], n=1, cutoff=0.7)
        if near:
            return f"{section}.{near[0]}"
    by_key = {name.partition(".")[2]: name for name in reversed(KNOWN)}
    near = difflib.get_close_matches(wanted, by_key, n=1, cutoff=0.7)
    if near:
        return by_key[near[0]]
    near = difflib.get_close_matches(key.lower(), KNOWN, n=1)
    return near[0] if near else ""


def _unknown(name: str, value: object, origin: str) -> Problem:
    section = name.partition(".")[0]
    near = _nearest(name, section if section in SCHEMA else None)
    hint = f"did you mean {near}?" if near else "`rocketcrew config show` lists all settings"
    return Problem(name, _show_unknown(name, value, near), origin, f"is no setting; {hint}", "")


def _unknown_section(section: str, table: object, origin: str) -> Problem:
    if not isinstance(table, dict):
        return _unknown(section, table, origin)
    near = difflib.get_close_matches(section.lower(), SCHEMA, n=1)
    hint = f"did you mean [{near[0]}]?" if near else "sections are " + ", ".join(f"[{name}]" for name in SCHEMA)
    return Problem(f"[{section}]", "", origin, f"is no section; {hint}", "")


def _check(given: Mapping[str, _Given], problems: list[Problem]) -> Gathered:
    gathered = Gathered({section: {} for section in SCHEMA}, {})
    for section, rules in SCHEMA.items():
        for key, rule in rules.items():
            name = f"{section}.{key}"
            entry = given[name]
            try:
                value = rule.parse(str(entry.value)) if entry.is_text else rule.check(entry.value)
            except ValueError as error:
                legal = f"{rule.legal} (RocketMQ: {JAVA_WORDS[name]})" if name in JAVA_WORDS else rule.legal
                wrong = masked_text(str(error))  # it may quote a part of the value
                problems.append(Problem(name, show_setting(name, entry.value), entry.origin, wrong, legal))
            else:
                gathered.values[section][key] = value
                gathered.origin[name] = entry.origin
    return gathered


def _relate(gathered: Gathered, problems: list[Problem]) -> None:
    """Check what must hold between two settings; a value that was itself refused is not judged a second time."""
    for relation in RELATIONS:
        names = (relation.first, relation.second)
        if not all(name in gathered.origin for name in names):
            continue
        values = [gathered.values[name.partition(".")[0]][name.partition(".")[2]] for name in names]
        if relation.holds(values[0], values[1]):
            continue
        because = relation.because if isinstance(relation.because, str) else relation.because(*values)
        second = (
            f"{relation.second} = {show_setting(relation.second, values[1])} (from {gathered.origin[relation.second]})"
        )
        problems.append(
            Problem(
                relation.first,
                show_setting(relation.first, values[0]),
                gathered.origin[relation.first],
                f"does not go with {second}: {relation.first} {relation.must} {relation.second}, because {because}",
                "",
            )
        )
