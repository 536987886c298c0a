"""END_TRANSACTION 37, and the questions that it answers: CHECK_TRANSACTION_STATE 39, pushed to producers.

Sources: BR/processor/EndTransactionProcessor.java, BR/transaction/AbstractTransactionalMessageCheckListener.java,
BR/client/ProducerManager.java (getAvailableChannel).
"""

from __future__ import annotations

from dataclasses import replace

from ...remoting.codes import (
    FLAG_ONEWAY,
    SYSFLAG_TRANSACTION_COMMIT,
    SYSFLAG_TRANSACTION_MASK,
    SYSFLAG_TRANSACTION_ROLLBACK,
    RequestCode,
    ResponseCode,
)
from ...remoting.command import Command
from ...remoting.errors import UsageError
from ...remoting.headers import CheckTransaction, EndTransaction
from ...remoting.properties import (
    PROPERTY_CHECK_IMMUNITY_TIME,
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_UNIQ_KEY,
    decode_properties,
)
from ...remoting.stored import StoredMessage, encode_message
from ..refusal import Refused
from ..state import BrokerState, Call
from ..tags import message_tags_code
from ..transactions import GIVEN_UP_TOPIC, HALF_TOPIC, Question, real_message

CODES = (RequestCode.END_TRANSACTION,)
DONE = (SYSFLAG_TRANSACTION_COMMIT, SYSFLAG_TRANSACTION_ROLLBACK)


def handle(state: BrokerState, call: Call) -> Command | None:
    end = EndTransaction.from_fields(call.command.fields)
    if end.commit_or_rollback not in DONE:
        return None  # pending: asked again later
    half = half_message(state, end)
    refuse_too_late(state, call, end, half)
    if not state.transactions.is_open(half.queue_offset):
        return call.command.response(ResponseCode.SUCCESS)  # told twice: once by the sender, once after a question
    if end.commit_or_rollback == SYSFLAG_TRANSACTION_COMMIT:
        commit(state, call.now_ms, half)
    state.transactions.end(call.now_ms, state.store, half)
    return call.command.response(ResponseCode.SUCCESS)


def half_message(state: BrokerState, end: EndTransaction) -> StoredMessage:
    """Raises Refused when what the producer names is no half message of its group."""
    half = state.store.message_at(end.commit_log_offset)
    if half is None or half.topic != HALF_TOPIC:
        raise Refused(ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed")
    if half.properties.get(PROPERTY_PRODUCER_GROUP) != end.producer_group:
        raise Refused(ResponseCode.SYSTEM_ERROR, "The producer group wrong")
    if half.queue_offset != end.tran_state_table_offset:
        raise Refused(ResponseCode.SYSTEM_ERROR, "The transaction state table offset wrong")
    return half


def refuse_too_late(state: BrokerState, call: Call, end: EndTransaction, half: StoredMessage) -> None:
    """Who set an immunity of its own may end a transaction unasked only within it (rejectCommitOrRollback)."""
    if end.from_transaction_check or PROPERTY_CHECK_IMMUNITY_TIME not in half.properties:
        return
    age_ms = call.now_ms - state.clock_ahead_ms - half.born_timestamp_ms
    if age_ms > state.transactions.immunity_ms(half):
        raise Refused(ResponseCode.ILLEGAL_OPERATION, "the transaction is checked already: wait for the question")


def commit(state: BrokerState, now_ms: int, half: StoredMessage) -> None:
    """Store the message where it belongs; one whose topic was deleted meanwhile is dropped with it."""
    message = real_message(half)
    if message.topic not in state.topics:
        return
    sysflag = message.sysflag & ~SYSFLAG_TRANSACTION_MASK | SYSFLAG_TRANSACTION_COMMIT
    message = replace(message, sysflag=sysflag, prepared_transaction_offset=half.physical_offset)
    state.accept(now_ms, message, decode_properties(message.raw_properties))


def ask_due(state: BrokerState, now_ms: int) -> bool:
    """Ask the producers of half messages that are due; True when there were any. Raises
    StorageError, QueueRebuilding."""
    found = False
    for item in state.transactions.due(now_ms, state.store):
        found = True
        if isinstance(item, Question):
            ask(state, item)
        else:
            give_up(state, now_ms, item)
    return found


def ask(state: BrokerState, question: Question) -> None:
    """One member of the group, any: each must be able to answer. With an ACL only those who may send to the topic, as the
    question has the message in it. Nobody there: the next interval, and it counts."""
    members = [
        member
        for member in state.clients.producers(question.group)
        if (account := state.accounts.get(member.channel)) is None or account.may_send(question.shown.topic)
    ]
    if not members:
        return
    half = question.half
    unique = half.properties.get(PROPERTY_UNIQ_KEY)
    header = CheckTransaction(
        tran_state_table_offset=half.queue_offset,
        commit_log_offset=half.physical_offset,
        msg_id=unique,
        transaction_id=unique,
        offset_msg_id=half.offset_message_id,
        topic=question.shown.topic,
        broker_name=state.config.name,
    )
    member = members[state.random.randrange(len(members))]
    body = encode_message(question.shown)
    state.push(member.channel, RequestCode.CHECK_TRANSACTION_STATE, header.to_fields(), body, FLAG_ONEWAY)


def give_up(state: BrokerState, now_ms: int, half: StoredMessage) -> None:
    """Nobody knew for too long (DefaultTransactionalMessageCheckListener.resolveDiscardMsg).

    The copy is some bytes longer than the half message. One that fits no segment is passed over: it stays in the log, and
    an event says where.
    """
    try:
        state.store.put(now_ms, replace(half, topic=GIVEN_UP_TOPIC, queue_id=0), message_tags_code(half))
    except UsageError as error:
        fields: dict[str, object] = {"position": half.physical_offset, "reason": str(error)}
        state.store.events.append(("store.transaction_given_up_without_a_copy", fields))
    state.transactions.end(now_ms, state.store, half)
