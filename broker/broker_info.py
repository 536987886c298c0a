"""The broker about itself: runtime info 28, config 26, all consumer offsets 43, all delay offsets 45
(BR/processor/AdminBrokerProcessor.java)."""

from __future__ import annotations

from dataclasses import fields

from ..remoting.admin_bodies import KvTable
from ..remoting.codes import VERSION, RequestCode, ResponseCode
from ..remoting.command import Command
from .state import BrokerState, Call

CODES = (
    RequestCode.GET_BROKER_RUNTIME_INFO,
    RequestCode.GET_BROKER_CONFIG,
    RequestCode.GET_ALL_CONSUMER_OFFSET,
    RequestCode.GET_ALL_DELAY_OFFSET,
)


def handle(state: BrokerState, call: Call) -> Command:
    command = call.command
    if command.code == RequestCode.GET_ALL_CONSUMER_OFFSET:
        return command.response(ResponseCode.SUCCESS, body=state.offsets.dump())
    if command.code == RequestCode.GET_ALL_DELAY_OFFSET:
        return command.response(ResponseCode.SUCCESS, body=state.delays.dump())
    if command.code == RequestCode.GET_BROKER_CONFIG:
        lines = [f"{field.name}={getattr(state.config, field.name)}\n" for field in fields(state.config)]
        return command.response(ResponseCode.SUCCESS, body="".join(lines).encode())
    return command.response(ResponseCode.SUCCESS, body=KvTable(runtime_info(state, call.now_ms)).encode())


def runtime_info(state: BrokerState, now_ms: int) -> dict[str, str]:
    """The genuine names for what we know; admin tools print what they find."""
    return {
        "bootTimestamp": str(state.started_ms),
        "runtime": f"{max(0, now_ms - state.started_ms) // 1000} s",
        "brokerVersion": str(VERSION),
        "brokerVersionDesc": "V5_3_1_ROCKETCREW",
        "commitLogMinOffset": str(state.store.log_start),
        "commitLogMaxOffset": str(state.store.log_end),
        "heldPulls": str(len(state.held)),
        "msgPutTotalTodayNow": str(state.put_count),
        "msgGetTotalTodayNow": str(state.get_count),
    }
