"""The processes that run the user's handler and write its rows.

Work. Workers start by forkserver with the handler's modules preloaded, before any thread starts; the handler is
shipped once with dill, messages never are pickled. The forkserver itself dies with the supervisor (a parent-death
signal set in it: workers are its children, so theirs alone does not help), and each generation of user code has its
own. The worker copies its slice out of the slab (a view must never reach the handler), decodes lazily, restores the
original topic of retried messages, checks tags when the filter is by hash, writes the id of what it is about to run
into its cell (a mapped file in the state folder, so that a death, also of the whole container, has one culprit), runs
hooks and handler, appends the message's rows to its open segment, then reports: how many are finished, which of them
failed and why, the time of the calls. Rows of a message that fails are not written. Columns are declared once; with
`results.schema = "infer"` the first rows decide, once for the group on a host (workers/inferring.py). Reports are flushed
when no packet waits. While work goes on they wait for one flush interval (`workers.flush_interval_us`, 5 ms), for 8 where
the supervisor can ask for them during a call, and for 32, or the end of the chunk, where the cell shows all that has
ended (workers/unreported.py).
- *Time limits.* The supervisor watches the cells (one timer, set to the next limit that may be over) and sends
  signals: the soft limit's raises `SoftTimeLimitExceeded` in the handler's own frames, never in the loop's; over the
  hard limit (by default `consume_timeout_min`) comes ABRT, which writes the stack from C, then KILL. That is one
  failed attempt, sent back at level 3 unless `consumer.delay_level_when_next_consume` has another. A worker that has
  messages and whose loop does not move outside of the handler is ended too.
- *Blame.* One table (`supervisor/core/blame.py`) decides whom a death is charged to: the message that was alone in
  hand when the worker crashed or was killed, or when the whole member died; nobody when we ended it (recycling,
  reload, shutdown) or its forkserver died. Of one that stood still outside of the handler all that it had is
  suspected. What the user's filter or key function looks at is in hand as well. A charged message runs again alone
  (`supervisor/core/quarantine.py`); of a batch each half does, until the killer is alone; where the handler takes
  messages one by one, the one taken last is charged at once. One worker at a time is kept for suspects. Counts are in
  `deaths.json` in the slot, written before the message runs again; a cell found set at a start counts once, unless
  the file's header shows that the member was about to stop (a grace period ran out). After `max_worker_deaths` the
  message goes to `%DLQ%` with the facts as `ROCKETCREW_*` properties, by an ordinary send to the retry topic with its
  attempts used up.
"""
