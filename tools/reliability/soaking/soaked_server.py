"""The server of a soak, in a process of its own: its memory, its statistics, and its death."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from reliability.soaking.soak_client import get
from reliability.soaking.soak_requests import BODY_BYTES

READY_SECONDS = 120
IDLE_SECONDS = 60
"""Time after the last request within which every row has to be free."""


class SoakedServer:
    """A process of `edgeformer serve`. rows, queue: its limits. limits: values of further options, by their names."""

    def __init__(self, bundles: list[Path], rows: int, queue: int, limits: Mapping[str, float] = MappingProxyType({})):
        self._command = [
            sys.executable, "-m", "edgeformer", "serve", *map(str, bundles), "--max-rows", str(rows),
            "--max-queue", str(queue), "--max-body-bytes", str(BODY_BYTES),
            *(text for name, value in limits.items() for text in (f"--{name}", f"{value:g}")),
        ]  # fmt: skip
        self.port = 0

    def start(self) -> None:
        """Start it, at the port that it had before, and wait until it listens; call it in a thread of its own."""
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115  (stop closes it)
        environment = {name: value for name, value in os.environ.items() if name != "EDGEFORMER_API_KEY"}
        self._process = subprocess.Popen(
            [*self._command, "--port", str(self.port)], stderr=self._log, env=environment, text=True
        )
        until = time.monotonic() + READY_SECONDS
        while not self.port or not self._answers():
            if self._process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"the server did not start: {self.log()}")
            if not self.port and (found := re.search(r'"url": "http://127.0.0.1:(\d+)"', self.log())):
                self.port = int(found[1])
            time.sleep(0.02)

    def _answers(self) -> bool:
        try:
            return asyncio.run(get(self.port, "/ready")).status == 200
        except (OSError, EOFError):
            return False

    def log(self) -> str:
        """Return what it has written so far."""
        return os.pread(self._log.fileno(), 1 << 30, 0).decode(errors="replace")

    def tracebacks(self) -> Counter[str]:
        """Return the last lines of the tracebacks in its log, with how often each is there; there must be none."""
        lines = [line for line in self.log().splitlines() if "raceback" in line]
        texts = [json.loads(line).get("traceback", line) if line.startswith("{") else line for line in lines]
        return Counter(text.splitlines()[-1] for text in texts)

    def memory(self) -> int:
        """Return the bytes that it has in memory."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found is not None, "Linux tells the memory of every process"
        return int(found[1]) * 1024

    def files(self) -> int:
        """Return how many files and connections it has open."""
        return len(os.listdir(f"/proc/{self._process.pid}/fd"))

    async def statistics(self) -> dict[str, float]:
        """Return the sums over its models of its metrics that have no other label."""
        sums: dict[str, float] = {}
        for line in (await get(self.port, "/metrics")).body.decode().splitlines():
            if found := re.fullmatch(r'edgeformer_(\w+)\{model="[^"]*"\} (\S+)', line):
                sums[found[1]] = sums.get(found[1], 0.0) + float(found[2])
        return sums

    async def idle(self, seconds: float = IDLE_SECONDS) -> dict[str, Any] | None:
        """Wait until no request waits or runs; return the statistics, or None if that does not come true in time."""
        until = time.monotonic() + seconds
        while (now := await self.statistics())["waiting"] or now["running"] or now["cache_bytes"]:
            if time.monotonic() > until:
                return None
            await asyncio.sleep(0.1)
        return now

    def kill(self) -> None:
        """Kill it at once, by SIGKILL."""
        self._process.kill()
        self._process.wait()
        self._log.close()

    def stop(self) -> int:
        """Stop it by SIGTERM; return its exit code."""
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(timeout=READY_SECONDS)
        self._log.close()
        return code
