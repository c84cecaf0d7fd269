"""Rows that kill the process which runs them, found by what earlier attempts at a shard left behind.

Ray starts a shard again wherever its worker died, without end. A worker therefore counts its attempts beside the
commits, in `_job/attempts/`. From attempt CALM + 1 on it first runs every row by itself, and writes which one before.
A row during which MOST_DEATHS workers died becomes an error row; one death may have been anybody's.
"""

import json
from collections.abc import Callable
from typing import Any

from edgeformer.batch.storage import Folder
from edgeformer.errors import RequestError

CALM = 2
"""Attempts at a shard that run it as a whole. Two workers may have died for reasons of their own."""

MOST_DEATHS = 2
"""Workers that may die while they run one row."""


class Attempts:
    """Earlier attempts at the shard of an index, by the workers of a job."""

    def __init__(self, folder: Folder, index: int, job: str):
        self._folder, self._name = folder, f"_job/attempts/{index:08d}.json"
        found = folder.read_json(self._name)
        if found is None or found["job"] != job:
            found = {"job": job, "attempts": 0, "running": None, "deaths": {}}
        self._state: dict[str, Any] = found
        if found["running"] is not None:
            deaths = found["deaths"]
            deaths[str(found["running"])] = deaths.get(str(found["running"]), 0) + 1
            found["running"] = None
        found["attempts"] += 1
        self._write()

    def replace_deadly(self, prompts: list[Any], run_alone: Callable[[int], None]) -> list[Any]:
        """Return prompts with an error in the place of each row that kills its worker.

        run_alone: runs the row of a place by itself. It is called in attempts after the first CALM ones, for rows that
        no worker has survived or died of often enough, and its process may end in it.
        """
        if self._state["attempts"] <= CALM:
            return prompts
        for place, prompt in enumerate(prompts):
            if isinstance(prompt, Exception) or self._deaths(place) >= MOST_DEATHS:
                continue
            self._state["running"] = place
            self._write()
            run_alone(place)
        self._state["running"] = None
        return [
            RequestError(f"{MOST_DEATHS} workers died while they ran this row alone.")
            if self._deaths(place) >= MOST_DEATHS
            else prompt
            for place, prompt in enumerate(prompts)
        ]

    def end(self) -> None:
        """Forget the attempts of a shard that is committed."""
        self._folder.remove(self._name)

    def _deaths(self, place: int) -> int:
        return int(self._state["deaths"].get(str(place), 0))

    def _write(self) -> None:
        self._folder.write(self._name, json.dumps(self._state).encode())
