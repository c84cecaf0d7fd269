"""Drive a page in a headless Chromium and evaluate JavaScript in it.

The connection is Chromium's debugging pipe: JSON messages of the Chrome DevTools Protocol, each ended by a zero byte.
It needs neither a port nor a package.
"""

import base64
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# In a container, root has no sandbox and little shared memory.
FLAGS = (
    "--headless", "--remote-debugging-pipe", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=800,600",
    "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update",
    "--disable-sync",
)  # fmt: skip

# Chromium's own driver in software computes WebGPU where there is no GPU; on Linux a flag asks for WebGPU.
WITH_GPU, WITHOUT_GPU = "--enable-unsafe-webgpu", "--disable-gpu"

MICROPHONE = ("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")

# The browser reads commands from file descriptor 3 and answers on 4.
LAUNCH = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.dup2(int(sys.argv[2]), 4)
os.execvp(sys.argv[3], sys.argv[3:])
"""


class Page:
    """A page of a browser. limit: seconds that a wait may take. console: what the page has logged so far."""

    def __init__(self, read: int, write: int, limit: float):
        self._read, self._write, self._limit = read, write, limit
        self._pending, self._calls, self._session = b"", 0, ""
        self.console: list[str] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._call("Runtime.enable")

    def open(self, url: str) -> None:
        """Start to load an address."""
        self._call("Page.navigate", url=url)

    def value(self, expression: str) -> Any:
        """Evaluate a JavaScript expression in the page. Raises RuntimeError if it throws."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']['exception'].get('description')}")
        return answer["result"].get("value")

    def wait_for(self, expression: str, pause: float = 0.02) -> None:
        """Poll until an expression is true in the page. Raises TimeoutError after the limit."""
        end = time.monotonic() + self._limit
        while not self.value(expression):
            if time.monotonic() > end:
                said = " | ".join(self.console) or "nothing"
                raise TimeoutError(
                    f"{expression} did not become true within {self._limit:g} s; the console says: {said}"
                )
            time.sleep(pause)

    def resize(self, width: int, height: int, *, dark: bool = False) -> None:
        """Give the page a window of this size in CSS pixels, on a system that prefers light or dark colours."""
        scale = {"deviceScaleFactor": 1, "mobile": width < 500}
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, **scale)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])

    def screenshot(self) -> bytes:
        """Return the page as a PNG."""
        return base64.b64decode(self._call("Page.captureScreenshot", format="png")["data"])

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        self._calls += 1
        message = {"id": self._calls, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        try:
            os.write(self._write, json.dumps(message).encode() + b"\0")
        except BrokenPipeError:
            raise RuntimeError("the browser exited") from None
        while True:
            answer = self._next_message()
            if answer.get("id") == self._calls:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            if answer.get("method") == "Runtime.consoleAPICalled":
                said = [str(part.get("value", part.get("description"))) for part in answer["params"]["args"]]
                self.console.append(" ".join(said))

    def _next_message(self) -> dict[str, Any]:
        while b"\0" not in self._pending:
            if not select.select([self._read], [], [], self._limit)[0]:
                raise TimeoutError(f"the browser did not answer for {self._limit:g} s")
            read = os.read(self._read, 1 << 16)
            if not read:
                raise RuntimeError("the browser exited")
            self._pending += read
        message, _, self._pending = self._pending.partition(b"\0")
        return json.loads(message)


@contextmanager
def open_chromium(program: str, limit: float, *, webgpu: bool = False, microphone: bool = False) -> Iterator[Page]:
    """Start a browser and yield a page of it; the browser ends with the `with` block.

    microphone: give pages a microphone that beeps, without asking anybody.
    """
    with tempfile.TemporaryDirectory(prefix="chromium.", ignore_cleanup_errors=True) as profile:
        commands, write = os.pipe()
        read, answers = os.pipe()
        line = [sys.executable, "-c", LAUNCH, str(commands), str(answers), program, *FLAGS]
        line += MICROPHONE if microphone else ()
        line += [WITH_GPU if webgpu else WITHOUT_GPU, f"--user-data-dir={profile}"]
        process = subprocess.Popen(line, pass_fds=(commands, answers), stderr=subprocess.DEVNULL)
        os.close(commands)
        os.close(answers)
        try:
            yield Page(read, write, limit)
        finally:
            process.kill()
            process.wait()
            os.close(write)
            os.close(read)
