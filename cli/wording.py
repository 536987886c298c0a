"""Errors of the network as one sentence with what to do; what exactly was asked and answered comes last. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import Final

from ..remoting.arguments import near
from ..remoting.codes import ResponseCode
from ..remoting.errors import BrokerError, RocketcrewError, UnreachableError
from ..remoting.names import RETRY_PREFIX, is_of_group

BY_FLAG: Final = "by -n HOST:PORT, or start one with `rocketcrew broker`"
NAME_SERVERS_ALONE_ANSWER: Final = ("GET_ROUTEINFO", "GET_BROKER_CLUSTER", "GET_ALL_TOPIC", "GET_SYSTEM_TOPIC")
_TOPIC = re.compile(r" for topic (\S+)")
_NOBODY = "no name server answered"


class UnknownNameError(RocketcrewError):
    """A topic or a group that the cluster does not have."""


def in_words(error: RocketcrewError, other_server: str = BY_FLAG) -> str:
    """What went wrong and what to do; the error's own text where nothing better is known.

    `other_server`: how the reader names another name server, who typed a flag, or gave an argument.
    """
    if isinstance(error, BrokerError):
        return _refused(error, other_server)
    if isinstance(error, UnreachableError) and error.reason.startswith(_NOBODY):
        why = error.reason.rpartition("cannot connect: ")[2]
        why = re.sub(rf"^{_NOBODY} .*?: (?:{re.escape(error.address)}: )?", "", why)
        why = re.sub(r"\[Errno -?\d+\] | to [A-Z_]+ \(\d+\)", "", why)
        return f"no name server answers at {error.address} ({why}). Is it running there? Name another {other_server}"
    return str(error)


def not_known(failed: Iterable[tuple[str, RocketcrewError]]) -> list[str]:
    """What is not known of which topics, a line for each reason: a broker that is away has many of them."""
    names: dict[str, list[str]] = {}
    for name, error in failed:
        names.setdefault(in_words(error), []).append(name)
    return [f"not all is known of {', '.join(sorted(listed))}: {why}" for why, listed in names.items()]


def unknown_topic(error: BaseException) -> str | None:
    """The topic of an error that says that it does not exist; None for any other error."""
    if isinstance(error, BrokerError) and error.code == ResponseCode.TOPIC_NOT_EXIST:
        found = _TOPIC.search(error.request)
        return found[1] if found else None
    return None


def with_hint(said: object, hint: str) -> UnknownNameError:
    """The same error with the sentence `hint` after it; what asks "did you mean x?" has ended its own sentence."""
    text = str(said)
    return UnknownNameError(f"{text}{'' if text.endswith('?') else '.'} {hint}")


def no_such_name(topic: str, known: Iterable[str]) -> UnknownNameError:
    """The error for a topic that none of the cluster's `known` topics is; of a group where it is a group's retry topic."""
    if topic.startswith(RETRY_PREFIX):
        return no_such_group(topic.removeprefix(RETRY_PREFIX), known)
    names = [name for name in known if not is_of_group(name)]
    return UnknownNameError(f"the cluster does not know the topic {topic}{near(topic, names)}")


def no_such_group(group: str, known: Iterable[str]) -> UnknownNameError:
    """The error for a group that has no retry topic among the cluster's `known` topics."""
    topics = set(known)
    names = [name for name in group_names(topics) if not is_popped_retry(name, topics)]
    return UnknownNameError(
        f"the cluster does not know the group {group} (a group is known once it has consumed){near(group, names)}"
    )


def group_names(known: Iterable[str]) -> list[str]:
    """Of the retry topics among the cluster's `known` ones, those behind the prefix: groups, and what `is_popped_retry`."""
    return [name.removeprefix(RETRY_PREFIX) for name in known if name.startswith(RETRY_PREFIX)]


def is_popped_retry(name: str, known: AbstractSet[str]) -> bool:
    """Whether it looks like what brokers call the retry topic of a group that pops a topic, by both names: a group may be
    called so too."""
    for at in (at for at, letter in enumerate(name) if letter in "_+"):
        topic = name[at + 1 :]
        # Only the name at the front loses its namespace where a user is shown it.
        if RETRY_PREFIX + name[:at] in known and (topic in known or topic.partition("%")[2] in known):
            return True
    return False


def _refused(error: BrokerError, other_server: str) -> str:
    if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED and error.request.startswith(NAME_SERVERS_ALONE_ANSWER):
        where = re.search(r" at (\S+)", error.request)
        return (
            f"{where[1] if where else 'this server'} is a broker and no name server: RocketMQ's port for those is 9876."
            f" Name one {other_server}"
        )
    topic = unknown_topic(error)
    if topic is not None:
        return str(no_such_name(topic, ()))
    remark = error.remark.partition("\n")[0].strip() or "no reason given"
    return f"refused: {remark} ({str(BrokerError(error.code, '-', error.request)).removesuffix(': -')})"
