"""pyiceberg's REST catalog with a limit for each wait: pyiceberg waits for ever for a server that does not answer."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import pyiceberg.catalog.rest

_module: Any = pyiceberg.catalog.rest
WAIT_MAX: Final = "rest.client.socket-timeout-ms"
"""The property, named as in Iceberg's Java client: how long one request may go without a byte of its answer (ms)."""
WAIT_MAX_MS: Final = 120_000


class LimitedRestCatalog(_module.RestCatalog):  # type: ignore[misc]
    """What its session sends fails after WAIT_MAX without a byte. Raises ValueError where WAIT_MAX is no positive number.

    pyiceberg's `auth.type` (oauth2, google, entra) asks for its token outside of the session, and so without this limit.
    """

    def _config_headers(self, session: Any) -> None:
        """As pyiceberg does, which calls it with each new session, before the session asks for a token or has a signer."""
        wait_ms = int(self.properties.get(WAIT_MAX, WAIT_MAX_MS))
        if wait_ms <= 0:
            raise ValueError(f"{WAIT_MAX} is {wait_ms}, and must be above 0")
        _module.RestCatalog._config_headers(self, session)
        session.send = partial(_send, session.send, wait_ms / 1000)


def _send(send: Any, wait_s: float, *args: Any, **options: Any) -> Any:
    """As requests does, with a limit where the caller has set none."""
    return send(*args, **options | {"timeout": options.get("timeout") or wait_s})
