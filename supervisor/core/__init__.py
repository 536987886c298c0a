"""The supervisor's decisions, pure: events in, actions out.

No socket, clock, thread, random, environment or log, and nothing of the rooms beside it (`member/`, `pool/`) or above
it.

Rebalance every 20 s and when the broker says that members changed: allocate, diff, open, close. Strategies give what
Java's classes give for the same lists (vectors recorded from both versions); a user's own runs in a process of its
own, and what it does wrong leaves all as it was. Where a queue begins, and why, is one log line per queue. Changed
subscriptions end the topic's queues and open them again: an assignment keeps the filter that it began with. A process
queue is *assigned → draining → ended*. Draining pulls and starts nothing, settles successes and seals, discards
failures unsent (the new owner has them), renews the lock if orderly, and has a deadline; ended drops late reports
and counts them. A queue that comes back while it drains is opened only after it ended, and takes over what was
finished. An assignment is replaced, never edited. A late commit never lowers the broker's offset. *Broadcasting*: all
queues without asking for members, no retry topic, a failure is logged and over, offsets in Java's file
(`~/.rocketmq_offsets/<client id>/<group>/ offsets.json`), a slot of its own, and `_group` in the rows' keys is
`group@client id`.

Dispatch. A consume request = (process queue, slot, byte range, queue offsets, attempt). Requests travel to a worker
in *chunks*: one descriptor for as many messages as make about `workers.chunk_target_us` (10 ms) of handler time (by
the slow tail, not the mean; 1 at once after an overrun), or 16 times that where much waits for every worker and calls
are alike (by the mean; sizing.py); two chunks in flight per worker, least loaded first. While messages are so
cheap that waking a sleeping process costs more than the chunk (under 10 µs), the worker that is awake gets them, up
to four chunks (1.8 times the rate, a fifth less supervisor CPU). The consume batch size (messages per handler call,
default 1 as in Java) is the worker's affair. One bounded queue per worker in each direction, never a queue, lock or
semaphore shared by workers: a worker killed while it waits in a shared `Queue.get()` holds the reader lock and stops
the pool (45–60 % of kills of an idle worker). Per-worker SEQPACKET socketpairs survived 800 kills with nothing lost
and are 3–9 times faster; where a platform lacks them, framed stream pairs with the payload inline (also run in CI, by
a setting). *Reclaiming*: a worker that has not reported for 30 ms while another idles and nothing waits gives back
what it has not begun, of the chunk in hand and of the next one; the others get it first, and it gets nothing more
before it has reported what was left to it (`supervisor/core/reclaiming.py`). A worker claims what it is about to run
in its cell: message by message when one takes more than 10 µs, or lately took long, else 20 µs of work at once. Not
in the ordered modes. *Limits of topics* (`workers.topic_concurrency`, `supervisor/core/topic_limits.py`): so many
workers at most have messages of the topic, its retries included, and of a coroutine handler so many messages; what
finds no room waits, others pass it.

Settle. By the ack index each message is done, or is sent back to its broker with its delay level; a refused send-back
is retried from the client, and until one is accepted the message stays in the process queue. The process queue
answers with the offset that may be committed: the smallest one not finished *and durable* (sealed, without rows,
filtered, or its send-back accepted). The journal (append-only file in the slot, checked, bounded) takes every settle,
so that after kill −9 of the supervisor only messages whose outcome was not yet written run again; a committed offset
below the journal's (a reset) discards it for that queue. Another member that takes over repeats what lies above the
broker's offset.

Order. `order = "queue"` and `order = "key"` (a setting, or the handler's decorator; both may not contradict each other) rest
on one rule: a *lane* dispatches nothing while anything of it is in flight, held after a failure, or on its
way back to the broker. A lane is a message queue, or one key of a message queue.

- By queue: one chunk at a time, to the worker that the queue sticks to while that lives. As Java's orderly service:
  an exception or `Suspend` holds the queue for `suspend_current_queue_time_ms` and tries again with reconsumeTimes +
  1, counted in memory; at `max_reconsume_times` (no limit by default) the message goes to the retry topic by an
  ordinary send, where brokers put it into the dead letters. With `auto_commit=False` the worker stages rows and
  outcomes until a `Commit`; a `Rollback`, a death or a leave of the worker runs them again. What is uncommitted keeps
  its bytes and counts as unfinished.
- By key: messages enter the lanes of their keys in the order of offsets, each as a chunk of its own; a dispatch takes
  the next messages of several lanes. The key is a property, looked up by the supervisor, or a function of the user's,
  asked of a worker pull by pull. A failure is held (`order_on_failure = "hold"`, 16 attempts by default) or sent back
  at once ("pass"). A slow or held key holds others up only when the queue is full by its own bounds:
  `consume_concurrently_max_span` offsets after its first unfinished message, or the thresholds. The start of `run`
  logs that bound. The promise is per message queue: producers must choose the queue by key.
- Locks (locking.py): a queue is locked before its first offset is asked for, renewed every 20 s, lost after 30 s
  without a confirmation; without it nothing is pulled or started. It is unlocked after the last commit. The dispatch
  carries the time after which the worker starts nothing and gives the rest back.
- Deaths: the chunks of a dead worker count as in flight until its salvage is complete, so the next worker starts only
  then.
"""
