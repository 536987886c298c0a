"""The broker about itself: runtime info 28, all consumer offsets 43, all delay offsets 45, its slaves (it has none) 907
(BR/processor/AdminBrokerProcessor.java, ST/ha/DefaultHAService.getRuntimeInfo)."""

from __future__ import annotations

from ...remoting.admin_bodies import HaRuntimeInfo, KvTable
from ...remoting.codes import VERSION, RequestCode, ResponseCode
from ...remoting.command import Command
from ..state import BrokerState, Call

CODES = (
    RequestCode.GET_BROKER_RUNTIME_INFO,
    RequestCode.GET_ALL_CONSUMER_OFFSET,
    RequestCode.GET_ALL_DELAY_OFFSET,
    RequestCode.GET_BROKER_HA_STATUS,
)


def handle(state: BrokerState, call: Call) -> Command:
    command = call.command
    if command.code == RequestCode.GET_ALL_CONSUMER_OFFSET:
        return command.response(ResponseCode.SUCCESS, body=state.offsets.dump())
    if command.code == RequestCode.GET_ALL_DELAY_OFFSET:
        return command.response(ResponseCode.SUCCESS, body=state.delays.dump())
    if command.code == RequestCode.GET_BROKER_HA_STATUS:
        body = HaRuntimeInfo(master_commit_log_max_offset=state.store.log_end).encode()
        return command.response(ResponseCode.SUCCESS, body=body)
    return command.response(ResponseCode.SUCCESS, body=KvTable(runtime_info(state, call.now_ms)).encode())


def runtime_info(state: BrokerState, now_ms: int) -> dict[str, str]:
    """The genuine names for what we know; admin tools print what they find.

    Some they insist on: `mqadmin clusterList` of 4.9 splits both rates and, with -m, adds up the totals of both mornings.
    A rate has three figures (10 s, 1 min, 10 min); ours are all the mean since the start, and totals count from there.
    """
    put_tps, get_tps = (_mean_tps(count, now_ms - state.started_ms) for count in (state.put_count, state.get_count))
    return {
        "brokerActive": "true",
        "bootTimestamp": str(state.started_ms),
        "runtime": f"{max(0, now_ms - state.started_ms) // 1000} s",
        "brokerVersion": str(VERSION),
        "brokerVersionDesc": "V5_5_0_ROCKETCREW",
        "commitLogMinOffset": str(state.store.log_start),
        "commitLogMaxOffset": str(state.store.log_end),
        "damagedRanges": str(state.store.found.damaged_ranges),
        "damagedBytes": str(state.store.found.damaged_bytes),
        "missingOffsets": str(state.store.found.missing_offsets),
        "rebuiltQueues": str(len(state.store.found.rebuilt) + state.store.rebuilt_queues),
        "passedOver": str(state.store.passed_over),
        "setAside": str(len(state.storage.aside())),
        "heldPulls": str(len(state.held)),
        "msgPutTotalYesterdayMorning": "0",
        "msgPutTotalTodayMorning": "0",
        "msgPutTotalTodayNow": str(state.put_count),
        "msgGetTotalYesterdayMorning": "0",
        "msgGetTotalTodayMorning": "0",
        "msgGetTotalTodayNow": str(state.get_count),
        "putTps": put_tps,
        "getTransferedTps": get_tps,  # as 4.9 spells it, and 5.x beside its own
        "getTransferredTps": get_tps,
        "sendThreadPoolQueueSize": "0",
        "pullThreadPoolQueueSize": "0",
        "sendThreadPoolQueueHeadWaitTimeMills": "0",
        "pullThreadPoolQueueHeadWaitTimeMills": "0",
        "pageCacheLockTimeMills": "0",
    }


def _mean_tps(count: int, elapsed_ms: int) -> str:
    """Messages per second since the start, in the form of StoreStatsService: three figures."""
    mean = count * 1000 / max(1, elapsed_ms)
    return " ".join([f"{mean:.2f}"] * 3)
