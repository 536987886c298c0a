"""CPU quotas of containers, as the files of both versions of control groups have them."""

from __future__ import annotations

import os
from collections.abc import Mapping

import pytest

from rocketcrew.supervisor.wiring import available_cores, quota_cores

V1 = "9:cpuset:/\n4:cpu,cpuacct:/pods/one\n0::/pods/one\n"


def cores(own: str, files: Mapping[str, str]) -> int | None:
    return quota_cores(own, lambda name: files.get(name, ""))


@pytest.mark.parametrize(
    ("quota", "expected"),
    [("200000 100000", 2), ("150000 100000", 2), ("50000 100000", 1), ("0 100000", 1), ("max 100000", None), ("", None),
     ("100000 0", None)],
)  # fmt: skip
def test_a_part_of_a_core_counts_as_one(quota: str, expected: int | None) -> None:
    assert cores("0::/\n", {"cpu.max": quota}) == expected


def test_the_smallest_quota_of_the_group_and_those_above_it_holds() -> None:
    own = "0::/pods/one/member\n"
    found = {
        "pods/cpu.max": "800000 100000",
        "pods/one/cpu.max": "300000 100000",
        "pods/one/member/cpu.max": "max 100000",
    }
    assert cores(own, found) == 3
    assert cores(own, {"pods/two/cpu.max": "100000 100000"}) is None, "a neighbour's"


def test_in_a_container_the_group_itself_is_mounted_whatever_path_is_named() -> None:
    assert cores("0::/../../host/path\n", {"cpu.max": "400000 100000"}) == 4
    limits = {"cpu/cpu.cfs_quota_us": "250000\n", "cpu/cpu.cfs_period_us": "100000\n"}
    assert cores("4:cpu:/docker/1234\n", limits) == 3


def test_version_1_has_two_files() -> None:
    limits = {"cpu/pods/one/cpu.cfs_quota_us": "100000\n", "cpu/pods/one/cpu.cfs_period_us": "50000\n"}
    assert cores(V1, limits) == 2
    assert cores(V1, limits | {"cpu/pods/one/cpu.cfs_quota_us": "-1\n"}) is None


def test_without_control_groups_there_is_no_quota() -> None:
    assert cores("", {}) is None
    assert cores("no line of that kind\n", {"cpu.max": "max 100000"}) is None
    assert 1 <= available_cores() <= len(os.sched_getaffinity(0)), "here"
