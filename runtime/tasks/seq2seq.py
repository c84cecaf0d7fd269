"""Generate with an encoder-decoder, from texts or from recordings."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeGuard, Unpack, cast, overload

from numpy.typing import ArrayLike, NDArray

from edgeformer.errors import RequestError
from edgeformer.runtime import request_values
from edgeformer.runtime.generation.generation_config import CallOptions, GenerationConfig, GenerationOptions
from edgeformer.runtime.generation.row import Generation
from edgeformer.runtime.generation.sampling.logits_processors import LogitsProcessor
from edgeformer.runtime.generation.scheduling import GenerationStream
from edgeformer.runtime.media.sound.audio import check_samples
from edgeformer.runtime.media.sound.sound_files import load_audio
from edgeformer.runtime.tasks.encoder_decoder import EncoderDecoder, Source
from edgeformer.runtime.tasks.model import is_batch
from edgeformer.runtime.tasks.seq2seq_requests import Seq2SeqRequest, max_new_tokens, search_beams, start_sources
from edgeformer.runtime.tasks.speech import Runs, SpeechConfig, SpeechModel, Transcript, transcribe
from edgeformer.runtime.text.languages import plan_translation


class SourceCall(CallOptions, total=False):
    """Keywords of the overloads of `Seq2SeqLM.generate` and `translate`."""

    prompt: Sequence[int] | None


class Seq2SeqLM(EncoderDecoder):
    """An encoder-decoder. What a call does not set comes from the model's generation_config.json."""

    @property
    def generation_config(self) -> GenerationConfig:
        """The config of a call that gives none: what the model's generation_config.json sets, without sampling."""
        return GenerationConfig.from_dict(self.manifest.generation)

    def uses_beam_search(self, config: GenerationConfig | None = None, **options: Unpack[GenerationOptions]) -> bool:
        """Return whether `generate` would search with beams, by these options and the model's own."""
        return self.generation_config.replaced_by(config).override(options).num_beams > 1

    # A str is a Sequence[str] too, which mypy reports; the overload of one text comes first and wins.
    @overload
    def generate(  # type: ignore[overload-overlap]
        self, source: Source, *, num_return_sequences: Literal[1] = 1, **call: Unpack[SourceCall]
    ) -> Generation: ...

    @overload
    def generate(  # type: ignore[overload-overlap]
        self, source: Source, *, num_return_sequences: int, **call: Unpack[SourceCall]
    ) -> list[Generation]: ...

    @overload
    def generate(  # type: ignore[overload-overlap]
        self, source: Sequence[Source], *, num_return_sequences: Literal[1] = 1, **call: Unpack[SourceCall]
    ) -> list[Generation]: ...

    @overload
    def generate(
        self, source: Sequence[Source], *, num_return_sequences: int, **call: Unpack[SourceCall]
    ) -> list[list[Generation]]: ...

    def generate(
        self,
        source: Source | Sequence[Source],
        *,
        prompt: Sequence[int] | None = None,
        config: GenerationConfig | None = None,
        num_return_sequences: int = 1,
        logits_processors: Sequence[LogitsProcessor] = (),
        **options: Unpack[GenerationOptions],
    ) -> Generation | list[Generation] | list[list[Generation]]:
        """Generate a text from one source, or from each source of a batch of any lengths.

        Args:
            source: a text or token ids; of a speech model a sound file or mono samples [N] at 16 kHz; of a model that
                reads pictures, the path of one, its bytes, an image of Pillow, or an array uint8 [height, width, 3]; or
                a list of these.
            prompt: the decoder's first tokens, by default the model's start token.
            config: replaces the model's own `generation_config`.
            num_return_sequences: 1 to num_beams; above 1 the result of a source is a list of its best hypotheses, best
                first.
            logits_processors: functions that change logits before a token is chosen (see `LogitsProcessor`).
            options: fields of `GenerationConfig`, which override those of the config.

        Returns a `Generation`, for a batch a list of one per source. Raises RequestError for a request that the model
        cannot serve.
        """
        single = not self._is_batch(source)
        sources = cast(list[Source], [source] if single else list(cast(Sequence[Source], source)))
        if not sources:
            raise RequestError("there is no source in the batch; give at least one.")
        request = self.request(prompt, config, options, logits_processors)
        search = request.config.beam_search(num_return_sequences)
        results: list[Any]
        if search.num_beams > 1:
            found = search_beams(self, sources, request, search)
            results = found if num_return_sequences > 1 else [best for best, *_ in found]
        else:
            scheduler, _, rows = start_sources(self, sources, request)
            scheduler.run()
            results = [row.result() for row in rows]
        return results[0] if single else results

    def stream(
        self,
        source: Source,
        *,
        prompt: Sequence[int] | None = None,
        config: GenerationConfig | None = None,
        logits_processors: Sequence[LogitsProcessor] = (),
        **options: Unpack[GenerationOptions],
    ) -> GenerationStream:
        """Generate a text from one source; return an iterator over pieces of text as they are generated.

        Arguments and errors are those of `generate`, but beams are refused, and the model's own num_beams is ignored:
        no token of a beam is final before the search ends.
        """
        count = _sequences(options)
        asked = options.get("num_beams", 1 if config is None else self.generation_config.replaced_by(config).num_beams)
        if request_values.integer("num_beams", asked) != 1:
            raise RequestError("beams cannot be streamed; use generate, or num_beams=1.")
        if self._is_batch(source):
            raise RequestError("a stream is of one source; for several, use generate.")
        request = self.request(prompt, config, {**options, "num_beams": 1}, logits_processors)
        request.config.beam_search(count)
        _, [stream], _ = start_sources(self, [source], request)
        return stream

    @overload
    def translate(  # type: ignore[overload-overlap]
        self,
        text: str,
        source_language: str | None = None,
        target_language: str | None = None,
        **call: Unpack[SourceCall],
    ) -> str: ...

    @overload
    def translate(
        self,
        text: Sequence[str],
        source_language: str | None = None,
        target_language: str | None = None,
        **call: Unpack[SourceCall],
    ) -> list[str]: ...

    def translate(
        self,
        text: str | Sequence[str],
        source_language: str | None = None,
        target_language: str | None = None,
        *,
        prompt: Sequence[int] | None = None,
        config: GenerationConfig | None = None,
        logits_processors: Sequence[LogitsProcessor] = (),
        **options: Unpack[GenerationOptions],
    ) -> str | list[str]:
        """Translate a text, or each of a list of texts.

        source_language, target_language: codes as the model has them (NLLB: eng_Latn; mBART: en_XX; M2M100: en); None
        for a model of one pair of languages. The other arguments are those of `generate`. Raises RequestError for a
        language that the model does not have, and for a speech model.
        """
        if not isinstance(text, str) and not request_values.is_list(text):
            raise RequestError(f"the text is {request_values.shown(text)}; it must be a text or a list of texts.")
        texts = [request_values.text("text", each) for each in ([text] if isinstance(text, str) else text)]
        for name, code in (("source_language", source_language), ("target_language", target_language)):
            if code is not None:
                request_values.text(name, code)
        _want_one(options)
        sources, start, options = self.translation_of(texts, source_language, target_language, options)
        results = self.generate(
            sources, prompt=start if prompt is None else prompt, config=config, logits_processors=logits_processors,
            **options,
        )  # fmt: skip
        translated = [result.text or "" for result in results]
        return translated[0] if isinstance(text, str) else translated

    def translation_of(
        self,
        texts: Sequence[str],
        source_language: str | None,
        target_language: str | None,
        options: GenerationOptions,
    ) -> tuple[list[list[int]], list[int] | None, GenerationOptions]:
        """Return what `generate` takes to translate: sources, the decoder's first tokens, and options.

        Arguments and errors are those of `translate`; the first tokens are None for the model's start token.
        """
        if self.is_speech:
            raise RequestError("this is a speech model, which translates no text. Use transcribe, with its task.")
        if not self.reads_text:
            raise RequestError("this model reads pictures, and translates no text. Use generate, with a picture.")
        tokenizer = self.require_tokenizer()
        plan = plan_translation(tokenizer, self.manifest.generation, source_language, target_language, self._end_token)
        if plan.first is not None:
            options = {"forced_bos_token_id": plan.first, **options}
        start = None if plan.start is None else [plan.start]
        return [plan.encode(tokenizer, each) for each in texts], start, options

    def transcribe(
        self,
        recording: str | Path | ArrayLike,
        language: str | None = None,
        task: str = "transcribe",
        *,
        speech: SpeechConfig | None = None,
        config: GenerationConfig | None = None,
        logits_processors: Sequence[LogitsProcessor] = (),
        **options: Unpack[GenerationOptions],
    ) -> str:
        """Return the text of `transcript`, whose arguments and errors these are."""
        return self.transcript(
            recording, language, task, speech=speech, config=config, logits_processors=logits_processors, **options
        ).text

    def transcript(
        self,
        recording: str | Path | ArrayLike,
        language: str | None = None,
        task: str = "transcribe",
        *,
        speech: SpeechConfig | None = None,
        config: GenerationConfig | None = None,
        logits_processors: Sequence[LogitsProcessor] = (),
        **options: Unpack[GenerationOptions],
    ) -> Transcript:
        """Transcribe a recording of any length (a sound file, or mono samples [N] at 16 kHz); return text and segments.

        language: a code (en, de…); by default the model detects it in the first window. task: `transcribe`, or
        `translate` into English. speech: how windows follow one another, and what happens to unlikely texts. The other
        arguments are those of `generate`. Raises RequestError for a language that the model does not have, for samples
        that are not sound, and for a model that is not a speech model.
        """
        if not self.is_speech:
            taken = "text" if self.reads_text else "pictures"
            raise RequestError(
                f"this model takes {taken}, not speech. Use generate{' or translate' * self.reads_text}."
            )
        self.require_tokenizer()
        _want_one(options)
        samples = load_audio(recording) if isinstance(recording, str | Path) else check_samples(recording)
        own = self.generation_config.replaced_by(config).override(options)
        runs = self.transcription(samples, language, task, speech, own, logits_processors)
        try:
            window = next(runs)
            while True:
                result = self.generate(
                    window.source, prompt=window.prompt, config=window.config, logits_processors=window.processors
                )
                window = runs.send(result)
        except StopIteration as done:
            found: Transcript = done.value
            return found

    def transcription(
        self,
        samples: NDArray[Any],
        language: str | None,
        task: str,
        speech: SpeechConfig | None,
        config: GenerationConfig,
        processors: Sequence[LogitsProcessor] = (),
    ) -> Runs:
        """Return the runs that `transcript` takes: a generator of windows, which is sent the `Generation` of each."""
        if speech is not None and not isinstance(speech, SpeechConfig):
            raise RequestError(f"speech is {request_values.shown(speech)}; it must be a SpeechConfig, or None.")
        return transcribe(self._speech, samples, language, task, speech or SpeechConfig(), config, processors)

    @property
    def writes_times(self) -> bool:
        """Whether this is a speech model that writes the times of segments."""
        return self.is_speech and self._speech.first_time is not None

    @property
    def _end_token(self) -> int:
        """Return the first token that ends a text; 0 for a model that names none."""
        return (self.manifest.tokens.eos or (0,))[0]

    @property
    def _speech(self) -> SpeechModel:
        audio = self._encoder_config.audio
        assert audio is not None
        return SpeechModel(
            tokenizer=self.require_tokenizer(),
            generation=self.manifest.generation,
            start=self.start_prompt(None),
            end=self._end_token,
            vocab_size=self.manifest.vocab_size,
            context_length=self.manifest.context_length,
            mel_bins=audio.mel_bins,
            seconds=self.window_seconds,
            alignment=self.manifest.alignment,
            align=self.cross_attentions,
        )

    def _is_batch(self, source: Source | Sequence[Source]) -> TypeGuard[Sequence[Source]]:
        return is_batch(source) if self.reads_text else isinstance(source, list | tuple)

    def request(
        self,
        prompt: Sequence[int] | None,
        given: GenerationConfig | None,
        options: GenerationOptions,
        processors: Sequence[LogitsProcessor],
    ) -> Seq2SeqRequest:
        """Resolve and check a request; given: the config of the call, if it has one."""
        own = self.generation_config
        config = own.replaced_by(given).override(options)
        config.rules.check(self.manifest.vocab_size)
        # A limit of the model's own config is lowered to what fits; one that the call asks for is refused instead.
        asked = options.get("max_new_tokens")
        if asked is None and given is not None and given.max_new_tokens != own.max_new_tokens:
            asked = given.max_new_tokens
        tokens = self.start_prompt(prompt)
        return Seq2SeqRequest(tokens, max_new_tokens(self.manifest, len(tokens), asked, config), config, processors)


def _sequences(options: GenerationOptions) -> int:
    """Remove num_return_sequences, which only `generate` takes, from the options; return it."""
    return cast(dict[str, Any], options).pop("num_return_sequences", 1)


def _want_one(options: GenerationOptions) -> None:
    count = request_values.integer("num_return_sequences", _sequences(options))
    if count != 1:
        raise RequestError(
            f"num_return_sequences is {count}, but translate and transcribe give one text. For several, use generate."
        )
