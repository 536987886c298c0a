"""The embedded name server and broker, one process.

Decisions are pure, in `core.py` and `requests/`; disk and sockets are at the edge.
"""
