"""The edge to children: forkservers, workers, their links, their deaths, their stacks. It imports nothing of `member/` and
nothing of the room above it.

`supervisor/core/staffing.py` decides which workers there should be: events in, actions out; the pool carries them out.
The life of a worker is one record in the core (`Worker`) and one table of states (`WORKER` in `core/states.py`). The
pool holds what belongs to the process: pid, link, cell and stacks (`child.py`).

- Every index has one worker that serves. One that died is replaced at once; one that cannot boot, or dies as soon as
  it is ready with no message to blame, with doubling delays, index by index. Nobody serves and nobody can boot: the
  service leaves the group and ends with 4 and the handler's own error, or with 1 when no process could be made (no memory,
  no descriptors): that may be so no more at the next start. At the start it is enough that one boots; the
  others are tried again.
- A replacement is ready before the one that it replaces leaves. Recycling (messages, memory, age; with jitter),
  reload and rollback go this way, a set share at a time. A worker that leaves gets nothing more, finishes what it
  has, seals, runs its tear-down hook and ends; that charges nobody. Recycling counts one that leaves until it has
  ended, but no longer than its hard time limit; a reload goes on beside those that take more than 10 s.
- The worker itself looks at its memory between messages: at the limit it asks for a successor, at one and a half times
  the limit it reports, seals and ends.
- Reload (`supervisor/core/reloading.py`, one table): a generation is a forkserver of its own with the new code and
  settings. Its first worker boots beside the old ones, so an import error touches nobody; with a canary it works
  beside the one that it will replace until it has done its first messages; then the others follow. Three failed boots
  in a row on the way roll everything back. Settings that a running member can take are one list
  (`supervisor/core/changes.py`); they hold once the reload is through. The membership is not touched: no rebalance.
  The order of messages cannot change this way: settings with another one are refused at once, a handler with another one
  ends the reload at its first boot.
- A thread waits for a forkserver that is importing, never the loop; the main thread always *starts* it.
- A spare is forked a moment after each start, and waits without having run any user code (workers/entry.py). The next
  worker of its generation is made of it: the supervisor sends what a worker is started with, and waits for no fork.
  Half of a start's CPU time, page copies above all, is over by then. The spare ends with its forkserver.
- Stacks are written by faulthandler in the signal's own handler in C, into a nameless file made before the worker
  started, so a C loop that holds the interpreter's lock is no hindrance. A worker that does not answer is sent with
  its kernel state.
- A child that a handler forked and that comes back out of the handler ends there, as a program does at its end; it
  must not go on as a worker. A handler that closes every descriptor spoils its own message: the worker notices before
  it writes, names the unreported messages in its cell and ends.
- Coroutine handlers have up to `workers.async_concurrency` messages in hand on one loop. Each chunk is reported in
  order, many chunks are in hand. The cell names the call whose step runs, also in tasks that the call started
  (`workers/steps.py`, under a microsecond a step): that one is charged, or over its limit when it blocks the loop.
  Where several waited and none ran, a thread or a callback of the handler's did it: each chunk runs alone, unless the
  worker was killed from outside; then nobody is suspected. A crash in such a thread while a step runs is charged to
  that step's message. Both time limits cancel the call. Whatever a call ends with is its message's failure, also a
  cancellation that came from what it awaited.
- Operators ask by signal or control socket (`supervisor/operating.py`); both do the same. Topics come and go by the
  socket only; a SQL filter is asked of a broker first, so that a wrong one changes nothing.
"""
