"""Generate with a decoder-only language model."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, Literal, Unpack, cast, overload

import numpy as np
from numpy.typing import NDArray

from edgeformer.config import DecoderConfig
from edgeformer.errors import RequestError
from edgeformer.manifest.manifest import Manifest
from edgeformer.runtime import request_values
from edgeformer.runtime.caches.encoder_outputs import check_length
from edgeformer.runtime.generation.chat_stream import ChatStream
from edgeformer.runtime.generation.generate import start_rows
from edgeformer.runtime.generation.generation_config import CallOptions, GenerationConfig, GenerationOptions
from edgeformer.runtime.generation.make_row import make_row
from edgeformer.runtime.generation.row import DEFAULT_NEW_TOKENS, Generation, Row
from edgeformer.runtime.generation.sampling.logits_processors import LogitsProcessor
from edgeformer.runtime.generation.scheduling import (
    Beginnings,
    GenerationStream,
    PrefixBeginnings,
    SampleBeginnings,
    ScheduledRequest,
    Scheduler,
)
from edgeformer.runtime.generation.speculation import (
    DraftLength,
    DraftModel,
    MultiTokenPrediction,
    check_same_tokens,
    keep_states,
)
from edgeformer.runtime.generation.speculation.draft_length import TRAINED_CREDIT
from edgeformer.runtime.generation.speculation.row_drafts import RowDrafts, drafts_of
from edgeformer.runtime.media.pictures.picture_files import Picture
from edgeformer.runtime.media.sound.recordings import Sound
from edgeformer.runtime.prefixes.prefix_cache import PrefixCache
from edgeformer.runtime.prefixes.session_file import read_session, write_session
from edgeformer.runtime.sessions.graphs.first_tokens import are_mostly_first, with_first_tokens
from edgeformer.runtime.sessions.graphs.int8_cache import mtp_geometry, open_over
from edgeformer.runtime.sessions.session import SessionSettings
from edgeformer.runtime.steps.adapters import AdaptedSession, Tensors, adapter_names, read_adapter
from edgeformer.runtime.steps.device import CapturedSteps
from edgeformer.runtime.steps.new_decoder import new_decoder
from edgeformer.runtime.steps.picture_rows import PictureRows
from edgeformer.runtime.steps.row_adapters import RowAdapters
from edgeformer.runtime.steps.runner import StepRunner
from edgeformer.runtime.tasks.model import Model, Text, is_batch
from edgeformer.runtime.text.thinking.reader import new_thinking
from edgeformer.runtime.text.tokenizer import Message, Tool

MTP: Literal["mtp"] = "mtp"
"""The draft that is the model's own layer of multi-token prediction."""

PREFIX_BYTES = 256 * 2**20
"""Bytes of conversations that `chat` keeps: 5,800 tokens at SmolLM2-135M's geometry in float32."""


MEDIA = {"images": "pictures", "sounds": "recordings"}
"""Words for what comes with prompts, by the argument of a call."""


class DecoderCall(CallOptions, total=False):
    """Keywords of the overloads of `CausalLM.generate`."""

    adapter: str | None
    images: Any
    sounds: Any


@dataclass(frozen=True)
class SeenPrompt:
    """A prompt with pictures or recordings.

    Attributes:
        tokens: of the prompt, with numbers that stand for the states of pictures or recordings.
        shown: the same with the token of their placeholders instead.
        pictures: None where the prompt has none.
    """

    tokens: list[int]
    shown: list[int]
    pictures: PictureRows | None

    def __len__(self) -> int:
        return len(self.tokens)


class CausalLM(Model):
    """A decoder-only language model.

    prefix_cache: what `chat` keeps of its conversations; a `max_bytes` of 0 keeps nothing more. reads: the argument of
    calls by which it reads more than text, `images` or `sounds`; None for a model that reads text alone.
    """

    reads: ClassVar[str | None] = None

    def __init__(self, folder: Path, manifest: Manifest, settings: SessionSettings):
        super().__init__(folder, manifest, settings)
        self._adapters: dict[str, Tensors] = {}
        self.prefix_cache = PrefixCache(PREFIX_BYTES)
        self.draft: CausalLM | None = None
        self.drafts_by_mtp = False
        self._captured = CapturedSteps(manifest.context_length) if self.captures else None

    def use_draft(self, draft: "CausalLM | Literal['mtp'] | None") -> None:
        """Let another model draft tokens for requests of one prompt that ask for no prompt lookup; None for no model.

        `mtp` is the model's own layer of multi-token prediction. Raises RequestError for a bundle without one, for a
        model with another tokenizer, and for anything but a decoder-only model.
        """
        by_mtp = isinstance(draft, str) and draft == MTP
        if by_mtp:
            self._check_mtp()
        elif draft is not None:
            if not isinstance(draft, CausalLM):
                raise RequestError(
                    f"draft is {request_values.shown(draft)}; it must be a decoder-only model, as load returns it."
                )
            sizes = self.manifest.vocab_size, draft.manifest.vocab_size
            check_same_tokens(self.tokenizer, draft.tokenizer, sizes)
        self.drafts_by_mtp = by_mtp
        self.draft = draft if isinstance(draft, CausalLM) else None

    def _check_mtp(self) -> None:
        """Raise RequestError unless a layer of the bundle can draft tokens here."""
        if "mtp" not in self.manifest.graphs:
            raise RequestError(
                f"{self.folder} has no layer of multi-token prediction, which would draft tokens. Export a checkpoint "
                "that has one with --mtp, or leave draft out."
            )
        if self.provider.on_device:
            raise RequestError(
                f"drafts by mtp are for the CPU, and the model runs on {self.provider.title}. Leave draft out, or load "
                "it with provider='cpu'."
            )

    @cached_property
    def generation_config(self) -> GenerationConfig:
        """The config of a call that gives none: greedy, without rules.

        For the sampling that the model's makers recommend, give `GenerationConfig.from_folder(checkpoint)`.
        """
        return GenerationConfig()

    @property
    def adapters(self) -> tuple[str, ...]:
        """The names of the LoRA adapters of the bundle."""
        return tuple(adapter_names(self.manifest))

    @cached_property
    def adapter_session(self) -> Any:
        """The session of the graph that takes adapters, opened when it is first needed. Raises RequestError if none."""
        if self.manifest.adapter_graph is None:
            raise RequestError("the bundle has no adapters. Export it with --adapter NAME=DIR.")
        return self._open_graph(self.manifest.adapter_graph.file)

    def new_decoder(self, batch_size: int, capacity: int, adapter: str | None = None) -> StepRunner:
        """Return a decoder with an empty cache for `batch_size` rows of up to `capacity` tokens, to run by hand.

        adapter: name of the LoRA adapter of all rows, or a sum of several (`steps/adapters.py`). Raises RequestError
        for one that the bundle does not have, for numbers that are none, and for more tokens than the context has.
        """
        request_values.count("batch_size", batch_size, most=request_values.MOST_ROWS)
        request_values.count("capacity", capacity, most=self.manifest.context_length)
        session, captured = self.session, self._captured
        if adapter is not None:
            tensors = self._adapter_tensors(adapter)
            session = AdaptedSession(self.adapter_session, tensors)
            captured = None
        return new_decoder(session, self.manifest, batch_size, capacity, self.provider, captured=captured)

    def row_adapters(self, rows: int) -> RowAdapters:
        """Return inputs of the adapter graph for rows that may each have another adapter of the bundle, or none."""
        return RowAdapters(self._adapter_tensors, self.adapters, rows, lambda: self.adapter_session)

    def _adapter_tensors(self, name: str) -> Tensors:
        if name not in self.adapters:
            return read_adapter(self.folder, self.manifest, name)
        if name not in self._adapters:
            self._adapters[name] = read_adapter(self.folder, self.manifest, name)
        return self._adapters[name]

    def forward(
        self, token_ids: Sequence[int], images: Sequence[Picture] = (), sounds: Sequence[Sound] = ()
    ) -> NDArray[np.float32]:
        """Return the logits after every token of one text: float32 [S, V].

        images, sounds: pictures or recordings of the text's placeholders; S counts the tokens that these become. Raises
        RequestError for more tokens than the context has.
        """
        [seen] = self.see_prompts([token_ids], self.media(images=images, sounds=sounds))
        tokens = seen.tokens if isinstance(seen, SeenPrompt) else self.encode(seen)
        check_length(len(tokens), self.manifest.context_length, "the text")
        decoder = self.new_decoder(1, len(tokens))
        decoder.graph.pictures = seen.pictures if isinstance(seen, SeenPrompt) else None
        return decoder.prefill_all(0, tokens)

    def media(self, images: Any = (), sounds: Any = ()) -> Any:
        """Return those of a call's arguments that this model reads. Raises RequestError where the other is given."""
        given = {"images": images, "sounds": sounds}
        for name, value in given.items():
            if name != self.reads and not (isinstance(value, list | tuple) and not value):
                raise RequestError(f"this model reads no {MEDIA[name]}; leave {name} out.")
        return () if self.reads is None else given[self.reads]

    def see_prompts(
        self, prompts: Sequence[Any], media: Any, adapter: str | None = None, single: bool = True
    ) -> Sequence[Text | SeenPrompt]:
        """Return prompts with their pictures or recordings; as they are, where there are none.

        prompts: texts or token ids, or what `see` returned. media: of the only prompt, or a list for each, as the
        method `media` returns it. Raises RequestError as `TowerTextLM.see`, and for pictures with an adapter.
        """
        sees = not (isinstance(media, list | tuple) and not media)
        if adapter is not None and (sees or any(isinstance(prompt, SeenPrompt) for prompt in prompts)):
            raise RequestError(f"prompts with {MEDIA[self.reads or 'images']} run without adapters; leave adapter out.")
        if not sees:
            return prompts
        return self._seen(prompts, media, single)

    def _seen(self, prompts: Sequence[Any], media: Any, single: bool) -> list[SeenPrompt]:
        """Return prompts with their pictures or recordings. Raises RequestError: this model reads neither."""
        raise RequestError("this model reads neither pictures nor recordings; give it the prompt alone.")

    # A str is a Sequence[str] too, which mypy reports; the overload of one text comes first and wins.
    @overload
    def generate(  # type: ignore[overload-overlap]
        self, prompt: Text, *, num_return_sequences: Literal[1] = 1, **call: Unpack[DecoderCall]
    ) -> Generation: ...

    @overload
    def generate(  # type: ignore[overload-overlap]
        self, prompt: Text, *, num_return_sequences: int, **call: Unpack[DecoderCall]
    ) -> list[Generation]: ...

    @overload
    def generate(  # type: ignore[overload-overlap]
        self, prompt: Sequence[Text], *, num_return_sequences: Literal[1] = 1, **call: Unpack[DecoderCall]
    ) -> list[Generation]: ...

    @overload
    def generate(
        self, prompt: Sequence[Text], *, num_return_sequences: int, **call: Unpack[DecoderCall]
    ) -> list[list[Generation]]: ...

    def generate(
        self,
        prompt: Text | Sequence[Text],
        *,
        config: GenerationConfig | None = None,
        num_return_sequences: int = 1,
        adapter: str | None = None,
        images: Any = (),
        sounds: Any = (),
        logits_processors: Sequence[LogitsProcessor] = (),
        **options: Unpack[GenerationOptions],
    ) -> Generation | list[Generation] | list[list[Generation]]:
        """Continue one prompt, or a batch of prompts of any lengths.

        Args:
            prompt: a text, token ids, or a sequence of either; for a sequence, the result is a list.
            config: replaces the model's own `generation_config`.
            num_return_sequences: samples of each prompt, which is run once for all of them; above 1 the result of a
                prompt is a list, and sample i is what seed + i gives alone.
            adapter: the name of a LoRA adapter of the bundle, or a weighted sum of several such as
                `polite*0.7+brief*0.3`; None for the model alone.
            images: pictures for the placeholders of a prompt, in their order: a list, or a list for each prompt of a
                batch; each a path, bytes, an array uint8 [height, width, 3] or an image of Pillow.
            sounds: recordings, as images; each a path, bytes, or mono samples at 16 kHz, floats [N].
            logits_processors: functions that change logits before a token is chosen (see `LogitsProcessor`).
            options: fields of `GenerationConfig`, which override those of the config. Without max_new_tokens there are
                256 new tokens at most, or what the context leaves.

        Raises RequestError for a request that the model cannot serve, such as a prompt beyond its context.
        """
        chosen = self._config(config, options)
        single = not is_batch(prompt)
        prompts = cast(list[Text], [prompt] if single else prompt)
        count = _samples(num_return_sequences, chosen)
        rows, decoder = self._prepare(
            prompts, chosen, logits_processors, count, adapter, self.media(images=images, sounds=sounds), single
        )
        beginnings = SampleBeginnings(decoder, count) if count > 1 else Beginnings(decoder)
        drafts = self.new_drafts(rows[0], chosen, decoder=decoder) if len(rows) == 1 else None
        start_rows(beginnings, rows, drafts=drafts)[0].run()
        found = [row.result() for row in rows]
        results: list[Any] = found
        if count > 1:
            results = [found[start : start + count] for start in range(0, len(found), count)]
        return results[0] if single else results

    def stream(
        self,
        prompt: Text,
        *,
        config: GenerationConfig | None = None,
        adapter: str | None = None,
        images: Any = (),
        sounds: Any = (),
        logits_processors: Sequence[LogitsProcessor] = (),
        **options: Unpack[GenerationOptions],
    ) -> GenerationStream:
        """Continue one prompt; return an iterator over pieces of text as they are generated.

        Arguments and errors are those of `generate`.
        """
        chosen = self._config(config, options)
        [row], decoder = self._prepare(
            [prompt], chosen, logits_processors, adapter=adapter, media=self.media(images=images, sounds=sounds)
        )
        [stream] = start_rows(Beginnings(decoder), [row], drafts=self.new_drafts(row, chosen, decoder=decoder))[1]
        return stream

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Tool] = (),
        allow_special: bool = False,
        enable_thinking: bool | None = None,
        reasoning_effort: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        config: GenerationConfig | None = None,
        adapter: str | None = None,
        images: Any = (),
        sounds: Any = (),
        logits_processors: Sequence[LogitsProcessor] = (),
        **options: Unpack[GenerationOptions],
    ) -> GenerationStream:
        """Answer a conversation, laid out by the model's chat template; return an iterator over pieces of text.

        Args:
            messages: dicts with `role` (system, user, assistant, tool) and `content`; `reasoning_content` is what the
                assistant thought before.
            tools: the functions that the model may call.
            allow_special: whether a message that spells a special token, such as `<|im_end|>`, becomes that token;
                otherwise it is text like any other.
            enable_thinking: whether the model thinks before it answers, where its chat template asks.
            reasoning_effort: how much it thinks ("low", "medium", "high"), where its chat template asks.
            chat_template_kwargs: other variables that the template reads.
            images: the pictures of the parts {"type": "image"} of all messages, in order.
            sounds: the recordings of the parts {"type": "audio"}, likewise.

        The other arguments are those of `generate`. What the messages have in common with those of earlier calls is not
        read again (`prefix_cache`).

        What the model thinks is no part of the text: events and the result have it as `reasoning`. Raises RequestError
        for a model without a chat template, and for what its template does not read.
        """
        tokenizer = self.require_tokenizer()
        variables = tokenizer.thinking_variables(
            enable_thinking, reasoning_effort, chat_template_kwargs, with_tools=bool(tools)
        )
        prompt = tokenizer.encode_chat(
            messages,
            tools=tools,
            allow_special=allow_special,
            chat_template_kwargs=variables or None,
        )
        chosen = self._config(config, options)
        [row], decoder = self._prepare(
            [prompt], chosen, logits_processors, adapter=adapter, media=self.media(images=images, sounds=sounds)
        )
        beginnings, drafts = PrefixBeginnings(decoder, self.prefix_cache), self.new_drafts(row, chosen, decoder=decoder)
        make_stream: Callable[[ScheduledRequest, Scheduler], GenerationStream] = GenerationStream
        if tokenizer.thinking_format is not None:
            spelled = None if chosen.skip_special_tokens else tokenizer.special_tokens
            divide = partial(new_thinking, tokenizer, prompt, chosen.stop, spelled)
            make_stream = partial(ChatStream, new_thinking=divide)
        [stream] = start_rows(beginnings, [row], drafts=drafts, adapter=adapter, make_stream=make_stream)[1]
        return stream

    def save_session(self, path: str | Path, messages: Sequence[Message] = ()) -> None:
        """Write what `chat` kept of its last conversation to a file, so that the next process need not read it again.

        messages: of that conversation, to be returned by `load_session`. The file replaces another one of this name
        once it is complete. Raises RequestError if nothing was kept, or if the file cannot be written.
        """
        file = request_values.path("path", path, "file")
        kept = self.prefix_cache.latest()
        if kept is None:
            raise RequestError("there is no session to save: no conversation was held, or prefix_cache keeps nothing.")
        write_session(file, self.manifest, kept, messages)

    def load_session(self, path: str | Path) -> list[Message]:
        """Read what `save_session` wrote, so that `chat` goes on from there; return its messages.

        Raises RequestError for a file of another bundle, and for one that is damaged or no session.
        """
        file = request_values.path("path", path, "file")
        kept, messages = read_session(file, self.manifest, self.new_decoder(1, 1).cache)
        self.prefix_cache.insert(kept)
        return messages

    def _config(self, config: GenerationConfig | None, options: GenerationOptions) -> GenerationConfig:
        given: dict[str, Any] = dict(options)
        chosen = self.generation_config.replaced_by(config).override(given)
        if chosen.num_beams != 1:
            raise RequestError("beam search is for encoder-decoders; use num_beams=1 with a decoder-only model.")
        if chosen.max_new_tokens is not None and chosen.max_new_tokens < 1:
            raise RequestError(f"max_new_tokens is {chosen.max_new_tokens}; it must be at least 1.")
        chosen.rules.check(self.manifest.vocab_size)
        return chosen

    def new_row(
        self,
        prompt: Text | SeenPrompt,
        *,
        config: GenerationConfig | None = None,
        logits_processors: Sequence[LogitsProcessor] = (),
        **options: Unpack[GenerationOptions],
    ) -> Row:
        """Return the state of one request, to run by hand; arguments and errors are those of `generate`."""
        return self._new_row(prompt, self._config(config, options), logits_processors)

    def _new_row(
        self,
        prompt: Text | SeenPrompt,
        config: GenerationConfig,
        processors: Sequence[LogitsProcessor],
        sample: int = 0,
    ) -> Row:
        if config.stop:
            self.require_tokenizer()
        if not isinstance(prompt, SeenPrompt):
            tokens = self.encode(prompt)
            prompt = SeenPrompt(tokens, tokens, None)
        new = self._new_tokens(len(prompt), config)
        row = make_row(prompt.tokens, new, config, self.manifest, self.tokenizer, processors, sample, prompt.shown)
        row.pictures = prompt.pictures
        return row

    def _prepare(
        self,
        prompts: Sequence[Text],
        config: GenerationConfig,
        processors: Sequence[LogitsProcessor],
        samples: int = 1,
        adapter: str | None = None,
        media: Any = (),
        single: bool = True,
    ) -> tuple[list[Row], StepRunner]:
        """Return the rows of each prompt, one for each of its samples, and a decoder with room for all of them."""
        seen, rows = self.see_prompts(prompts, media, adapter, single), list[Row]()
        for index, prompt in enumerate(seen):
            with request_values.naming_entry("prompt", index, prompts[index], of=len(prompts)):
                rows += [self._new_row(prompt, config, processors, sample) for sample in range(samples)]
        if not rows:
            raise RequestError("there is no prompt in the batch; give at least one.")
        capacity = max(len(row.prompt) + row.max_new_tokens for row in rows)
        return rows, self.new_decoder(len(rows), capacity, adapter)

    def drafts_by_model(self, config: GenerationConfig) -> bool:
        """Return whether the draft model drafts for a request: there is one, and prompt lookup is not asked for."""
        return self.draft is not None and config.num_assistant_tokens > 0 and not config.prompt_lookup_num_tokens

    def drafts_by_layer(self, config: GenerationConfig) -> bool:
        """Return whether the model's own layer drafts for a request, which asks for no prompt lookup."""
        return self.drafts_by_mtp and config.num_assistant_tokens > 0 and not config.prompt_lookup_num_tokens

    @property
    def hidden_size(self) -> int:
        """Numbers of the state of a token."""
        return cast(DecoderConfig, self.manifest.model).hidden_size

    def new_drafts(
        self,
        row: Row,
        config: GenerationConfig,
        chunk: int | None = None,
        decoder: StepRunner | None = None,
        states: NDArray[np.float32] | None = None,
    ) -> RowDrafts | None:
        """Return the drafts of a row: where the config asks for it, by a model or a layer, or of what is forced.

        chunk: tokens of the text that a model or layer reads in one step at most; None for all that are new. decoder:
        that of the row alone, without tokens yet, which keeps states for the model's own layer from now on. states:
        where another one keeps those of the row, float32 [tokens, E].
        """
        if self.drafts_by_layer(config):
            if decoder is not None:
                states = keep_states(decoder, self.hidden_size)
            if states is not None:
                length = DraftLength(config.num_assistant_tokens, credit=TRAINED_CREDIT)
                return RowDrafts(row, partial(self._new_mtp, row, states), length, chunk)
        if not self.drafts_by_model(config):
            return drafts_of(row, config)
        new_draft_model = partial(self.new_draft_model, len(row.prompt) + row.max_new_tokens)
        return RowDrafts(row, new_draft_model, DraftLength(config.num_assistant_tokens), chunk)

    @cached_property
    def mtp_session(self) -> Any:
        """The session of the layer that drafts tokens, opened when it is first needed."""
        return self._open_graph(self.manifest.graphs["mtp"].file)

    @cached_property
    def first_tokens_session(self) -> Any | None:
        """The session of the same layer that drafts the first tokens of a large vocabulary alone; None for no such."""
        # A prepacked copy has no matrix any more of which the first rows could be read.
        graph = self.folder / self.manifest.graphs["mtp"].file
        content = with_first_tokens(graph, self.manifest.vocab_size)
        if content is None:
            return None
        arguments = graph, self.manifest, self.provider, self._threads
        return open_over(*arguments, kernels=self._kernel_choice, options=self._options, content=content)

    def _new_mtp(self, row: Row, states: NDArray[np.float32]) -> MultiTokenPrediction:
        """Return the drafter of a row by the model's layer. states: of the row's tokens, as they are run."""
        geometry, begun = mtp_geometry(self.manifest), row.cached_tokens
        session = (self.first_tokens_session if are_mostly_first(row.prompt) else None) or self.mtp_session
        decoder = new_decoder(session, self.manifest, 1, len(states), self.provider, cache=geometry)
        return MultiTokenPrediction(decoder, states, begun, self.manifest.vocab_size)

    def new_draft_model(self, tokens: int) -> DraftModel:
        """Return what drafts the tokens of a text of up to `tokens`; the model has a draft model."""
        assert self.draft is not None
        capacity = min(tokens, self.draft.manifest.context_length)
        return DraftModel(self.draft.new_decoder(1, capacity), self.manifest.vocab_size)

    def _new_tokens(self, prompt_length: int, config: GenerationConfig) -> int:
        """Return how many tokens to generate at most after a prompt. Raises RequestError if they do not fit."""
        context = self.manifest.context_length
        room = context - prompt_length
        if config.max_new_tokens is None and config.max_length is not None:
            if config.max_length <= prompt_length:
                raise RequestError(
                    f"the prompt has {prompt_length} tokens, and max_length allows {config.max_length} with the new "
                    "ones. Shorten the prompt or give max_new_tokens."
                )
            new = min(config.max_length - prompt_length, max(room, 1))
        else:
            new = min(DEFAULT_NEW_TOKENS, room) if config.max_new_tokens is None else config.max_new_tokens
        if new > room or new < 1:
            raise RequestError(
                f"the prompt has {prompt_length} tokens and {max(new, 1)} more are to come, but the model's context "
                f"is {context} tokens. Shorten the prompt or lower max_new_tokens."
            )
        return new


def _samples(given: int, config: GenerationConfig) -> int:
    """Return how many samples a prompt gets. Raises RequestError where more than one would be equal."""
    samples = request_values.count("num_return_sequences", given, most=request_values.MOST_ROWS)
    if samples > 1 and config.temperature == 0:
        raise RequestError(
            f"num_return_sequences is {samples}, but without a temperature all of them are the same; give one."
        )
    return samples
