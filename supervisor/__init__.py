"""The process that is the group member: life, signals and control, slot, loader child, metrics and status.

Decisions are in `core/`, the edge to brokers in `member/`, the edge to children in `pool/`.

Start. Configuration is checked whole (the rules of RocketMQ's own clients), subscriptions are copied, `%RETRY%group`
is added (clustering), workers are started and must say they are ready *before* the first pull; then name-server
lookup, connections, heartbeats, offsets, a first rebalance. Every check of Java's checkConfig is a line of one table
(checks.py), with Java's words (held against both genuine classes), the setting and a remedy. Service states
CREATE_JUST → RUNNING → SHUTDOWN_ALREADY, or START_FAILED (as in Java also while it starts), are one table. One client
id is in a group once: a lock beside the slots. State lives in `data_dir/<group>/<slot>`, a slot being a folder locked
by flock (never named by client id, which changes at each start); a start takes over the journal and segments of slots
that nobody holds, and a member that runs takes what is sealed there.

Stop. TERM: start nothing above the highest dispatched offset; finish what is at or below it (failures are sent back)
and begins within 2 s, settle, seal, commit, unregister, let workers end and the loader finish its batch, close;
undispatched messages are dropped unrun. Past the deadline the duplicates to expect are counted and printed. A second
TERM is quick. The most that each step takes: `supervisor.stop_deadline_ms` (24 s), workers 5 s, the loader 60 s, hooks 3 s.
"""
