"""The same handler in the tasks of a Spark job, in place of supervisor and workers.

`rocketcrew run --engine spark` (room `engine/`) is one streaming query in place of the supervisor and its workers. No
member of the group exists: a group with living members is refused. What is the same is the same code.

- In: the source's stream of all topics and of the group's retry topic, with the column `record` (the message as it is
  stored). Where a new stream begins, or one in queues that are new to it, is the rule of a member
  (supervisor/member/first_offset.py); then Spark's checkpoint counts (`rocketcrew reset` removes it, while the engine
  rests, so that the group's offsets count again), and brokers hear offsets for lag tools. What retention has deleted is
  passed over, as a member would.
- Handler: `mapInArrow` runs the workers' runner: same message object, results, batches, filters, hooks, soft limits.
  A Python process of an executor sets the handler up once a run. Each task writes segments of its own attempt into
  the shared state folder, failed messages into a file, and reports one line; what no report names does not count.
- One batch is a sequence of steps, each of which can be taken up (engine/batches.py): handled, frozen (a manifest),
  failures sent, segments moved into a staging folder, loaded by the loader's own steps, done. So a task or executor
  that dies costs a repetition before anything of it counts; a driver that dies runs the handler again only for a
  batch that was not frozen; and the table is exact by its loaded set, whatever the format. A batch is its offsets, not
  its number: Spark plans a number anew when its record of it was lost (engine/planned.py).
- Failures go out from the driver by an ordinary send to `%RETRY%group`, as Java's client does where a send-back is
  refused; the broker delays and dead-letters. A driver that dies while it sends repeats up to 256 of them.
- Deaths and time limits: a task's cell is a file in the batch's folder. The next attempt of the task reads it: what
  was alone in hand is charged, at `max_worker_deaths` it is a dead letter; what was stopped at the hard limit has
  failed. A death counts when it was seen: by a later attempt of the same job below the same Python daemon. What Spark
  or an operator ends (a lost executor, a cancelled job) leaves no such attempt (engine/hands.py). There is no supervisor
  to watch calls: a thread does, and faulthandler's own where a C loop holds the lock (overtime.py).
- Progress: one log line a batch (progress.py): messages, rate, what waits at the brokers, time left.
- Code travels by `addPyFile`: a zip of what the handler's module had imported from its own folder
  (engine/shipping.py).
- Settings hold, or are refused by name with the reason: one table (engine/fitting.py), of which a test knows that it
  is whole.
- Stop: TERM lets the batch end (`supervisor.stop_deadline_ms`); a second one, or the deadline, cancels it (exit code
  5).
- Replay is the same task over a batch read by times, with nothing sent and nothing loaded. Its rows are compared by
  the origin of the message, the row's number and the user's columns, with what `latest` shows of messages that the
  replay has seen.
- *Not kept*: a coroutine handler has one message in hand at a time; a tear-down hook runs only where Spark ends its
  processes in order; a loop in C over the hard limit counts as a death; message traces and metrics are the
  supervisor's.
"""
