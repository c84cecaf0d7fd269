"""How many questions does a bundle answer rightly?

from edgeformer.runtime import load
from edgeformer.runtime.evaluation.exact_match import evaluate
from edgeformer.runtime.evaluation.questions import read_questions
result = evaluate(load("tiny-llama"), read_questions("my-questions.jsonl"))
print(result.total.exact, result.total.interval, result.total.perplexity)

A model that writes does so greedily, and an answer is right if it is the whole text, ended by the model itself. A model
that embeds picks the nearest of all answers of the skill.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgeformer.config import ClassificationHead, MaskedLMHead
from edgeformer.errors import RequestError
from edgeformer.runtime.causal_lm import CausalLM
from edgeformer.runtime.decoder import Logits
from edgeformer.runtime.encoder import Encoder
from edgeformer.runtime.evaluation.perplexity import Progress, silent, surprise
from edgeformer.runtime.evaluation.questions import Question, choose
from edgeformer.runtime.evaluation.scores import Answer, Evaluation
from edgeformer.runtime.generate import Generation
from edgeformer.runtime.languages import plan_translation
from edgeformer.runtime.model import Model
from edgeformer.runtime.seq2seq import Seq2SeqLM

BATCH = 32
MARGIN = 16
"""Tokens that an answer may be longer than the longest right one of its batch."""


def evaluate(
    model: Model,
    questions: Sequence[Question],
    *,
    limit: int | None = None,
    seed: int = 0,
    batch_size: int = BATCH,
    stop: str | Sequence[str] = (),
    progress: Progress = silent,
) -> Evaluation:
    """Ask a model questions.

    limit: how many of each skill, drawn by the seed; None for all. batch_size: how many are answered at once. stop:
    texts that end an answer, for a model that does not end by itself; the perplexity then has no end in it.

    Raises RequestError for a model that has no such score, and a question that is longer than its context.
    """
    asked = choose(questions, limit, seed)
    if not asked:
        raise RequestError("there is no question; give at least one.")
    if batch_size < 1:
        raise RequestError(f"batch_size is {batch_size}; it must be at least 1.")
    stop = [stop] if isinstance(stop, str) else list(stop)
    match model:
        case CausalLM():
            answers = _Continuing(model, stop).answer(asked, batch_size, progress)
        case Seq2SeqLM():
            answers = _Translating(model, stop).answer(asked, batch_size, progress)
        case _:
            assert isinstance(model, Encoder)
            answers = _pick(model, asked, questions, batch_size)
    return Evaluation(answers=tuple(answers))


class _Writing(ABC):
    """A model that writes answers."""

    def __init__(self, model: CausalLM | Seq2SeqLM, stop: Sequence[str]):
        self.model = model
        self.stop = stop
        self.eos = model.manifest.tokens.eos

    def answer(self, questions: Sequence[Question], batch_size: int, progress: Progress) -> list[Answer]:
        """Answer all questions, those of answers of like length together; the results are in their order."""
        encoded = [self.encode(each) for each in questions]
        rooms = [self.room(prompt) for prompt, _ in encoded]
        for question, (prompt, answer), room in zip(questions, encoded, rooms, strict=True):
            if len(answer) >= room:  # there must be one more for the end
                raise RequestError(
                    f"a question of {question.skill!r} has {len(prompt)} tokens and its answer {len(answer)}, too many "
                    f"for the model's context of {self.model.manifest.context_length}: {question.prompt[:40]!r}…"
                )
        answers: dict[int, Answer] = {}
        order = sorted(range(len(questions)), key=lambda place: tuple(map(len, reversed(encoded[place]))))
        for start in range(0, len(order), batch_size):
            batch = order[start : start + batch_size]
            longest = max(len(encoded[place][1]) for place in batch)
            room = min(rooms[place] for place in batch)
            written = self.write([encoded[place][0] for place in batch], min(longest + MARGIN, room))
            for place, result in zip(batch, written, strict=True):
                answers[place] = self.judge(questions[place], *encoded[place], result)
            progress(len(answers) / len(order))
        return [answers[place] for place in range(len(questions))]

    def judge(self, question: Question, prompt: list[int], answer: list[int], written: Generation) -> Answer:
        """Compare what was written with the right answer, and let the model foretell that one."""
        assert written.text is not None
        wanted: list[Sequence[int]] = [[token] for token in answer]
        if self.eos and not self.stop:
            wanted.append(self.eos)  # any of them ends a text
        rows = self.logits(prompt, answer)[: len(wanted)]
        return Answer(
            question=question,
            text=written.text,
            right=written.finish_reason != "length" and question.answered_by(written.text),
            nats=sum(surprise(row, tokens) for row, tokens in zip(rows, wanted, strict=True)),
            tokens=len(wanted),
        )

    @abstractmethod
    def encode(self, question: Question) -> tuple[list[int], list[int]]:
        """Tokens of the prompt, and of the answer without an end."""

    @abstractmethod
    def room(self, prompt: list[int]) -> int:
        """How many tokens can be written after it."""

    @abstractmethod
    def write(self, prompts: list[list[int]], max_new_tokens: int) -> list[Generation]:
        """Generate greedily."""

    @abstractmethod
    def logits(self, prompt: list[int], answer: list[int]) -> Logits:
        """What comes after the prompt, and after each token of the answer behind it [1 + S, V]."""


class _Continuing(_Writing):
    model: CausalLM

    def encode(self, question: Question) -> tuple[list[int], list[int]]:
        tokenizer = self.model.require_tokenizer()
        prompt = self.model.encode(question.prompt)
        both = tokenizer.encode(question.prompt + question.answer)
        if both[: len(prompt)] == prompt:
            return prompt, both[len(prompt) :]
        # One token over the seam, or an end behind every text: the answer is encoded by itself.
        return prompt, tokenizer.encode(question.answer, add_special_tokens=False)

    def room(self, prompt: list[int]) -> int:
        return self.model.manifest.context_length - len(prompt)

    def write(self, prompts: list[list[int]], max_new_tokens: int) -> list[Generation]:
        return self.model.generate(prompts, max_new_tokens=max_new_tokens, stop=self.stop)

    def logits(self, prompt: list[int], answer: list[int]) -> Logits:
        decoder = self.model.new_decoder(1, len(prompt) + len(answer))
        return np.concatenate([decoder.prefill(0, prompt)[None], decoder.prefill_all(0, answer)])


class _Translating(_Writing):
    model: Seq2SeqLM

    def __init__(self, model: Seq2SeqLM, stop: Sequence[str]):
        super().__init__(model, stop)
        if model.is_speech:
            raise RequestError("this model hears recordings, and questions are texts; it has no such score.")
        try:
            plan_translation(model.require_tokenizer(), {}, None, None, (self.eos or (0,))[0])
        except RequestError as error:
            raise RequestError(f"questions name no languages, so this translator is not scored: {error}") from error

    def encode(self, question: Question) -> tuple[list[int], list[int]]:
        tokenizer = self.model.require_tokenizer()
        answer = tokenizer.encode(question.answer)
        return tokenizer.encode(question.prompt), answer[:-1] if answer[-1] in self.eos else answer

    def room(self, prompt: list[int]) -> int:
        return self.model.manifest.context_length - 1  # the start token

    def write(self, prompts: list[list[int]], max_new_tokens: int) -> list[Generation]:
        return self.model.generate(prompts, max_new_tokens=max_new_tokens, stop=self.stop, num_beams=1)

    def logits(self, prompt: list[int], answer: list[int]) -> Logits:
        return self.model.forward(prompt, answer)


def _pick(model: Encoder, asked: list[Question], questions: Sequence[Question], batch_size: int) -> list[Answer]:
    """The nearest to each prompt among all answers of its skill, those to questions that are not asked included."""
    if isinstance(model.config.head, ClassificationHead | MaskedLMHead):
        raise RequestError(
            "this encoder labels texts or fills masks, and questions are for models that write or embed: it has no "
            "such score."
        )
    picked: dict[Question, str] = {}
    for skill in dict.fromkeys(each.skill for each in asked):
        own = [each for each in asked if each.skill == skill]
        texts = list(dict.fromkeys(each.answer for each in questions if each.skill == skill))
        prompts = model.embed([each.prompt for each in own], batch_size=batch_size)  # [N, E]
        nearest = (prompts @ _unit(model.embed(texts, batch_size=batch_size)).T).argmax(1)
        picked.update(zip(own, (texts[place] for place in nearest), strict=True))
    return [Answer(question=each, text=picked[each], right=each.answered_by(picked[each])) for each in asked]


def _unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rows of length one: what is nearest by cosine does not depend on how long an answer's vector is."""
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
