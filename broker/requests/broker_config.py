"""GET_BROKER_CONFIG 26 and UPDATE_BROKER_CONFIG 25, in RocketMQ's names (BrokerConfig.java, MessageStoreConfig.java).

What has a name there is shown under it. What the broker looks at each time it uses it can be changed while it runs; that
lasts until it stops, as the settings are its owner's. Everything else is refused: its name, and what to do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from ...conf.units import HOUR_MS
from ...remoting.codes import RequestCode, ResponseCode
from ...remoting.command import Command
from ...remoting.errors import UsageError
from ..config import BrokerConfig
from ..refusal import Refused
from ..state import BrokerState, Call

CODES = (RequestCode.GET_BROKER_CONFIG, RequestCode.UPDATE_BROKER_CONFIG)


class _Name(NamedTuple):
    """A field of BrokerConfig, how its value is written, and how read; None = it cannot be changed."""

    field: str
    write: Callable[[Any], object] = str
    read: Callable[[str], object] | None = None


def _bool(value: object) -> str:
    return str(value).lower()


def _flush(value: object) -> str:
    return "SYNC_FLUSH" if value == "sync" else "ASYNC_FLUSH"


def _hours(ms: int) -> int:
    return ms // HOUR_MS


def _read_hours(text: str) -> int:
    return int(text) * HOUR_MS


def _read_bool(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(text)
    return text == "true"


NAMES = {
    "brokerName": _Name("name"),
    "brokerClusterName": _Name("cluster"),
    "listenPort": _Name("port"),
    "storePathRootDir": _Name("dir"),
    "messageDelayLevel": _Name("message_delay_level"),
    "flushDiskType": _Name("flush", _flush),
    "flushIntervalCommitLog": _Name("flush_interval_ms", str, int),
    "flushConsumerOffsetInterval": _Name("offset_flush_interval_ms", str, int),
    "mappedFileSizeCommitLog": _Name("mapped_file_size_commit_log"),
    "fileReservedTime": _Name("retention_ms", _hours, _read_hours),
    "diskMaxUsedSpaceRatio": _Name("disk_max_used_space_ratio", str, int),
    "autoCreateTopicEnable": _Name("auto_create_topic", _bool),
    "autoCreateSubscriptionGroup": _Name("auto_create_group", _bool),
    "defaultTopicQueueNums": _Name("default_queues_max", str, int),
    "maxMessageSize": _Name("body_max_bytes", str, int),
    "maxTransferCountOnMessageInMemory": _Name("pull_messages_max"),
    "maxTransferBytesOnMessageInMemory": _Name("pull_bytes_max"),
    "longPollingEnable": _Name("long_polling_enable", _bool, _read_bool),
    "shortPollingTimeMills": _Name("short_polling_ms", str, int),
    "transactionTimeOut": _Name("transaction_timeout_ms"),
    "transactionCheckInterval": _Name("transaction_check_interval_ms"),
    "transactionCheckMax": _Name("transaction_checks_max"),
    "timerMaxDelaySec": _Name("timer_max_delay_sec", str, int),
}
# What is the same in every broker of ours, so that tools which look for it find it.
FIXED = {
    "brokerId": "0",
    "brokerRole": "ASYNC_MASTER",
    "brokerPermission": "6",
    "enablePropertyFilter": "true",
    "timerWheelEnable": "true",
    "recallMessageEnable": "true",
    "storeReplyMessageEnable": "false",
    "compressedRegister": "false",
}


def handle(state: BrokerState, call: Call) -> Command:
    if call.command.code == RequestCode.UPDATE_BROKER_CONFIG:
        return update(state, call.command)
    text = "".join(f"{name}={value}\n" for name, value in sorted(shown(state.config).items()))
    return call.command.response(ResponseCode.SUCCESS, {"version": '{"counter":0}'}, text.encode())


def shown(config: BrokerConfig) -> dict[str, str]:
    """The configuration in RocketMQ's names and values."""
    found = {name: str(known.write(getattr(config, known.field))) for name, known in NAMES.items()}
    return {**FIXED, **found, "brokerIP1": config.announce or config.host}


def update(state: BrokerState, command: Command) -> Command:
    """Take over all lines `name=value`, or refuse all."""
    changes: dict[str, Any] = {}
    for line in bytes(command.body).decode(errors="replace").splitlines():
        name, _, value = (part.strip() for part in line.partition("="))
        if not name or name.startswith("#"):
            continue
        known = NAMES.get(name)
        if known is None or known.read is None:
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"{name} cannot be changed while this broker runs: set it under [broker] in its configuration, if it is "
                f"there, and start it again; possible are {', '.join(one for one, about in NAMES.items() if about.read)}",
            )
        try:
            changes[known.field] = known.read(value)
        except ValueError:
            raise Refused(ResponseCode.INVALID_PARAMETER, f"{name}={value} is no value of {name}") from None
        if isinstance(changes[known.field], int) and changes[known.field] < 0:
            raise Refused(ResponseCode.INVALID_PARAMETER, f"{name}={value}: less than 0 is not possible")
    try:
        state.config = replace(state.config, **changes)
    except UsageError as error:
        raise Refused(ResponseCode.INVALID_PARAMETER, str(error)) from None
    if changes:
        state.store.events.append(("broker.config_changed", {"until": "it stops", **changes}))
    return command.response(ResponseCode.SUCCESS)
