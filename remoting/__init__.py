"""Floor 1: bytes <-> frames <-> commands <-> messages. Pure: no socket, clock, thread, random or environment."""
