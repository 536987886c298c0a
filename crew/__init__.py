"""A supervisor beside a script or a notebook, and what it has made: `Crew`, its rows, and `read` for tables.

`Crew` starts one process (process.py), which is the supervisor with everything that `rocketcrew run` has; nothing of it runs
in the caller's process, whose event loop, threads and signals stay as they are. The two talk in three ways:

- pipes: the settings and the handler go in as one pickle; ready, the error or the summary come out as others;
- the supervisor's control socket, as `rocketcrew status` uses it;
- the broker, which is asked for offsets: it alone knows when a group has consumed everything.

The process is in a session of its own, so that Ctrl-C reaches the caller alone. It ends when the caller does, however that
happens: it watches a descriptor of the caller's process. Nothing is lost by that, as by any kill. A crew whose object is
collected is told to end (living.py).

Rows are read from sealed segments (results.py) unless a table is named; then the loader moves them there.
"""
