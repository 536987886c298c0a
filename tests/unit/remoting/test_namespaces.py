"""Wrapping names by namespace: the table of NamespaceUtilTest.java and what follows from it."""

from __future__ import annotations

import pytest

from rocketcrew.remoting.names import SYSTEM_TOPICS
from rocketcrew.remoting.namespaces import unwrap, wrap

SPACE = "MQ_INST_1973_BX"


@pytest.mark.parametrize(
    ("plain", "wrapped"),
    [
        ("orders", f"{SPACE}%orders"),
        ("%RETRY%billing", f"%RETRY%{SPACE}%billing"),
        ("%DLQ%billing", f"%DLQ%{SPACE}%billing"),
        ("a%b", f"{SPACE}%a%b"),
        ("", ""),
    ],
)
def test_there_and_back(plain: str, wrapped: str) -> None:
    assert wrap(SPACE, plain) == wrapped
    assert wrap(SPACE, wrapped) == wrapped  # twice does no harm
    assert unwrap(SPACE, wrapped) == plain
    assert unwrap(SPACE, plain) == plain


@pytest.mark.parametrize("name", [*sorted(SYSTEM_TOPICS), "rmq_sys_REVIVE_LOG_c", "CID_RMQ_SYS_trace"])
def test_names_of_the_system_have_no_namespace(name: str) -> None:
    assert wrap(SPACE, name) == name


def test_without_a_namespace_nothing_changes() -> None:
    assert wrap("", "orders") == unwrap("", "orders") == "orders"
    assert unwrap("", f"{SPACE}%orders") == f"{SPACE}%orders"


def test_another_namespace_is_left_alone() -> None:
    assert unwrap("other", f"%RETRY%{SPACE}%billing") == f"%RETRY%{SPACE}%billing"
    assert unwrap(SPACE, f"{SPACE}2%orders") == f"{SPACE}2%orders"
