"""A real browser for tests: headless Chromium, driven by its DevTools protocol over a pipe.

Needs no package and no port.
"""

import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.children import GENEROUS_S, popen

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_FLAGS = (
    *(
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
    ),
    *(
        "--disable-component-update",
        "--disable-sync",
        "--disable-dev-shm-usage",
        "--remote-debugging-pipe",
    ),
)
_WAIT_S = GENEROUS_S


def executable() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """An open page, with what it logged and what it asked the network for."""

    def __init__(self, read: int, write: int) -> None:
        self._read, self._write = read, write
        self._buffer = b""
        self._count = 0
        self._session: str | None = None
        # uncaught exceptions and logged errors, such as violations of its policy
        self.errors: list[str] = []
        self.requests: list[str] = []  # the URLs after the first one, data URIs left out

    def open(self, path: Path, width: int = 1280, height: int = 900) -> None:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.resize(width, height)
        self.call("Page.navigate", url=path.resolve().as_uri())
        self.wait_for("document.readyState === 'complete'")
        self.requests = self.requests[1:]

    def resize(self, width: int, height: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def ask(self, expression: str) -> Any:
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait_for(self, expression: str) -> None:
        end = time.monotonic() + _WAIT_S
        while not self.ask(expression):
            if time.monotonic() > end:
                raise TimeoutError(f"{expression} has not become true; errors: {self.errors}")
            time.sleep(0.02)

    def middle(self, selector: str) -> tuple[float, float]:
        box = self.ask(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); "
            f"e.scrollIntoView({{block: 'center'}});"
            " const b = e.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / "
            "2]; })()"
        )
        return float(box[0]), float(box[1])

    def wheel(self, x: float, y: float, turn: float, shift: bool = False) -> None:
        self.call(
            "Input.dispatchMouseEvent",
            type="mouseWheel",
            x=x,
            y=y,
            deltaX=0,
            deltaY=turn,
            modifiers=8 if shift else 0,
        )

    def mouse(self, kind: str, x: float, y: float, pressed: bool = False) -> None:
        press = (
            {}
            if kind == "mouseMoved" and not pressed
            else {"button": "left", "buttons": 1, "clickCount": 1}
        )
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **press)

    def click(self, selector: str) -> None:
        x, y = self.middle(selector)
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.mouse(kind, x, y)

    def key(self, key: str) -> None:
        text = {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def write(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One call of the protocol; what the page says meanwhile is noted."""
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + _WAIT_S
        while True:
            answer = self._next(end)
            if answer.get("id") == self._count:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer.get("method", ""), answer.get("params", {}))

    def _next(self, end: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            if not select.select([self._read], [], [], max(0.0, end - time.monotonic()))[0]:
                raise TimeoutError("the browser does not answer")
            part = os.read(self._read, 1 << 16)
            if not part:
                raise RuntimeError("the browser has ended")
            self._buffer += part
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message

    def _note(self, event: str, said: dict[str, Any]) -> None:
        entry = said.get("entry", {})
        if event == "Runtime.exceptionThrown" or (
            event == "Runtime.consoleAPICalled" and said["type"] in ("error", "assert")
        ):
            self.errors.append(str(said.get("exceptionDetails", said)))
        elif event == "Log.entryAdded" and entry["level"] == "error":
            self.errors.append(str(entry["text"]))
        elif event == "Network.requestWillBeSent" and not said["request"]["url"].startswith(
            "data:"
        ):
            self.requests.append(str(said["request"]["url"]))


@contextmanager
def browser(profile: Path) -> Iterator[Page]:
    """A browser with a new empty profile in ``profile``; it ends with the context."""
    path = executable()
    assert path is not None
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    theirs_in, theirs_out = (fcntl.fcntl(end, fcntl.F_DUPFD, 20) for end in (theirs_in, theirs_out))

    def connect() -> None:
        os.dup2(theirs_in, 3)
        os.dup2(theirs_out, 4)

    how: dict[str, Any] = {
        "stdout": subprocess.DEVNULL,
        "stderr": subprocess.DEVNULL,
        "pass_fds": (3, 4),
    }
    command = [path, *_FLAGS, f"--user-data-dir={profile}"]
    process = popen(command, preexec_fn=connect, start_new_session=True, **how)
    page = Page(ours_in, ours_out)
    try:
        yield page
    finally:
        os.killpg(process.pid, 9)
        process.wait()
        for end in (ours_in, ours_out, theirs_in, theirs_out):
            os.close(end)
