"""A genuine REST catalog in one JVM: the server that Iceberg tests its own clients with, and a proxy that loses answers.

Like RocketMQ 4.9's servers it has no setting for its address, and listens on every one; all requests go to 127.0.0.1.
"""

from __future__ import annotations

import http.client
import json
import re
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Final, Self
from urllib.parse import urlsplit

from hdfs_cluster import hadoop_version
from ports import free_ports
from servers import Java, resolved

from rocketcrew.cli.children import listens

ICEBERG: Final = "1.11.0"
JETTY: Final = "12.1.14"
MAIN: Final = "org.apache.iceberg.rest.RESTCatalogServer"
OPTIONS: Final = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true")
ANSWER_MAX_S: Final = 240.0
COMMIT: Final = re.compile(r".*/tables/[^/]+")
NOT_PASSED_ON: Final = ("host", "connection", "accept-encoding", "content-length", "transfer-encoding")


def server_jars() -> str:
    """The class path; resolved on first use. Raises ServerError."""
    hadoop = hadoop_version()
    return resolved(
        f"iceberg-rest-{ICEBERG}",
        [
            f"org.apache.iceberg:iceberg-open-api:{ICEBERG}:test-fixtures",
            f"org.apache.iceberg:iceberg-core:{ICEBERG}",
            f"org.apache.iceberg:iceberg-core:{ICEBERG}:tests",
            f"org.eclipse.jetty.ee10:jetty-ee10-servlet:{JETTY}",
            f"org.eclipse.jetty.compression:jetty-compression-server:{JETTY}",
            f"org.eclipse.jetty.compression:jetty-compression-gzip:{JETTY}",
            "org.apache.httpcomponents:httpcore:4.4.16",
            "org.xerial:sqlite-jdbc:3.53.4.0",
            f"org.apache.hadoop:hadoop-client-api:{hadoop}",
            f"org.apache.hadoop:hadoop-client-runtime:{hadoop}",
        ],
    )


class IcebergServer:
    """A catalog with its names in a SQLite file in `folder`; it can be stopped, and started again on the same port."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._jars = server_jars()
        self._port = free_ports(1)[0]
        self.uri = f"http://127.0.0.1:{self._port}"
        self._java: Java | None = None
        self.start()

    def start(self) -> None:
        """Returns when it listens. Raises ServerError."""
        env = {
            "CATALOG_REST_PORT": str(self._port),
            "CATALOG_URI": f"jdbc:sqlite:{self._folder / 'names.db'}",
            "CATALOG_CLIENTS": "1",
            "CATALOG_WAREHOUSE": str(self._folder / "warehouse"),
        }
        java = Java("iceberg-rest", self._folder, self._jars, [MAIN], OPTIONS, env)
        try:
            java.wait_for(lambda: listens(self._port), "listen")
        except BaseException:
            java.stop(0)
            raise
        self._java = java

    @property
    def runs(self) -> bool:
        return self._java is not None

    def stop(self) -> None:
        """At once."""
        if self._java is not None:
            self._java.stop(0)
        self._java = None


@dataclass
class _Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class LosingProxy:
    """Passes requests to a catalog, one at a time, but for the commits that are to be lost.

    `faults`: what becomes of commits, by their number from 0: "cut" (it is made, and the connection is closed), "504" (it is
    made, and the answer is that status), "late" (the answer is 504, and it is made just before the next commit), "401" and
    "503" (it is never made, and the answer is that status).
    """

    def __init__(self, uri: str) -> None:
        self._server = urlsplit(uri).netloc
        self._lock = threading.Lock()
        self.faults: dict[int, str] = {}
        self.commits = 0
        self._late: list[_Request] = []
        proxy = self

        class Handler(BaseHTTPRequestHandler):  # HTTP/1.0: no connection outlives its request
            def _do(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                request = _Request(self.command, self.path, dict(self.headers.items()), body)
                answer = proxy.answer(request)
                if answer is None:
                    return
                status, kind, text = answer
                self.send_response(status)
                if kind:
                    self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(text)

            do_GET = do_POST = do_DELETE = do_HEAD = _do  # noqa: N815  names of http.server

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing: what goes wrong the client says."""

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.uri = f"http://127.0.0.1:{self._http.server_port}"
        self._thread = threading.Thread(target=self._http.serve_forever, name="losing-proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def make_late_ones(self) -> None:
        """What is made late is made now."""
        with self._lock:
            self._make_late_ones()

    def _make_late_ones(self) -> None:
        while self._late:
            self._pass_on(self._late.pop())

    def answer(self, request: _Request) -> tuple[int, str, bytes] | None:
        """Status, type of content and content; None where the connection is to be closed."""
        with self._lock:
            fault = ""
            if request.method == "POST" and COMMIT.fullmatch(request.path):
                fault = self.faults.pop(self.commits, "")
                self.commits += 1
                self._make_late_ones()
            if fault == "late":
                self._late.append(request)
            if fault in ("401", "503"):
                said = {"error": {"message": "said by the proxy", "type": "Refused", "code": int(fault)}}
                return int(fault), "application/json", json.dumps(said).encode()
            made = None if fault == "late" else self._pass_on(request)
            if fault == "cut":
                return None
            return (504, "", b"") if made is None or fault == "504" else made

    def _pass_on(self, request: _Request) -> tuple[int, str, bytes]:
        connection = http.client.HTTPConnection(self._server, timeout=ANSWER_MAX_S)
        try:
            headers = {name: value for name, value in request.headers.items() if name.lower() not in NOT_PASSED_ON}
            connection.request(request.method, request.path, request.body or None, headers)
            answer = connection.getresponse()
            return answer.status, answer.headers.get("Content-Type", ""), answer.read()
        finally:
            connection.close()
