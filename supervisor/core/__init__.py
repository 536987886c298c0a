"""The supervisor's decisions, pure: events in, actions out. No socket, clock, thread, random, environment or log, and
nothing of the rooms beside it (`member/`, `pool/`) or above it."""
