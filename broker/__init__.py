"""The embedded name server and broker, one process.

Decisions are pure, in `core.py` and `requests/`; disk and sockets are at the edge: `disk.py`, `syncing.py`,
`edge.py`, `server.py`.

What is on disk, in RocketMQ's own form:

- `commitlog/`: all messages in one sequence, in sparse segments of one size, each ended by a BLANK. It is the truth.
- `consumequeue/<topic>/<queue>/`: 20 bytes a message, `index/`: messages by key. The live path makes both from the message in
  hand; a start reads the log from the checkpoint on; either can be made anew from the log, in steps, while others are served.
- `config/*.json` with the generation before as `.bak`, and where that would cost too much, a journal of what changed since
  (journal.py); `checkpoint`, `abort` (there while a broker runs), `lock`.
- `damaged/`: copies of what could not be read. Nothing that cannot be read is ever removed.

Life of a send: the record is appended (a kill loses it no more), its queue entry is hidden; after the round of frames a flush
begins, unless one is under way; a thread waits for the disk and wakes the loop; then the entry is shown, the sender answered,
held pulls are woken, and the next flush begins with all that came meanwhile. So nothing is seen, delivered or acknowledged
that a power cut could take, and tables that say how far delivery came are never ahead of the log.
"""
