"""Score a model by exact match on questions with one right answer.

A model that generates text does so greedily, and its answer is right if it is the whole text, ended by the model
itself. An encoder picks the answer whose embedding is nearest to that of the prompt, among all answers of the skill.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgeformer.errors import RequestError
from edgeformer.runtime.generation.row import Generation
from edgeformer.runtime.measure.evaluation.perplexity import Progress, silent, surprise
from edgeformer.runtime.measure.evaluation.questions import Question, choose
from edgeformer.runtime.measure.evaluation.scores import Answer, Evaluation
from edgeformer.runtime.steps.decode_graph import Logits
from edgeformer.runtime.tasks.causal_lm import CausalLM
from edgeformer.runtime.tasks.encoders.encoder import Encoder
from edgeformer.runtime.tasks.model import Model
from edgeformer.runtime.tasks.seq2seq import Seq2SeqLM
from edgeformer.runtime.text.languages import plan_translation

BATCH = 32
"""Questions that are answered at once, unless the call says otherwise."""

MARGIN = 16
"""New tokens allowed beyond the longest right answer of a batch."""


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
    """Ask a model questions; return its answers and their scores.

    limit: questions of each skill, drawn by the seed; None for all. batch_size: questions that are answered at once.
    stop: texts that end an answer, for a model that does not end by itself; the perplexity then leaves the end token
    out. progress: called with the fraction that is done.

    Raises RequestError for a model that has no such score, and for a question that is longer than its context.
    """
    asked = choose(questions, limit, seed)
    if not asked:
        raise RequestError("there is no question; give at least one.")
    if batch_size < 1:
        raise RequestError(f"batch_size is {batch_size}; it must be at least 1.")
    stop = [stop] if isinstance(stop, str) else list(stop)
    match model:
        case CausalLM():
            answers = _CausalAnswers(model, stop).answer(asked, batch_size, progress)
        case Seq2SeqLM():
            answers = _Seq2SeqAnswers(model, stop).answer(asked, batch_size, progress)
        case _:
            assert isinstance(model, Encoder)
            answers = _pick(model, asked, questions, batch_size)
    return Evaluation(answers=tuple(answers))


class _GeneratedAnswers(ABC):
    """Answers of a model that generates text."""

    def __init__(self, model: CausalLM | Seq2SeqLM, stop: Sequence[str]):
        self.model = model
        self.stop = stop
        self.eos = model.manifest.tokens.eos

    def answer(self, questions: Sequence[Question], batch_size: int, progress: Progress) -> list[Answer]:
        """Answer all questions, in batches of similar answer lengths; return the answers in the questions' order."""
        encoded = [self.encode(each) for each in questions]
        rooms = [self.room(prompt) for prompt, _ in encoded]
        for question, (prompt, answer), room in zip(questions, encoded, rooms, strict=True):
            if len(answer) >= room:  # one more token is needed for the end
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
            generated = self.generate([encoded[place][0] for place in batch], min(longest + MARGIN, room))
            for place, result in zip(batch, generated, strict=True):
                answers[place] = self.judge(questions[place], *encoded[place], result)
            progress(len(answers) / len(order))
        return [answers[place] for place in range(len(questions))]

    def judge(self, question: Question, prompt: list[int], answer: list[int], generated: Generation) -> Answer:
        """Compare the generated text with the right answer, and compute the model's perplexity of the right one."""
        assert generated.text is not None
        wanted: list[Sequence[int]] = [[token] for token in answer]
        if self.eos and not self.stop:
            wanted.append(self.eos)  # the probability that any of them comes
        rows = self.logits(prompt, answer)[: len(wanted)]
        return Answer(
            question=question,
            text=generated.text,
            right=generated.finish_reason != "length" and question.answered_by(generated.text),
            nats=sum(surprise(row, tokens) for row, tokens in zip(rows, wanted, strict=True)),
            tokens=len(wanted),
        )

    @abstractmethod
    def encode(self, question: Question) -> tuple[list[int], list[int]]:
        """Return the tokens of the prompt, and of the answer without an end token."""

    @abstractmethod
    def room(self, prompt: list[int]) -> int:
        """Return how many tokens the context leaves after a prompt."""

    @abstractmethod
    def generate(self, prompts: list[list[int]], max_new_tokens: int) -> list[Generation]:
        """Generate texts greedily."""

    @abstractmethod
    def logits(self, prompt: list[int], answer: list[int]) -> Logits:
        """Return the logits after the prompt and after each token of the answer [1 + S, V]."""


class _CausalAnswers(_GeneratedAnswers):
    """Answers of a decoder-only model, which continues the prompt."""

    model: CausalLM

    def encode(self, question: Question) -> tuple[list[int], list[int]]:
        tokenizer = self.model.require_tokenizer()
        prompt = self.model.encode(question.prompt)
        both = tokenizer.encode(question.prompt + question.answer)
        if both[: len(prompt)] == prompt:
            return prompt, both[len(prompt) :]
        # A token spans prompt and answer, or the tokenizer ends every text: the answer is encoded by itself.
        return prompt, tokenizer.encode(question.answer, add_special_tokens=False)

    def room(self, prompt: list[int]) -> int:
        return self.model.manifest.context_length - len(prompt)

    def generate(self, prompts: list[list[int]], max_new_tokens: int) -> list[Generation]:
        return self.model.generate(prompts, max_new_tokens=max_new_tokens, stop=self.stop)

    def logits(self, prompt: list[int], answer: list[int]) -> Logits:
        decoder = self.model.new_decoder(1, len(prompt) + len(answer))
        return np.concatenate([decoder.prefill(0, prompt)[None], decoder.prefill_all(0, answer)])


class _Seq2SeqAnswers(_GeneratedAnswers):
    """Answers of an encoder-decoder, whose source is the prompt."""

    model: Seq2SeqLM

    def __init__(self, model: Seq2SeqLM, stop: Sequence[str]):
        super().__init__(model, stop)
        if not model.reads_text:
            what = "is a speech model" if model.is_speech else "model reads pictures"
            raise RequestError(f"this {what}, and questions are texts; it has no such score.")
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

    def generate(self, prompts: list[list[int]], max_new_tokens: int) -> list[Generation]:
        return self.model.generate(prompts, max_new_tokens=max_new_tokens, stop=self.stop, num_beams=1)

    def logits(self, prompt: list[int], answer: list[int]) -> Logits:
        return self.model.forward(prompt, answer)


def _pick(model: Encoder, asked: list[Question], questions: Sequence[Question], batch_size: int) -> list[Answer]:
    """Pick the answer nearest to each prompt among all answers of its skill, also to questions that are not asked."""
    if model.gives and "vector" not in model.gives:
        raise RequestError(
            "this encoder labels texts, fills masks or finds answers in them, and questions are for models that "
            "generate or embed: it has no such score."
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
    """Scale rows to length 1, so that the dot product ranks answers by cosine."""
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
