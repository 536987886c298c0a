"""An S3 server for tests: moto's, in a thread of the test, with one request at a time, so that conditional puts are atomic.

Clients are other processes, or this one. Faults: conditions are ignored, answers are lost or late, two puts are held until
both have come, or nothing is answered any more.
"""

from __future__ import annotations

import secrets
import threading
from collections import Counter
from collections.abc import Iterable
from typing import Any

from deltalake import DeltaTable
from moto.s3.models import s3_backends
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

HELD_MAX_S = 180.0
"""A put that waits for another one fails after that; it never comes to it."""


class _Quiet(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"

    def log(self, type: str, message: str, *args: Any) -> None:
        """Say nothing: what goes wrong the client says."""


class S3Server:
    """A server on 127.0.0.1 with one new bucket."""

    def __init__(self, *, conditional: bool = True) -> None:
        """`conditional`: whether it looks at If-None-Match."""
        self.bucket = f"bucket-{secrets.token_hex(6)}"
        self.puts: Counter[str] = Counter()
        """How often each key was put, or was to be."""
        self.requests = 0
        self._conditional = conditional
        self._lose: set[str] = set()
        self._hold: dict[str, threading.Barrier] = {}
        self._answers: dict[str, tuple[threading.Event, threading.Event]] = {}
        self.asked_in_silence = threading.Event()
        """A request has come since `fall_silent`."""
        self._silent = False
        self._ended = threading.Event()
        self._one = threading.Lock()
        self._backend = s3_backends["123456789012"]["aws"]
        self._backend.create_bucket(self.bucket, "us-east-1")
        self._app: Any = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True, request_handler=_Quiet)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def options(self) -> dict[str, str]:
        """What goes into spark.options."""
        return {"endpoint": f"http://127.0.0.1:{self._server.server_port}", "allow_http": "true", "region": "us-east-1"}

    @property
    def keys(self) -> dict[str, str]:
        """What goes into the environment. The server takes any."""
        return {"AWS_ACCESS_KEY_ID": "an-id", "AWS_SECRET_ACCESS_KEY": "a-very-secret-key"}

    def url(self, table: str = "warehouse/table") -> str:
        return f"s3://{self.bucket}/{table}"

    def objects(self) -> list[str]:
        """The keys of all objects."""
        with self._one:
            return sorted(self._backend.buckets[self.bucket].keys)

    def delete_all(self, end: str) -> None:
        """Objects whose keys have that end are gone, as by somebody's hand."""
        for key in [key for key in self.objects() if key.endswith(end)]:
            with self._one:
                self._backend.delete_object(self.bucket, key)

    def rows(self, columns: list[str], table: str = "warehouse/table") -> list[tuple[object, ...]]:
        """The rows of a Delta table, in order."""
        named = {f"AWS_{name.upper()}": value for name, value in self.options.items()}
        options = {**named, "AWS_ENDPOINT_URL": self.options["endpoint"], **self.keys}
        found: Any = DeltaTable(self.url(table), storage_options=options).to_pyarrow_table(columns=columns)
        return sorted(tuple(row.values()) for row in found.to_pylist())

    def lose_answer(self, end: str) -> None:
        """The next put of a key with that end is done, and answered by an error."""
        self._lose.add(end)

    def hold_two(self, end: str) -> None:
        """Puts of keys with that end wait until there are two."""
        self._hold[end] = threading.Barrier(2)

    def hold_answer(self, end: str) -> tuple[threading.Event, threading.Event]:
        """The next put of a key with that end is done, which sets the first event; its answer waits for the second one."""
        self._answers[end] = threading.Event(), threading.Event()
        return self._answers[end]

    def fall_silent(self) -> None:
        """From now on requests are taken, and not answered before the end."""
        self._silent = True

    def _answer(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        if self._silent:
            self.asked_in_silence.set()
            self._ended.wait()
            start("503 Service Unavailable", [("Content-Length", "0")])
            return []
        key = environ["PATH_INFO"]
        if environ["REQUEST_METHOD"] == "PUT":
            for end in [end for end in self._hold if key.endswith(end)]:
                self._hold[end].wait(HELD_MAX_S)
                self._hold.pop(end, None)
            for end in [end for end in self._answers if key.endswith(end)]:
                done, goes_on = self._answers.pop(end)
                with self._one:
                    self.puts[key] += 1
                    answer = list(self._app(environ, start))
                done.set()
                goes_on.wait(HELD_MAX_S)
                return answer
        with self._one:
            self.requests += 1
            if environ["REQUEST_METHOD"] != "PUT":
                return list(self._app(environ, start))
            self.puts[key] += 1
            if not self._conditional:
                environ.pop("HTTP_IF_NONE_MATCH", None)
            for end in [end for end in self._lose if key.endswith(end)]:
                self._lose.remove(end)
                list(self._app(environ, lambda *_: None))
                start("500 Internal Server Error", [("Content-Length", "0")])
                return []
            return list(self._app(environ, start))

    def close(self) -> None:
        self._ended.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
