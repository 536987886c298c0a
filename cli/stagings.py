"""Where a group's segments lie on this host."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from ..conf.printed import SHAPE, command_line, same_settings
from ..conf.segment_format import BAD_DIR, OPEN_DIR, OUTCOMES_DIR, PLAN_DIR, READY_DIR
from ..conf.settings import Settings
from ..remoting.errors import UsageError
from ..remoting.namespaces import wrap
from ..remoting.subscription import split_subscription
from ..supervisor.member.access import namespace_of

_OWN: Final = (OPEN_DIR, READY_DIR, PLAN_DIR, BAD_DIR, OUTCOMES_DIR)
"""What a folder of segments has in it. Not all of them at once: one that was copied or emptied may lack some."""


def group_in_keys(settings: Settings) -> str:
    """The group as slots, segments and tables name it: with the namespace."""
    return wrap(namespace_of(settings), settings.consumer.group)


def topics_in_keys(settings: Settings) -> list[str]:
    """The topics of the configuration, which may be none, as brokers name them."""
    topics = (split_subscription(text)[0] for text in settings.consumer.topics)
    return [wrap(namespace_of(settings), topic) for topic in topics]


def group_home(settings: Settings) -> Path:
    """The group's folder in supervisor.data_dir, which holds its slots."""
    return Path(settings.supervisor.data_dir) / group_in_keys(settings)


def rows_go_to(settings: Settings) -> str:
    """What a member loads the rows into; empty where Spark saves to what only its options name."""
    from ..supervisor.loader_child import where  # brings the supervisor along, which most commands do without

    return where(settings.spark, group_home(settings) / "table")


def load_line(settings: Settings, staging: Path | str) -> str:
    """The command line that loads what is sealed there, as the member's own loader would."""
    target = rows_go_to(settings)
    return command_line(
        "load", "--staging", staging, *(("--target", target) if target else ()), *same_settings(settings, *SHAPE)
    )


def staging_folders(settings: Settings) -> list[Path]:
    """The folders of segments of all slots of the group in supervisor.data_dir."""
    return sorted(path for path in group_home(settings).glob("*/segments") if path.is_dir())


def check_staging(folder: Path) -> None:
    """Raise UsageError for a folder of something else: it would be made one, and nothing found to wait in it.
    An empty one may become one."""
    is_one = any((folder / name).is_dir() for name in _OWN)
    below = (f"{slots}segments/{READY_DIR}" for slots in ("", "*/", "*/*/")[: 1 if is_one else 3])
    meant = sorted(str(ready.parent) for pattern in below for ready in folder.glob(pattern))
    if folder.name in _OWN and not is_one and (folder.parent / READY_DIR).is_dir():
        meant.append(str(folder.parent))
    if meant:
        raise UsageError(f"{folder} is no folder of segments: did you mean {', '.join(meant)}?")
    if any(folder.glob("[!.]*")) and not is_one:
        raise UsageError(
            f"{folder} has no {READY_DIR}: it is no folder of segments (<data_dir>/<group>/<slot>/segments)"
        )
