"""What a user reads when the network or a name is wrong."""

from __future__ import annotations

import pytest

from rocketcrew.cli.wording import in_words, is_popped_retry, no_such_group, no_such_name, unknown_topic, with_hint
from rocketcrew.remoting.arguments import near
from rocketcrew.remoting.errors import BrokerError, RocketcrewError, UnreachableError, UsageError

ROUTE = "GET_ROUTEINFO_BY_TOPIC (105) at 10.0.0.5:10911 for topic orders"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (BrokerError(3, " request type 105 not supported", ROUTE), "10.0.0.5:10911 is a broker and no name server"),
        (BrokerError(17, "No topic route info\nSee https://x", ROUTE), "the cluster does not know the topic orders"),
        (BrokerError(1, "disk is full\nSee https://x", "SEND (10) at a:1"), "refused: disk is full (SEND (10) at a:1 was"),
        (BrokerError(16, "", "SEND (10) at a:1"), "refused: no reason given (SEND (10) at a:1 was refused: 16 NO"),
        (
            UnreachableError("h:1", "no name server answered GET (1): h:1: GET (1): cannot connect: [Errno -2] Unknown"),
            "no name server answers at h:1 (Unknown). Is it running there?",
        ),
        (
            UnreachableError("h:1", "no name server answered GET (1): h:1: no answer to GET (1) within 9 ms"),
            "no name server answers at h:1 (no answer within 9 ms). Is it running there?",
        ),
        (
            UnreachableError("h:1;i:2", "no name server answered GET (1): h:1: GET (1): closed; i:2: no answer to GET (1)"),
            "no name server answers at h:1;i:2 (h:1: GET (1): closed; i:2: no answer). Is it running there?",
        ),
        (UnreachableError("h:1", "closed"), "h:1: closed"),
        (UsageError("as it is"), "as it is"),
    ],
)  # fmt: skip
def test_what_went_wrong_comes_first(error: RocketcrewError, words: str) -> None:
    assert in_words(error).startswith(words)


def test_only_a_missing_topic_is_one() -> None:
    assert unknown_topic(BrokerError(17, "", ROUTE)) == "orders"
    assert unknown_topic(BrokerError(17, "", "SEND (10) at a:1")) is None
    assert unknown_topic(BrokerError(1, "", ROUTE)) is None
    assert unknown_topic(UsageError("x")) is None


def test_the_nearest_names_are_of_the_same_kind() -> None:
    known = ["orders", "%RETRY%billing", "%DLQ%billing", "invoices"]
    assert str(no_such_name("ordes", known)) == "the cluster does not know the topic ordes: did you mean orders?"
    assert str(no_such_name("%RETRY%biling", known)).endswith("did you mean billing?")
    assert str(no_such_name("zzz", known)).endswith("; there are invoices, orders")
    assert str(no_such_name("zzz", [])) == "the cluster does not know the topic zzz"


@pytest.mark.parametrize(
    ("group", "ends"),
    [("biling", ": did you mean billing? Add --new-group"), ("zzz", "; there are billing. Add --new-group")],
)
def test_a_hint_is_a_sentence_of_its_own(group: str, ends: str) -> None:
    assert str(with_hint(no_such_group(group, ["%RETRY%billing"]), "Add --new-group")).endswith(ends)


@pytest.mark.parametrize(
    ("name", "popped"),
    [("bill_ing_orders", True), ("bill_ing+orders", True), ("bill_ing_shop%orders", True), ("bill_ing_other", False),
     ("bill_orders", False), ("bill_ing", False)],
)  # fmt: skip
def test_the_retry_topic_of_a_popped_topic_is_told_by_both_names(name: str, popped: bool) -> None:
    known = {"orders", "ing", "%RETRY%bill_ing", "%RETRY%" + name}
    assert is_popped_retry(name, known) is popped
    assert (name in str(no_such_group("zzz", known))) is not popped


def test_a_long_list_is_cut() -> None:
    assert near("zzz", [f"a{number}" for number in range(10)]).endswith("a7 and 2 more")
