"""Rows through a loaded bundle, in an order and in groups that follow from the rows alone.

So the result of a piece does not depend on how many workers there are, or on what else they do. Decoders, and
encoder-decoders that sample, generate by an `OfflineEngine` whose queue is filled before its first turn. All else runs
in batches of rows with about as many tokens, so that little is padded: an engine runs the encoder for one source at a
time. The length of a translation follows that of its source, so rows of a batch end at similar steps, and those that
end early are left out of its steps.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from edgeformer.batch.media import MediaPrompt
from edgeformer.batch.options import ENGINE_MEMORY, BatchOptions, Verb
from edgeformer.errors import EdgeformerError, RequestError
from edgeformer.manifest.manifest import Manifest
from edgeformer.runtime import (
    CausalLM,
    DualEncoder,
    Encoder,
    Generation,
    GenerationStream,
    OfflineEngine,
    PictureEncoder,
    Seq2SeqLM,
    VisionEncoder,
)
from edgeformer.runtime.generation.chat_stream import divided
from edgeformer.runtime.measure.evaluation import score_text
from edgeformer.runtime.tasks.causal_lm import SeenPrompt
from edgeformer.runtime.tasks.encoders.text_encoder import Encoded
from edgeformer.runtime.tasks.tower_text import TowerTextLM
from edgeformer.runtime.text.thinking.reader import new_thinking

BATCH = 32
"""Texts of an encoder that run together."""

PICTURE_ROWS = 8
"""Rows with pictures that run together, at most. One of 17 tiles of 512 × 512 pixels takes 53 MB until it is read."""

BEAM_SOURCES = 8
"""Sources of a beam search that run together, at most."""

TEXT_VERBS: tuple[Verb, ...] = ("generate", "chat", "translate")


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of a row.

    output: a text, a vector, a label, or a number; None with an error. reasoning_content: what the model thought before
    the text, of a chat. scores: of all labels, or of the tokens for a mask, as (label, probability).
    """

    output: Any = None
    reasoning_content: str | None = None
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    error: str | None = None
    scores: tuple[tuple[str, float], ...] | None = None


def choose_verb(manifest: Manifest, verb: Verb | None) -> Verb:
    """Return the verb of a job. Raises RequestError for one that the bundle's task cannot do."""
    speech = getattr(getattr(manifest.model, "encoder", None), "audio", None) is not None
    if manifest.task == "vision-encoder":
        raise RequestError(
            "a job reads texts, recordings and pictures with texts, and this bundle reads pictures alone. Use "
            "edgeformer.runtime.load."
        )
    match manifest.task:
        case "causal-lm" | "image-text-to-text" | "audio-text-to-text":
            able: tuple[Verb, ...] = ("generate", "chat", "perplexity")
        case "seq2seq-lm":
            able = ("transcribe",) if speech or manifest.transcribes_pictures else ("translate", "generate")
        case _:
            head = getattr(manifest.model, "head", None)
            kind = getattr(head, "kind", None)
            special: dict[str | None, Verb] = {"classification": "classify", "masked_lm": "fill-mask"}
            able = (special[kind], "embed") if kind in special else ("embed",)
            gives = {output.gives for output in getattr(manifest.model, "head_outputs", ())}
            if gives & {"sparse vector", "token vectors"} and "vector" not in gives:
                raise RequestError("this bundle makes no single vector of a text, the output of a row.")
            if kind == "classification" and getattr(head, "pooling", None) is None:
                able = ("embed",)  # the labels are those of tokens, and a row has one output
    if verb is not None and verb not in able:
        raise RequestError(f"this bundle ({manifest.task}) cannot {verb}; it can {', '.join(able)}.")
    return verb or able[0]


def row_seed(seed: int, row: int) -> int:
    """Return the seed of a row, from that of the job and the row's number: other jobs' rows draw independently."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{row}".encode()).digest()[:4], "big")


class Runner:
    """A loaded model that runs lists of prompts. The model is then this object's alone."""

    def __init__(
        self, model: CausalLM | Seq2SeqLM | Encoder | VisionEncoder | DualEncoder, verb: Verb, options: BatchOptions
    ):
        self._model, self._verb, self._options = model, verb, options
        self._generation = dict(options.generation)
        languages = {"source_language", "target_language", "language"}
        plain = {name: value for name, value in self._generation.items() if name not in languages}
        beams = isinstance(model, Seq2SeqLM) and model.uses_beam_search(**plain)
        self._sources = min(options.max_rows, BEAM_SOURCES) if beams else options.max_rows
        self._engine: OfflineEngine | None = None
        if verb in TEXT_VERBS and (isinstance(model, CausalLM) or self._samples):
            assert isinstance(model, CausalLM | Seq2SeqLM)
            # Prompt lookup, which a bundle's own config may ask for, drafts by the clock: bytes would differ.
            self._generation["prompt_lookup_num_tokens"] = 0
            self._engine = OfflineEngine(model, max_rows=options.max_rows, memory=ENGINE_MEMORY, prefix_cache_bytes=0)

    def run(self, prompts: Sequence[Any], first_row: int) -> list[Result]:
        """Return a result for each prompt; a prompt that is an EdgeformerError is that row's error already."""
        results: list[Result | None] = [_failed(each) if isinstance(each, Exception) else None for each in prompts]
        open_rows = [place for place, result in enumerate(results) if result is None]
        if self._engine is not None:
            found = self._generate(prompts, open_rows, first_row)
        else:
            found = self._by_length(prompts, open_rows)
        for place, result in found.items():
            results[place] = result
        assert all(result is not None for result in results)
        return [result for result in results if result is not None]

    def _generate(self, prompts: Sequence[Any], places: list[int], first_row: int) -> dict[int, Result]:
        """Generate with the engine; rows with pictures or recordings a few at a time, for they take memory."""
        seeing = [place for place in places if isinstance(prompts[place], MediaPrompt)]
        size = min(PICTURE_ROWS, self._options.max_rows)
        results = self._generate_together(prompts, [place for place in places if place not in set(seeing)], first_row)
        for start in range(0, len(seeing), size):
            results |= self._generate_together(prompts, seeing[start : start + size], first_row)
        return results

    def _generate_together(self, prompts: Sequence[Any], places: list[int], first_row: int) -> dict[int, Result]:
        """Generate with the engine, the longest prompts first, so that none runs alone at the end."""
        engine, streams = self._engine, dict[int, GenerationStream]()
        assert engine is not None
        encoded, results = _encoded(self._encode, prompts, places)
        for place in sorted(encoded, key=lambda place: (-len(encoded[place]), place)):
            try:
                streams[place] = engine.submit(encoded[place], **self._generation | self._seed(first_row + place))
            except EdgeformerError as error:
                results[place] = _failed(error)
        for place, stream in streams.items():
            try:
                results[place] = _generated(self._answer(stream.finish(), encoded[place]))
            except Exception as error:  # of onnxruntime, which has no base class of its own; it is this row's alone
                results[place] = _failed(error)
        return results

    def _answer(self, result: Generation, prompt: Any) -> Generation:
        """Return a result; of a chat with a model that thinks, what it thought is apart from its answer."""
        model = self._model
        if self._verb != "chat" or model.require_tokenizer().thinking_format is None:
            return result
        stop = self._generation.get("stop") or ()
        shown = prompt.shown if isinstance(prompt, SeenPrompt) else prompt
        thinking = new_thinking(model.require_tokenizer(), shown, (stop,) if isinstance(stop, str) else stop)
        return divided(result, thinking, model.manifest.tokens.eos)

    def _encode(self, prompt: Any) -> Any:
        """Return what the engine is given: token ids of a decoder, the text itself of an encoder-decoder."""
        model = self._model
        if not isinstance(model, CausalLM):
            return _text(prompt)
        if isinstance(prompt, MediaPrompt):
            shown = self._encode_chat(prompt.prompt) if self._verb == "chat" else _text(prompt.prompt)
            assert isinstance(model, TowerTextLM), "`with_media` has checked it"
            return model.see(shown, prompt.contents())
        if self._verb == "chat":
            return self._encode_chat(prompt)
        return model.encode(prompt)

    def _encode_chat(self, prompt: Any) -> list[int]:
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        return self._model.require_tokenizer().encode_chat(messages)

    def _seed(self, row: int) -> dict[str, int]:
        """Return the option `seed` of a row that samples."""
        return {"seed": row_seed(self._options.seed, row)} if self._samples else {}

    @property
    def _samples(self) -> bool:
        return bool(self._generation.get("temperature"))

    def _by_length(self, prompts: Sequence[Any], places: list[int]) -> dict[int, Result]:
        """Run rows in batches of similar lengths; where a batch fails, its rows by themselves."""
        encode, run, size = self._batch_functions()
        encoded, results = _encoded(encode, prompts, places)
        order = sorted(encoded, key=lambda place: (_tokens(encoded[place]), place))
        for start in range(0, len(order), size):
            batch = order[start : start + size]
            try:
                found = run([encoded[place] for place in batch])
            except Exception:  # of onnxruntime, too, which has no base class: each row runs again and keeps its error
                found = [self._alone(run, encoded[place]) for place in batch]
            results |= dict(zip(batch, found, strict=True))
        return results

    @staticmethod
    def _alone(run: Callable[[list[Any]], list[Result]], row: Any) -> Result:
        try:
            return run([row])[0]
        except Exception as error:  # of onnxruntime, which has no base class of its own; it is this row's alone
            return _failed(error)

    def _batch_functions(self) -> tuple[Callable[[Any], Any], Callable[[list[Any]], list[Result]], int]:
        """Return what encodes a prompt, what runs encoded ones, and how many run together; single ones stay texts."""
        match self._verb:
            case "embed":
                return self._encode_to_embed, self._embed, BATCH
            case "classify":
                return self._encode_to_classify, self._classify, BATCH
            case "fill-mask":
                return self._seen, self._fill_mask, 1
            case "perplexity":
                return _text, self._perplexity, 1
            case "transcribe":
                return lambda recording: recording, self._transcribe, 1
            case _:
                return self._encode_source, self._generate_batch, self._sources

    def _encode_to_embed(self, text: Any) -> Encoded:
        model = self._model
        assert isinstance(model, Encoder)
        return model.encode_text(self._seen(text, model.with_prompt), truncate=True)

    def _seen(self, text: Any, prompted: Callable[[str], Any] = str) -> Any:
        """Return a text with its prompt; one with pictures as its token ids with these."""
        if not isinstance(text, MediaPrompt):
            return prompted(_text(text))
        assert isinstance(self._model, PictureEncoder), "`with_media` has checked it"
        return self._model.see(prompted(_text(text.prompt)), text.contents())

    def _embed(self, texts: list[Encoded]) -> list[Result]:
        model = self._model
        assert isinstance(model, Encoder)
        vectors = model.embed_encoded(texts)
        return [
            Result(output=vector.tolist(), prompt_tokens=len(ids))
            for vector, (ids, _) in zip(vectors, texts, strict=True)
        ]

    def _encode_to_classify(self, text: Any) -> list[int]:
        model = self._model
        assert isinstance(model, Encoder)
        return model.encode_text(self._seen(text))[0]

    def _classify(self, texts: list[list[int]]) -> list[Result]:
        model = self._model
        assert isinstance(model, Encoder)
        found = model.classify(texts, batch_size=BATCH)
        return [
            Result(
                output=classes[0].label,
                prompt_tokens=len(ids),
                scores=tuple((each.label, each.probability) for each in classes),
            )
            for classes, ids in zip(found, texts, strict=True)
        ]

    def _fill_mask(self, texts: list[str]) -> list[Result]:
        model = self._model
        assert isinstance(model, Encoder)
        found = model.fill_mask(texts[0])
        scores = tuple((each.token, each.probability) for each in found)
        return [Result(output=found[0].text, prompt_tokens=len(model.encode_text(texts[0])[0]), scores=scores)]

    def _perplexity(self, texts: list[str]) -> list[Result]:
        score = score_text(self._model, texts[0])
        return [Result(output=score.perplexity, prompt_tokens=score.tokens + 1)]

    def _transcribe(self, recordings: list[Any]) -> list[Result]:
        model, [source] = self._model, recordings
        assert isinstance(model, Seq2SeqLM)
        if isinstance(source, MediaPrompt):
            return [_generated(model.generate(picture, **self._generation)) for picture in source.contents()[:1]]
        return [Result(output=model.transcribe(source, **self._generation))]

    def _encode_source(self, prompt: Any) -> list[int]:
        model = self._model
        assert isinstance(model, Seq2SeqLM)
        source, target, _ = self._languages()
        sources: list[Any] = [_text(prompt)]
        if source or target:
            sources, _, _ = model.translation_of(sources, source, target, {})
        return model.encode_sources(sources)[0]

    def _generate_batch(self, sources: list[list[int]]) -> list[Result]:
        model = self._model
        assert isinstance(model, Seq2SeqLM)
        source, target, options = self._languages()
        start: list[int] | None = None
        if source or target:
            _, start, options = model.translation_of([], source, target, options)
        return [_generated(each) for each in model.generate(sources, prompt=start, **options)]

    def _languages(self) -> tuple[str | None, str | None, Any]:
        """Return the language of sources, that of texts, and the other options."""
        options: Any = dict(self._generation)
        return options.pop("source_language", None), options.pop("target_language", None), options


def _encoded(
    encode: Callable[[Any], Any], prompts: Sequence[Any], places: Sequence[int]
) -> tuple[dict[int, Any], dict[int, Result]]:
    """Return encoded prompts by their places, and the results of those that cannot be encoded."""
    encoded: dict[int, Any] = {}
    failed: dict[int, Result] = {}
    for place in places:
        try:
            encoded[place] = encode(prompts[place])
        except Exception as error:  # of tokenizers, which has no base class of its own; it is this row's alone
            failed[place] = _failed(error)
    return encoded, failed


def _tokens(row: Any) -> int:
    """Return the number of tokens of an encoded row; 0 for rows that are not encoded, which run one by one."""
    ids = row[0] if isinstance(row, tuple) else row
    return len(ids) if isinstance(ids, list) else 0


def _text(prompt: Any) -> str:
    if not isinstance(prompt, str):
        raise RequestError(f"the prompt is {str(prompt)[:60]!r}; it must be a text.")
    return prompt


def _generated(result: Generation) -> Result:
    return Result(
        output=result.text,
        reasoning_content=result.reasoning,
        finish_reason=result.finish_reason,
        prompt_tokens=result.prompt_tokens,
        completion_tokens=len(result.token_ids),
    )


def _failed(error: Exception) -> Result:
    return Result(error=str(error) if isinstance(error, EdgeformerError) else f"{type(error).__name__}: {error}")


def as_columns(result: Result, verb: Verb) -> dict[str, Any]:
    """Return a result by the names of the columns that the verb writes, in their order."""
    columns = dict(vars(result))
    scores, error = columns.pop("scores"), columns.pop("error")
    if verb in ("classify", "fill-mask"):
        columns["scores"] = None if scores is None else [{"label": label, "score": score} for label, score in scores]
    columns["error"] = error
    if verb != "chat":
        del columns["reasoning_content"]
    if verb not in TEXT_VERBS:
        del columns["finish_reason"], columns["completion_tokens"]
    return columns
