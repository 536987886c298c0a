"""What `mqadmin consumerStatus` shows of a member of ours, the stacks of all its processes among it."""

from __future__ import annotations

from harness import Crew, wait_until
from servers import Servers

SLOWER = "did not answer within"
"""A supervisor waits a second for the stacks of its processes, and names those that are slower in this way."""


def client_id(crew: Crew) -> str:
    status = crew.status()
    assert status is not None
    return str(status["client_id"])


def running_info(servers: Servers, crew: Crew) -> str:
    """Asked for again until every process has answered."""
    shown: list[str] = []

    def whole() -> bool:
        shown[:] = servers.admin("consumerStatus", "-g", crew.group, "-i", client_id(crew), "-s")
        return not any(SLOWER in line for line in shown)

    wait_until(whole, what="the stacks of all processes")
    return "\n".join(shown)
