"""The models of a server: each a bundle with an engine of its own, chosen by its name."""

import dataclasses
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from edgeformer.config import Form, Task
from edgeformer.errors import RequestError
from edgeformer.manifest.manifest import Manifest
from edgeformer.runtime import CausalLM, DualEncoder, Encoder, Engine, Seq2SeqLM, VisionEncoder, load
from edgeformer.runtime.tasks.model import Model
from edgeformer.runtime.text.tokenizer import Tokenizer
from edgeformer.server.schema.api_errors import ApiError
from edgeformer.server.service.records import Record
from edgeformer.server.tool_calls.format import ToolFormat
from edgeformer.server.tool_calls.table import FORMATS, recognise

M = TypeVar("M", bound=Model)

ROUTES: dict[Form, str] = {
    "decoder": "/v1/chat/completions, /v1/responses or /v1/completions",
    "encoder-decoder": "/v1/completions",
    "encoder": "/v1/embeddings",
}
"""Where requests to a model of each form go, for errors."""

DEFAULT_QUEUE = 256
"""Requests that wait in an engine at most, where it is not told."""


@dataclass(frozen=True)
class ServedModel:
    """A model and the engine that computes it. name: what requests call it. created: seconds since 1970.

    adapter: the LoRA adapter that its requests run with, over the engine of the model without one. tool_format_name:
    the format of its tool calls, if it is not the one that its chat template asks for. max_queue: requests that wait in
    its engine, at most.
    """

    name: str
    model: CausalLM | Seq2SeqLM | Encoder | VisionEncoder | DualEncoder
    engine: Engine
    adapter: str | None = None
    tool_format_name: str | None = None
    max_queue: int = DEFAULT_QUEUE
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def task(self) -> Task:
        """The task of its bundle."""
        return self.model.manifest.task

    @property
    def reads_pictures(self) -> bool:
        """Whether it reads pictures."""
        return self.model.manifest.pictures is not None

    @property
    def hears(self) -> bool:
        """Whether it reads recordings beside text."""
        return self.task == "audio-text-to-text"

    @property
    def context_length(self) -> int:
        """Tokens of a prompt and its answer at most."""
        return self.model.manifest.context_length

    @property
    def tokenizer(self) -> Tokenizer:
        """Its tokenizer. Raises RequestError for a bundle without one."""
        return self.model.require_tokenizer()

    def spelled(self, token: int) -> bytes:
        """Return the bytes of a token; nothing for an id that the tokenizer does not use."""
        vocabulary = self.tokenizer.vocabulary
        return vocabulary[token] if token < len(vocabulary) else b""

    @property
    def is_speech(self) -> bool:
        """Whether it is a speech model."""
        return isinstance(self.model, Seq2SeqLM) and self.model.is_speech

    @property
    def picture_transcriber(self) -> Seq2SeqLM | None:
        """The model, if it is an encoder-decoder that reads pictures, and no text."""
        model = self.model
        return model if isinstance(model, Seq2SeqLM) and model.manifest.transcribes_pictures else None

    @cached_property
    def tool_format(self) -> ToolFormat | None:
        """The format of tool calls that its chat template asks for, or None."""
        if self.tool_format_name is not None:
            return FORMATS[self.tool_format_name]
        return recognise(self.tokenizer.chat_template or "")

    @cached_property
    def special_marks(self) -> dict[str, int]:
        """Marks of its format of tool calls that are special tokens, and the id of each."""
        if self.tool_format is None:
            return {}
        added = self.tokenizer.backend.get_added_tokens_decoder().items()
        return {token.content: id for id, token in added if token.special and token.content in self.tool_format.marks}

    @property
    def description(self) -> dict[str, Any]:
        """The entry of /v1/models."""
        parent = {} if self.adapter is None else {"parent": self.name.removesuffix(f":{self.adapter}")}
        return description(self.name, self.created, self.model.manifest) | parent

    def require(self, *kinds: type[M]) -> M:
        """Return the model. Raises ApiError unless it is of one of these kinds, and reads text."""
        if isinstance(self.model, kinds) and not self.is_speech and self.picture_transcriber is None:
            return self.model
        raise self._wrong_route()

    def require_speech(self) -> Seq2SeqLM:
        """Return the model. Raises ApiError unless it is a speech model."""
        if not isinstance(self.model, Seq2SeqLM) or not self.model.is_speech:
            raise self._wrong_route()
        return self.model

    def require_ranking(self) -> Encoder:
        """Return the model. Raises ApiError unless it scores documents: by pairs, or by their tokens."""
        model = self.require(Encoder)
        if not model.ranks:
            raise self._wrong_route()
        return model

    def _wrong_route(self) -> ApiError:
        route = "/v1/audio/transcriptions" if self.is_speech else ROUTES[self.model.manifest.form]
        if self.picture_transcriber is not None:
            route = "/v1/chat/completions or /v1/responses, with a message of one picture"
        if isinstance(self.model, Encoder) and self.model.ranks:
            route = "/v1/rerank or /v1/embeddings"
        message = f"the model {self.name!r} is not for this route; it answers at {route}."
        return ApiError(400, message, code="wrong_model", param="model")


def description(name: str, created: int, manifest: Manifest) -> dict[str, Any]:
    """Return the entry of /v1/models."""
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "edgeformer",
        "task": manifest.task,
        "context_length": manifest.context_length,
        "input_modalities": _input_modalities(manifest),
    }


def _input_modalities(manifest: Manifest) -> list[str]:
    """Return what a model reads: text, image, audio."""
    if getattr(getattr(manifest.model, "encoder", None), "audio", None) is not None:
        return ["audio"]
    if manifest.task == "vision-encoder" or manifest.transcribes_pictures:
        return ["image"]
    sounds = ["audio"] if manifest.task == "audio-text-to-text" else []
    return ["text", *(["image"] if manifest.pictures is not None else sounds)]


class ServedModels:
    """All models of a server, by name. The first one answers requests that name none."""

    def __init__(self, models: Iterable[ServedModel]):
        self._models = {model.name: model for model in models}

    def __iter__(self) -> Any:
        return iter(self._models.values())

    @property
    def bases(self) -> list[ServedModel]:
        """The models without an adapter: one for each engine."""
        return [served for served in self if served.adapter is None]

    def names(self) -> list[str]:
        """Return the names of all models."""
        return [served.name for served in self]

    def descriptions(self) -> list[dict[str, Any]]:
        """Return the entries of /v1/models."""
        return [served.description for served in self]

    @property
    def any_reads_media(self) -> bool:
        """Whether a model reads pictures, or recordings beside text, those included that sleep."""
        read = [set(each.get("input_modalities", ())) for each in self.descriptions()]
        return any("image" in each or {"text", "audio"} <= each for each in read)

    async def use(self, name: str | None, record: Record) -> ServedModel:
        """Return the model of a request, which has it until it has ended. Raises ApiError as `find`."""
        return self.find(name)

    def find(self, name: str | None) -> ServedModel:
        """Return the model of a request. Raises ApiError with status 404 for a name that none has."""
        if name is None and self._models:
            return next(iter(self._models.values()))
        if name is None or name not in self._models:
            message = f"there is no model {name!r} here; there is {', '.join(self.names())}."
            raise ApiError(404, message, code="model_not_found", param="model")
        return self._models[name]

    def close(self, drain: bool) -> None:
        """Close all engines. drain: finish what runs, instead of cancelling it."""
        for served in self.bases:
            served.engine.close(drain=drain)


def load_models(
    bundles: Sequence[str | Path],
    provider: Any = "auto",
    threads: int | None = None,
    engine_options: Mapping[str, Any] | None = None,
    draft: str | Path | None = None,
    tool_format: str | None = None,
    cache_precision: Any = None,
) -> ServedModels:
    """Open bundles and start an engine for each; a model has the name of its folder.

    On the CPU each adapter of a bundle is a model, too, over the same engine: `FOLDER:ADAPTER`.

    engine_options: keywords of `Engine`. draft: bundle of a smaller model with the same tokenizer, which drafts tokens,
    or `mtp` for the model's own layer; for a single bundle. tool_format: the name of the format of tool calls of all
    models; None for what their chat templates ask for. cache_precision: as `load` takes it. Raises RequestError for two
    folders of one name, for a draft model of several bundles, and what `load` raises.
    """
    folders = [Path(bundle) for bundle in bundles]
    names = [folder.resolve().name for folder in folders]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise RequestError(f"two bundles are called {twice[0]}; requests could not choose. Rename one of the folders.")
    if not folders:
        raise RequestError("there is no bundle to serve; give the folder of one.")
    if draft is not None and len(folders) > 1:
        raise RequestError(
            "a draft model drafts for one bundle, and several are to be served. Serve that one by itself."
        )
    given = provider, threads, engine_options, draft, tool_format, cache_precision
    served = [load_model(folder, *given) for folder in folders]
    return ServedModels([*(each[0] for each in served), *(adapted for each in served for adapted in each[1:])])


def load_model(
    folder: Path,
    provider: Any = "auto",
    threads: int | None = None,
    engine_options: Mapping[str, Any] | None = None,
    draft: str | Path | None = None,
    tool_format: str | None = None,
    cache_precision: Any = None,
) -> list[ServedModel]:
    """Open a bundle and start its engine; return its model, and one for each of its adapters, as `load_models`."""
    model = load(folder, provider, threads, draft=draft, cache_precision=cache_precision)
    options = dict(engine_options or {})
    served = ServedModel(
        folder.resolve().name,
        model,
        Engine(model, **options),
        tool_format_name=tool_format,
        max_queue=options.get("max_queue", DEFAULT_QUEUE),
    )
    return [served, *_with_adapters(served)]


def _with_adapters(served: ServedModel) -> list[ServedModel]:
    """Return a model with each adapter of its bundle."""
    model = served.model
    # An engine runs adapters on the CPU.
    adapters = model.adapters if isinstance(model, CausalLM) and not model.provider.on_device else ()
    return [dataclasses.replace(served, name=f"{served.name}:{adapter}", adapter=adapter) for adapter in adapters]
