"""Models of a folder, loaded when a request names them and put to sleep when nobody uses them."""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from edgeformer.errors import BundleError, RequestError
from edgeformer.manifest.manifest import Manifest
from edgeformer.server.schema.api_errors import ApiError
from edgeformer.server.service.records import LOG, Record
from edgeformer.server.service.served import ServedModel, ServedModels, description

Load = Callable[[Path], list[ServedModel]]
"""Opens a bundle and starts its engine; returns its model, and one for each of its adapters."""

MANIFEST = "edgeformer.json"


@dataclass(eq=False)
class Resident:
    """A model of the folder that is loaded, or that is being loaded.

    users: requests that have it. bytes: of its files. used: when the last of them began or ended. loading: None once it
    sleeps again; timers may still know it then, and must not keep it in memory.
    """

    bytes: int
    loading: "asyncio.Task[list[ServedModel]] | None"
    users: int = 0
    used: float = field(default_factory=time.monotonic)

    @property
    def served(self) -> list[ServedModel]:
        """The model and those with its adapters, once they are loaded."""
        return self.loading.result() if self.is_loaded and self.loading is not None else []

    @property
    def is_loaded(self) -> bool:
        """Whether it is loaded, and does not sleep again."""
        return self.loading is not None and self.loading.done()


class ModelFolder(ServedModels):
    """The models of a server of which some are in a folder, and only those in use are in memory.

    folder: each bundle in it is a model of the name of its own folder; it is looked at again for every request. load:
    opens one. memory: bytes that the files of loaded ones may have; beyond it those that were used longest ago sleep.
    idle_seconds: after that time without a request a model sleeps. A model that a request or a stream uses never does.
    """

    def __init__(
        self, models: Iterable[ServedModel], folder: Path, load: Load, memory: int | None, idle_seconds: float
    ):
        super().__init__(models)
        self._folder = folder
        self._load = load
        self._memory = memory
        self._idle_seconds = idle_seconds
        self._residents: dict[str, Resident] = {}
        self._making_room = asyncio.Lock()
        if not folder.is_dir():
            raise RequestError(f"the folder of models, {folder}, is not there. Make it, or name another one.")

    def __iter__(self) -> Iterator[ServedModel]:
        yield from super().__iter__()
        for resident in list(self._residents.values()):
            yield from resident.served

    def names(self) -> list[str]:
        """Return the names of all models, those that sleep as well."""
        awake = [served.name for served in self]
        return [*awake, *(name for name in self._folders() if name not in awake)]

    def descriptions(self) -> list[dict[str, Any]]:
        """Return the entries of /v1/models; those that sleep have one, too."""
        awake = super().descriptions()
        known = {each["id"] for each in awake}
        asleep = [_described(name, folder) for name, folder in self._folders().items() if name not in known]
        return [*(each | {"loaded": True} for each in awake), *asleep]

    async def use(self, name: str | None, record: Record) -> ServedModel:
        """Return the model of a request, loaded if it was not, and keep it until the request has ended.

        Requests for one model load it once. Raises ApiError with status 404 for a name that none has, and with 503
        where other models are in use and leave no room.
        """
        if name is None and not self._models:
            name = next(iter(self._folders()), None)
        if name is None or name in self._models:
            return self.find(name)
        base = name.partition(":")[0]
        folder = self._folders().get(base)
        if folder is None:
            return self.find(name)
        resident = self._residents.get(base)
        if resident is None:
            task = asyncio.ensure_future(self._wake(base, folder))
            task.add_done_callback(lambda done: self._loaded(base, done))
            resident = self._residents[base] = Resident(_bytes_of(folder), task)
        resident.users += 1
        record.at_end.append(lambda: self._release(base, resident))
        loading = resident.loading
        assert loading is not None
        # The task goes on where this request goes away: another one may wait for it.
        found = {served.name: served for served in await asyncio.shield(loading)}
        return found[name] if name in found else self.find(name)

    async def _wake(self, name: str, folder: Path) -> list[ServedModel]:
        """Load a model, after others have made room for it."""
        started = time.monotonic()
        async with self._making_room:
            await self._make_room(name)
            served = await asyncio.to_thread(self._load, folder)
        LOG.info(
            "a model was loaded", extra={"fields": {"model": name, "seconds": round(time.monotonic() - started, 3)}}
        )
        return served

    def _loaded(self, name: str, task: "asyncio.Task[list[ServedModel]]") -> None:
        """Forget a model that could not be loaded, and let one sleep in time whose requests have all gone away."""
        resident = self._residents[name]
        if task.cancelled() or task.exception() is not None:
            del self._residents[name]
        elif not resident.users:
            self._sleep_later(name, resident)

    async def _make_room(self, name: str) -> None:
        """Put models to sleep until another one has room. Raises ApiError where those in use leave none."""
        if self._memory is None:
            return
        wanted = self._residents[name].bytes
        while True:
            loaded = {key: each for key, each in self._residents.items() if each.is_loaded}
            if sum(each.bytes for each in loaded.values()) + wanted <= self._memory:
                return
            idle = {key: each for key, each in loaded.items() if not each.users}
            if not idle:
                if not loaded:
                    message = f"the files of the model {name!r} are larger than the memory of this server for models."
                    raise ApiError(400, message, code="model_too_large", param="model")
                message = "the models that are in use leave no room for another one. Try again."
                raise ApiError(503, message, code="models_busy", param="model", retry_after=5.0)
            await self._sleep(min(idle, key=lambda key: idle[key].used))

    def _release(self, name: str, resident: Resident) -> None:
        resident.users -= 1
        resident.used = time.monotonic()
        if not resident.users and resident.is_loaded:
            self._sleep_later(name, resident)

    def _sleep_later(self, name: str, resident: Resident) -> None:
        asyncio.get_running_loop().call_later(self._idle_seconds, self._sleep_if_idle, name, resident)

    def _sleep_if_idle(self, name: str, resident: Resident) -> None:
        idle = not resident.users and time.monotonic() - resident.used >= self._idle_seconds * 0.99
        if idle and self._residents.get(name) is resident:
            task = asyncio.ensure_future(self._sleep(name))
            task.add_done_callback(lambda done: done.exception())

    async def _sleep(self, name: str) -> None:
        """Close the engine of a model that nobody uses; its memory is free then."""
        resident = self._residents.pop(name)
        [served, *_] = resident.served
        resident.loading = None
        await asyncio.to_thread(served.engine.close)
        LOG.info("a model was put to sleep", extra={"fields": {"model": name}})

    def _folders(self) -> dict[str, Path]:
        """Return the folders of the bundles by their names, without those of models that are always loaded."""
        found = sorted(path.parent for path in self._folder.glob(f"*/{MANIFEST}"))
        return {path.name: path for path in found if path.name not in self._models}


def _bytes_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _described(name: str, folder: Path) -> dict[str, Any]:
    try:
        changed = (folder / MANIFEST).stat().st_mtime
        manifest = _read(folder, changed)
    except (BundleError, OSError):
        return {"id": name, "object": "model", "owned_by": "edgeformer", "created": 0, "loaded": False}
    return description(name, int(changed), manifest) | {"loaded": False}


@lru_cache(maxsize=256)
def _read(folder: Path, changed: float) -> Manifest:
    """Return the manifest of a bundle. changed: when it was, so that it is read again then."""
    return Manifest.read(folder)
