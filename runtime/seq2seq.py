"""Generate with an encoder-decoder: from texts, or from recordings."""

import time
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from edgeformer.config import Seq2SeqConfig
from edgeformer.errors import RequestError
from edgeformer.manifest import Manifest
from edgeformer.runtime.audio import SAMPLE_RATE, load_audio, log_mel
from edgeformer.runtime.beam_search import BeamSearch, beam_search
from edgeformer.runtime.decoder import Decoder, Logits, new_decoder
from edgeformer.runtime.encoder_outputs import EncoderOutputs, check_length, pad_right
from edgeformer.runtime.generate import DEFAULT_NEW_TOKENS, Generation, GenerationStream, Row, run_rows
from edgeformer.runtime.languages import plan_translation
from edgeformer.runtime.logits_rules import Rules
from edgeformer.runtime.model import Model, Text, is_batch
from edgeformer.runtime.prepacked import open_graph
from edgeformer.runtime.sampling import Sampling
from edgeformer.runtime.session import CACHE_DTYPES, ProviderChoice
from edgeformer.runtime.streaming import TextStream

Source = Text | Path | NDArray[np.float32]
"""A text or its token ids; for a model that hears, a WAV file or mono samples at 16 kHz."""

SEARCH, RULES, SAMPLING = ({field.name for field in fields(kind)} for kind in (BeamSearch, Rules, Sampling))
FRAMES_PER_SECOND = 100


class Seq2SeqLM(Model):
    """An encoder-decoder. Options that a call does not give are those of the model's generation_config.json."""

    def __init__(self, folder: Path, manifest: Manifest, provider: ProviderChoice, threads: int | None):
        super().__init__(folder, manifest, provider, threads)
        assert isinstance(manifest.model, Seq2SeqConfig) and manifest.encoder_graph is not None
        self._encoder_config = manifest.model.encoder
        self._encoder = open_graph(folder, manifest, manifest.encoder_graph, self.provider, threads)

    @property
    def is_speech(self) -> bool:
        """Whether its sources are recordings."""
        return self._encoder_config.audio is not None

    def searches(self, options: dict[str, Any]) -> bool:
        """Whether `generate` would search with beams, by these options and the model's own."""
        own = ("prompt", "max_new_tokens", "stop")
        return self._options({name: value for name, value in options.items() if name not in own})[0].num_beams > 1

    def read(self, sources: Sequence[Source], copies: int = 1) -> EncoderOutputs:
        """Run the encoder, for decoders to read; each source is for `copies` rows."""
        if self.is_speech:
            inputs, mask = self._hear(sources)
        else:
            inputs, mask = self._pad([self._encode_source(source) for source in sources])
        return EncoderOutputs(self._encoder, self.manifest, inputs, mask, self.provider, copies)

    def new_decoder(self, sources: EncoderOutputs, capacity: int) -> Decoder:
        """Make an empty cache of up to `capacity` tokens for every row of the sources, to feed by hand."""
        rows = len(sources.mask)
        return new_decoder(self.session, self.manifest, rows, capacity, self.provider, sources)

    def forward(self, source: Source, token_ids: Sequence[int]) -> NDArray[np.float32]:
        """Logits after the decoder's start token and after each token of one text: float32 [1 + S, V]."""
        tokens = [*self._start_prompt(None), *self.encode(token_ids)]
        return self.new_decoder(self.read([source]), len(tokens)).prefill_all(0, tokens)

    def generate(
        self,
        source: Any,
        *,
        prompt: Sequence[int] | None = None,
        max_new_tokens: int | None = None,
        stop: str | Sequence[str] = (),
        **options: Any,
    ) -> Any:
        """Write what follows from one source, or from a batch of sources of any lengths.

        source: a text, token ids (for a model that hears a WAV file, or samples at 16 kHz), or a list of these. prompt:
        the decoder's first tokens, by default the model's start token. max_new_tokens: by default what the model's
        makers set, else 256. stop: texts that end the generation and are no part of it; not for beams. Other keywords:
        the fields of `BeamSearch`, `Rules` and `Sampling`.

        Returns a `Generation`, for a batch a list of them; with num_return_sequences, a list of the best for each
        source.
        """
        single = not self._is_batch(source)
        sources = [source] if single else list(source)
        if not sources:
            raise RequestError("there is no source in the batch; give at least one.")
        search, rules, sampling = self._options(options)
        if search.num_beams == 1:
            results: list[Any] = self._generate_rows(sources, prompt, max_new_tokens, stop, rules, sampling)
        elif stop:
            raise RequestError("stop texts do not work with beams; use num_beams=1.")
        else:
            found = self._search(sources, prompt, max_new_tokens, search, rules)
            results = found if search.num_return_sequences > 1 else [best for best, *_ in found]
        return results[0] if single else results

    def stream(
        self,
        source: Source,
        *,
        prompt: Sequence[int] | None = None,
        max_new_tokens: int | None = None,
        stop: str | Sequence[str] = (),
        **options: Any,
    ) -> GenerationStream:
        """Write what follows from one source; iterate over the result for pieces of text as they come.

        Options as for `generate`, but without beams: nothing of a beam is sure before its end.
        """
        if options.get("num_beams", 1) != 1:
            raise RequestError("beams cannot be streamed; use generate, or num_beams=1.")
        if self._is_batch(source):
            raise RequestError("a stream is of one source; for several, use generate.")
        _, rules, sampling = self._options(options | {"num_beams": 1})
        rows, decoder, first = self._start([source], prompt, max_new_tokens, stop, rules, sampling)
        return GenerationStream(rows[0], decoder, first)

    def translate(
        self, text: Any, source_language: str | None = None, target_language: str | None = None, **options: Any
    ) -> Any:
        """Translate a text, or a list of texts: str → str, list of str → list of str.

        source_language, target_language: codes as the model has them (NLLB: eng_Latn; mBART: en_XX; M2M100: en); left
        out where a model has one pair only. Options as for `generate`.
        """
        if self.is_speech:
            raise RequestError("this model hears recordings and translates no text. Use transcribe, with its task.")
        tokenizer = self.require_tokenizer()
        _want_one(options)
        end = (self.manifest.tokens.eos or (0,))[0]
        plan = plan_translation(tokenizer, self.manifest.generation, source_language, target_language, end)
        texts = [text] if isinstance(text, str) else list(text)
        if plan.first is not None:
            options = {"forced_bos_token_id": plan.first} | options
        if plan.start is not None:
            options = {"prompt": [plan.start]} | options
        results = self.generate([plan.encode(tokenizer, each) for each in texts], **options)
        translated = [result.text for result in results]
        return translated[0] if isinstance(text, str) else translated

    def transcribe(
        self, recording: str | Path | ArrayLike, language: str | None = None, task: str = "transcribe", **options: Any
    ) -> str:
        """Write down what is said in a recording (a WAV file, or mono samples at 16 kHz), 30 seconds after 30 seconds.

        language: a code (en, de…); by default what the model hears in the first 30 seconds. task: `translate` writes
        English instead. Options as for `generate`.
        """
        if not self.is_speech:
            raise RequestError("this model reads text, it does not hear. Use generate or translate.")
        self.require_tokenizer()
        _want_one(options)
        samples = load_audio(recording) if isinstance(recording, str | Path) else np.asarray(recording)
        window = self._seconds * SAMPLE_RATE
        pieces = [samples[start : start + window] for start in range(0, max(len(samples), 1), window)]
        prompt = self._speech_prompt(pieces[0], language, task)
        texts = [self.generate(piece, prompt=prompt, **options).text.strip() for piece in pieces]
        return " ".join(text for text in texts if text)

    @property
    def _seconds(self) -> int:
        """Of sound that the encoder hears at once; two frames are one position."""
        return 2 * self._encoder_config.context_length // FRAMES_PER_SECOND

    def _speech_prompt(self, samples: NDArray[np.float32], language: str | None, task: str) -> list[int]:
        """Start, language, task, no timestamps: as Whisper was trained."""
        generation, start = self.manifest.generation, self._start_prompt(None)
        silent = generation.get("no_timestamps_token_id")
        last = [] if silent is None else [silent]
        languages, tasks = generation.get("lang_to_id"), generation.get("task_to_id")
        if not languages or not tasks:  # a model of English alone
            if language not in (None, "en") or task != "transcribe":
                raise RequestError("this model writes down English, and nothing else.")
            return [*start, *last]
        if task not in tasks:
            raise RequestError(f"task is {task!r}; it must be one of {', '.join(sorted(tasks))}.")
        if language is None:
            decoder = self.new_decoder(self.read([samples]), len(start))
            logits = decoder.prefill(0, start)
            spoken = max(languages.values(), key=lambda token: logits[token])
        elif f"<|{language}|>" in languages:
            spoken = languages[f"<|{language}|>"]
        else:
            known = ", ".join(sorted(name.strip("<|>") for name in languages))
            raise RequestError(f"this model has no language {language!r}; it has {known}.")
        return [*start, spoken, tasks[task], *last]

    def _is_batch(self, source: Any) -> bool:
        if self.is_speech:
            return isinstance(source, list | tuple)
        return is_batch(source)

    def _encode_source(self, source: Any) -> list[int]:
        tokens = self.encode(source, "source", self._encoder_config.vocab_size)
        check_length(len(tokens), self._encoder_config.context_length, "the source")
        return tokens

    def _pad(self, rows: list[list[int]]) -> tuple[dict[str, NDArray[Any]], NDArray[np.int64]]:
        ids, mask = pad_right(rows, self.manifest.tokens.pad or 0)
        return {"input_ids": ids, "attention_mask": mask}, mask

    def _hear(self, recordings: Sequence[Any]) -> tuple[dict[str, NDArray[Any]], NDArray[np.int64]]:
        audio = self._encoder_config.audio
        assert audio is not None
        samples = [load_audio(each) if isinstance(each, str | Path) else each for each in recordings]
        features = np.stack([log_mel(each, audio.mel_bins, self._seconds) for each in samples])
        mask = np.ones((len(recordings), self._encoder_config.context_length), np.int64)
        return {"input_features": features.astype(CACHE_DTYPES[self.manifest.arithmetic])}, mask

    def _options(self, given: dict[str, Any]) -> tuple[BeamSearch, Rules, Sampling]:
        """What a call asks for, over what the model's makers set."""
        unknown = sorted(given.keys() - SEARCH - RULES - SAMPLING)
        if unknown:
            known = ", ".join(sorted(SEARCH | RULES | SAMPLING))
            raise RequestError(f"there is no option {unknown[0]}; there are {known}, prompt, max_new_tokens, stop.")
        defaults = {name: value for name, value in self.manifest.generation.items() if name in SEARCH | RULES}
        sampled = bool(given.get("temperature", 0))
        if sampled:  # a draw is no search
            if given.get("num_beams", 1) != 1:
                raise RequestError("num_beams searches and temperature draws; give only one of them.")
            defaults.pop("num_beams", None)
        options = defaults | given
        search = BeamSearch(**{name: options[name] for name in SEARCH & options.keys()})
        rules = Rules(**{name: options[name] for name in RULES & options.keys()})
        sampling = Sampling(**{name: given[name] for name in (SAMPLING - RULES) & given.keys()})
        rules.check(self.manifest.vocab_size)
        return search, rules, sampling

    def _start_prompt(self, prompt: Sequence[int] | None) -> list[int]:
        if prompt is not None:
            return self.encode(prompt)
        tokens = self.manifest.tokens
        start = self.manifest.generation.get("decoder_start_token_id", tokens.bos)
        start = tokens.pad if start is None else start  # T5's configs leave it out
        if start is None:
            raise RequestError(
                "the model's config has no decoder_start_token_id; give the decoder's first tokens: prompt=[…]."
            )
        return [start]

    def _room(self, prompt: Sequence[int], max_new_tokens: int | None) -> int:
        """How many tokens to write at most."""
        generation, length = self.manifest.generation, self.manifest.context_length
        if max_new_tokens is None and "max_new_tokens" not in generation:
            length = min(length, generation.get("max_length", len(prompt) + DEFAULT_NEW_TOKENS))
        room = length - len(prompt)
        if room < 1:
            longer = ", or give max_new_tokens" if length < self.manifest.context_length else ""
            raise RequestError(
                f"the prompt has {len(prompt)} tokens, and the model writes {length}, the prompt among them. Shorten "
                f"it{longer}."
            )
        if max_new_tokens is None:
            return int(min(generation.get("max_new_tokens", room), room))
        if not 1 <= max_new_tokens <= room:
            raise RequestError(
                f"max_new_tokens is {max_new_tokens}; it must be at least 1 and, behind a prompt of {len(prompt)}, at "
                f"most {room}: the model writes {self.manifest.context_length} tokens."
            )
        return max_new_tokens

    def _generate_rows(self, sources: Sequence[Source], *options: Any) -> list[Generation]:
        rows, decoder, first = self._start(sources, *options)
        for _ in run_rows(decoder, rows, first):
            pass
        return [row.result() for row in rows]

    def _start(
        self,
        sources: Sequence[Source],
        prompt: Sequence[int] | None,
        max_new_tokens: int | None,
        stop: str | Sequence[str],
        rules: Rules,
        sampling: Sampling,
    ) -> tuple[list[Row], Decoder, Logits]:
        """Rows that have read their sources and prompts, and the logits [B, V] that follow."""
        stop = [stop] if isinstance(stop, str) else list(stop)
        if stop:
            self.require_tokenizer()
        prompt = self._start_prompt(prompt)
        room = self._room(prompt, max_new_tokens)
        started = time.perf_counter()
        read = self.read(sources)
        decoder = self.new_decoder(read, len(prompt) + room)
        first = _feed(decoder, prompt)
        seconds = time.perf_counter() - started
        eos = frozenset(self.manifest.tokens.eos)
        rows = [
            Row(
                prompt, room, eos, sampling,
                TextStream(self.tokenizer, stop) if self.tokenizer else None,
                rules=rules, prefill_seconds=seconds, prompt_tokens=int(read.mask[index].sum()),
            )
            for index in range(len(sources))
        ]  # fmt: skip
        return rows, decoder, first

    def _search(
        self,
        sources: Sequence[Source],
        prompt: Sequence[int] | None,
        max_new_tokens: int | None,
        search: BeamSearch,
        rules: Rules,
    ) -> list[list[Generation]]:
        prompt = self._start_prompt(prompt)
        room = self._room(prompt, max_new_tokens)
        started = time.perf_counter()
        read = self.read(sources, copies=search.num_beams)
        decoder = self.new_decoder(read, len(prompt) + room)
        first = _feed(decoder, prompt)
        between = time.perf_counter()
        tokens = self.manifest.tokens
        found = beam_search(
            decoder,
            first,
            prompts=[prompt] * len(sources),
            search=search,
            max_new_tokens=room,
            eos=frozenset(tokens.eos),
            pad=tokens.pad or 0,
            rules=rules,
        )
        seconds = {"prefill_seconds": between - started, "decode_seconds": time.perf_counter() - between}
        lengths = read.mask[:: search.num_beams].sum(1).tolist()
        return [
            [
                Generation(
                    text=self.tokenizer.decode(each.token_ids) if self.tokenizer else None,
                    token_ids=each.token_ids,
                    finish_reason=each.finish_reason,
                    prompt_tokens=length,
                    score=each.score,
                    **seconds,
                )
                for each in hypotheses
            ]
            for hypotheses, length in zip(found, lengths, strict=True)
        ]


def _want_one(options: dict[str, Any]) -> None:
    count = options.get("num_return_sequences", 1)
    if count != 1:
        raise RequestError(
            f"num_return_sequences is {count}, but translate and transcribe give one text. For several, use generate."
        )


def _feed(decoder: Decoder, prompt: Sequence[int]) -> Logits:
    """Feed one prompt to all rows; logits after it [B, V]."""
    rows = decoder.cache.batch_size
    if len(prompt) == 1:
        return decoder.decode_one_token([prompt[0]] * rows).copy()
    tokens = np.tile(np.asarray(prompt, np.int64), (rows, 1))
    return decoder.prefill_batch(tokens, [len(prompt)] * rows)[:, -1]
