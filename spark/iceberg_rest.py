"""pyiceberg's REST catalog with a limit for each wait: pyiceberg waits for ever for a server that does not answer."""

from __future__ import annotations

from typing import Any, Final

import pyiceberg.catalog.rest
from requests.adapters import HTTPAdapter

_module: Any = pyiceberg.catalog.rest
WAIT_MAX: Final = "rest.client.socket-timeout-ms"
"""The property, named as in Iceberg's Java client: how long one request may go without a byte of its answer (ms)."""
WAIT_MAX_MS: Final = 120_000


class LimitedRestCatalog(_module.RestCatalog):  # type: ignore[misc]
    """Each request of it ends. Raises ValueError where WAIT_MAX is no positive number."""

    def _create_session(self) -> Any:
        session: Any = _module.RestCatalog._create_session(self)
        wait_ms = int(self.properties.get(WAIT_MAX, WAIT_MAX_MS))
        if wait_ms <= 0:
            raise ValueError(f"{WAIT_MAX} is {wait_ms}, and must be above 0")
        for scheme in ("http://", "https://"):  # the signer of requests, where there is one, stands at a longer prefix
            session.mount(scheme, _Limited(wait_ms / 1000))
        return session


class _Limited(HTTPAdapter):
    def __init__(self, wait_s: float) -> None:
        self._wait_s = wait_s
        super().__init__()

    def send(self, *args: Any, **options: Any) -> Any:
        """As requests does, with a limit where the caller has set none."""
        options["timeout"] = options.get("timeout") or self._wait_s
        return super().send(*args, **options)
