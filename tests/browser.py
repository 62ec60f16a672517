"""A real browser without a window, spoken to over a pipe: what a page asks for, measures and looks like."""

import base64
import json
import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def find() -> str:
    """The browser that VIT_BROWSER names or the path has; the test is skipped where there is none."""
    found = os.environ.get("VIT_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)
    if not found:
        pytest.skip("no Chromium is installed; VIT_BROWSER names another one")
    return found


class Browser:
    """One page; commands are those of the DevTools protocol, each a JSON object that ends in a zero byte."""

    def __init__(self, profile: Path):
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        command = (
            f'exec "$0" --headless=new --no-sandbox --disable-gpu --no-first-run --remote-debugging-pipe '
            f'--user-data-dir="{profile}" about:blank 3<&{to_read} 4>&{to_write}'
        )
        quiet = dict(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
        self._process = subprocess.Popen(
            ["bash", "-c", command, find()], pass_fds=(to_read, to_write), **quiet
        )
        os.close(to_read)
        os.close(to_write)
        self._buffer, self._number, self._session = b"", 0, None
        self.events: list[dict[str, Any]] = []
        (page,) = [one for one in self("Target.getTargets")["targetInfos"] if one["type"] == "page"]
        self._session = self("Target.attachToTarget", targetId=page["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime"):
            self(f"{domain}.enable")

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_) -> None:
        with suppress(OSError):
            os.close(self._write)
        self._process.terminate()
        self._process.wait(timeout=20)
        os.close(self._read)

    def __call__(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Give a command and wait for its result; events that come before it are kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            self.events.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def open(self, url: str, *, width: int, height: int = 900, is_dark: bool = False) -> None:
        """Load a page in a window of this size, a phone's below 600 pixels, and wait until it is there."""
        is_phone = width < 600
        size = dict(width=width, height=height, deviceScaleFactor=2 if is_phone else 1, mobile=is_phone)
        self("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self("Emulation.setEmulatedMedia", features=[scheme])
        self.events.clear()
        self("Page.navigate", url=url)
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())

    def value(self, expression: str) -> Any:
        """Of a JavaScript expression in the page."""
        return self("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def requests(self) -> list[str]:
        """Everything the page has asked for since it was opened, itself first."""
        sent = [
            event["params"] for event in self.events if event.get("method") == "Network.requestWillBeSent"
        ]
        return [one["request"]["url"] for one in sent]

    def screenshot(self, path: Path) -> None:
        """The whole page, from its top to its end."""
        taken = self("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(taken["data"]))

    def pdf(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self("Page.printToPDF", printBackground=False)["data"]))

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            read = os.read(self._read, 1 << 20)
            assert read, "the browser has ended"
            self._buffer += read
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)
