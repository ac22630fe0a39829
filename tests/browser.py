"""A headless Chromium, driven through its DevTools protocol: pages of files or servers, and what they log."""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-extensions", "--mute-audio",
    "--hide-scrollbars", "--disable-dev-shm-usage", "--remote-debugging-port=0", "--remote-allow-origins=*",
)  # fmt: skip
LIMIT_S = 30


def find_browser() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Page:
    """One tab. `problems` are errors that the page logged or threw, `requests` all that it asked for."""

    def __init__(self, address: str) -> None:
        import websocket  # only where a browser was found

        self.socket = websocket.create_connection(address, timeout=LIMIT_S, max_size=None)
        self.numbers = itertools.count(1)
        self.problems: list[str] = []
        self.requests: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **params: Any) -> Any:
        number = next(self.numbers)
        self.socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            message = json.loads(self.socket.recv())
            if message.get("id") == number:
                assert "error" not in message, message["error"]
                return message["result"]
            self._hear(message)

    def _hear(self, message: dict[str, Any]) -> None:
        method, params = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.problems.append(str(details.get("exception", {}).get("description") or details["text"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.problems.append(" ".join(str(arg.get("value", arg)) for arg in params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.problems.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    def close(self) -> None:
        self.ask("Page.close")
        self.socket.close()

    def open(self, page: Path | str) -> None:
        """The file or address is there, its scripts have run, and the first frame was painted."""
        self.problems, self.requests = [], []
        self.ask("Page.navigate", url=page if isinstance(page, str) else page.resolve().as_uri())
        self.wait("document.readyState === 'complete'")

    def run(self, script: str) -> Any:
        """The value of an expression; a promise is waited for."""
        done = self.ask("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def wait(self, condition: str, limit_s: float = LIMIT_S) -> None:
        end = time.monotonic() + limit_s
        while not self.run(f"Boolean({condition})"):
            assert time.monotonic() < end, f"{condition} did not become true; {self.problems}"
            time.sleep(0.02)

    def size(self, width: int, height: int, *, phone: bool = False) -> None:
        scale = 2 if phone else 1
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=phone,
        )

    def prefer(self, scheme: str) -> None:
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.ask("Emulation.setEmulatedMedia", features=[feature])

    def click(self, x: float, y: float) -> None:
        for kind in ("mousePressed", "mouseReleased"):
            self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def type(self, text: str) -> None:
        self.ask("Input.insertText", text=text)

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.ask("Page.captureScreenshot", format="png")["data"]))


@contextmanager
def chromium(program: str, folder: Path) -> Iterator[Callable[[], Page]]:
    """A browser of its own, with an empty profile in `folder`; the value opens tabs."""
    profile = folder / "profile"
    command = [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
    # in a process group of its own: the program may be a script, whose end is not the end of the browser
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env=os.environ | {"HOME": str(folder)}, start_new_session=True,
    )  # fmt: skip
    try:
        port = _port(profile / "DevToolsActivePort", process)
        yield lambda: Page(_new_tab(port))
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # its profile is thrown away: nothing to save
        process.wait(LIMIT_S)


def _port(file: Path, process: subprocess.Popen[bytes]) -> int:
    end = time.monotonic() + LIMIT_S
    while not (file.exists() and file.read_text().strip()):
        assert process.poll() is None, f"the browser ended with {process.returncode}"
        assert time.monotonic() < end, "the browser does not start"
        time.sleep(0.02)
    return int(file.read_text().split()[0])


def _new_tab(port: int) -> str:
    from http.client import HTTPConnection

    connection = HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
    connection.request("PUT", "/json/new?about:blank")
    answer = json.loads(connection.getresponse().read())
    connection.close()
    return str(answer["webSocketDebuggerUrl"])
