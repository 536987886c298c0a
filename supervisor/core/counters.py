"""Plain integers that the core counts; metrics, status and the closing summary read them. No lock: one owner."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(slots=True)
class Counters:
    """All since the start of this process; names as exported (`rocketcrew_<name>_total`)."""

    pulls: int = 0
    pulled_messages: int = 0
    pulled_bytes: int = 0
    pull_errors: int = 0
    pulls_expired: int = 0
    """Pulls without any answer for 120 s (never expected, their time-out is shorter): the queue was opened anew."""
    pull_bodies_dropped: int = 0
    """Responses that found no room in the slab: read, dropped and pulled again."""
    trimmed_units: int = 0
    """Units of 16 KiB that slots gave back before they were free as a whole, because bytes ran short."""
    skipped_messages: int = 0
    """Pulled again after a restart or reassignment, but known as finished: not run."""
    undelivered_messages: int = 0
    """Passed over by brokers in queues of which everything is subscribed (outcome `undelivered`)."""
    dispatched_chunks: int = 0
    dispatched_messages: int = 0
    done_messages: int = 0
    failed_messages: int = 0
    filtered_messages: int = 0
    sent_back_messages: int = 0
    send_back_refused: int = 0
    local_retries: int = 0
    """Run again here, because no broker took the send-back."""
    dead_letter_messages: int = 0
    dropped_messages: int = 0
    """Failed while broadcasting: nobody retries them."""
    redispatched_messages: int = 0
    """Given to another worker because theirs died, or was held up by another message."""
    reclaimed_messages: int = 0
    """Reclaimed from a worker that was held up by another message before it had begun them."""
    read_off_messages: int = 0
    """Finished before a long call, and read off their worker's cell during it: its own report came later."""
    salvaged_messages: int = 0
    """Written by a worker that died before it reported them: counted as done."""
    late_reports: int = 0
    late_answers: int = 0
    discarded_failures: int = 0
    """Failures of a queue that was taken away: the new owner has them."""
    held_messages: int = 0
    """Ordered messages that failed and are tried again here."""
    returned_messages: int = 0
    """Ordered messages that a worker gave back unstarted: after a failed one, or too late for the lock."""
    locks_lost: int = 0
    """Locks of open queues that a broker gave to another member, forgot, or did not confirm in time."""
    worker_deaths: int = 0
    charged_deaths: int = 0
    """Deaths of workers for which a message is to blame."""
    timed_out_messages: int = 0
    """Failed because their handler call was stopped at its hard time limit."""
    pop_acks: int = 0
    pop_acks_refused: int = 0
    """Acknowledged too late, or not heard: the broker shows the message again."""
    pop_renewals: int = 0
    pop_renewals_refused: int = 0
    commits: int = 0
    commit_errors: int = 0
    rebalances: int = 0
    unexpected_errors: int = 0
    """Actions, tasks and callbacks that failed in a way nobody expected (see the log), and went on or came again."""
    hook_calls: int = 0
    hook_failures: int = 0
    """Calls of the user's life-cycle hooks that raised, took too long or ended their process."""
    hook_events_dropped: int = 0
    """Too many waited for the hooks."""
    busy_us: int = 0
    """Handler time of all workers together."""
    lost_rows_restarts: int = 0
    """Reported rows that could not be salvaged (never expected): the queue was read again from its commit."""
    invariant_violations: int = 0
    """An offset about to be committed would have passed an unfinished message. Must stay 0."""

    def as_dict(self) -> dict[str, int]:
        return asdict(self)
