"""A headless Chromium, driven by its own protocol over a pipe (https://chromedevtools.github.io/devtools-protocol)."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from terminal import LIMIT_S, ends_with_us, environment

CHROMIUM: Final = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
POLL_S: Final = 0.1
READ_BYTES_MAX: Final = 1 << 20
KEYS: Final = {"Tab": (9, ""), "Enter": (13, "\r"), " ": (32, " ")}
"""Key codes and what they type."""
TO_CHROMIUM, FROM_CHROMIUM = 3, 4
"""The descriptors that it uses with --remote-debugging-pipe."""


class Screen(NamedTuple):
    """In CSS pixels."""

    width: int
    height: int
    mobile: bool


class Browser:
    """One tab; a context manager, at whose end nothing of it runs. `folder` gets its profile."""

    def __init__(self, folder: Path) -> None:
        assert CHROMIUM is not None
        theirs_in, self._to = os.pipe()
        self._from, theirs_out = os.pipe()
        # Above the numbers that they get in the child; the pipes above hold these, so that nothing of Popen's has them.
        high = [fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 10) for number in (theirs_in, theirs_out)]
        self._process = subprocess.Popen(
            [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe",
             "--no-first-run", f"--user-data-dir={folder}/browser", "about:blank"],
            env=environment(HOME=str(folder)), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, pass_fds=(TO_CHROMIUM, FROM_CHROMIUM), start_new_session=True,
            preexec_fn=_begin(*high),  # noqa: PLW1509  system calls only
        )  # fmt: skip
        for number in (*high, theirs_in, theirs_out):
            os.close(number)
        self._rest = b""
        self._calls = 0
        self._session = ""
        try:
            target = self.call("Target.createTarget", url="about:blank")["targetId"]
            self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        except BaseException:
            self._kill()
            raise

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command, and its result. Fails when it is refused or not answered."""
        self._calls += 1
        sent = {"id": self._calls, "method": method, "params": parameters}
        if self._session:
            sent["sessionId"] = self._session
        os.write(self._to, json.dumps(sent).encode() + b"\0")
        deadline = time.monotonic() + LIMIT_S
        while True:
            answer = self._next(deadline)
            if answer.get("id") == self._calls:
                assert "error" not in answer, f"{method} {parameters}: {answer['error']}"
                found: dict[str, Any] = answer["result"]
                return found

    def _next(self, deadline: float) -> dict[str, Any]:
        """The next message, also one that nobody waits for."""
        while b"\0" not in self._rest:
            data = self._heard(deadline)
            assert data, f"the browser ended with {self._process.wait()}"
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(line)
        return found

    def _heard(self, deadline: float) -> bytes:
        """What it says next, in any pieces; nothing once it has ended."""
        poll = select.poll()  # select() takes no numbers above 1024
        poll.register(self._from, select.POLLIN)
        left = deadline - time.monotonic()
        assert poll.poll(max(left, 0) * 1_000), f"the browser said nothing for {LIMIT_S} s"
        return os.read(self._from, READ_BYTES_MAX)

    def look(self, screen: Screen, *, dark: bool = False) -> None:
        """The screen, and what its owner likes."""
        self.call("Emulation.setDeviceMetricsOverride", **screen._asdict(), deviceScaleFactor=1)
        scheme = "dark" if dark else "light"
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def open(self, url: str) -> None:
        """Go there; what is on the page is waited for by `until`."""
        assert "errorText" not in self.call("Page.navigate", url=url)

    def value(self, expression: str) -> Any:
        """What a JavaScript expression is in the page. Fails when it raises."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, expression: str) -> Any:
        """The expression's first value that is true."""
        deadline = time.monotonic() + LIMIT_S
        while not (found := self.value(expression)):
            text = self.value("document.body ? document.body.innerText : ''")
            assert time.monotonic() < deadline, f"{expression} did not come true within {LIMIT_S} s:\n{text}"
            time.sleep(POLL_S)
        return found

    def press(self, key: str) -> None:
        """One of KEYS."""
        code, text = KEYS[key]
        common = {"key": key, "code": "Space" if key == " " else key, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", text=text, **common)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def type(self, text: str) -> None:
        """Into what has the focus."""
        self.call("Input.insertText", text=text)

    def screenshot(self, file: Path) -> None:
        """The whole page."""
        shown = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(shown["data"]))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            os.write(self._to, json.dumps({"id": 0, "method": "Browser.close"}).encode() + b"\0")
            deadline = time.monotonic() + LIMIT_S
            while self._heard(deadline):  # what it still says must not fill the pipe
                pass
            self._process.wait(LIMIT_S)
        finally:
            self._kill()

    def _kill(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._to)
        os.close(self._from)


def _begin(theirs_in: int, theirs_out: int) -> Callable[[], None]:
    tied = ends_with_us()

    def begin() -> None:
        os.dup2(theirs_in, TO_CHROMIUM)
        os.dup2(theirs_out, FROM_CHROMIUM)
        tied()

    return begin
