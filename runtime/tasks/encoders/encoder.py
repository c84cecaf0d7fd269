"""Embed texts, classify them, and fill masks with an encoder."""

from collections.abc import Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from edgeformer.config import ClassificationHead, PoolingHead, QuestionAnsweringHead
from edgeformer.config.heads import Gives, HeadOutput, Reading, TokenVectorsHead, TokenWeightsHead
from edgeformer.errors import RequestError
from edgeformer.runtime.caches.encoder_outputs import check_length
from edgeformer.runtime.request_values import count, flag, is_list, shown, text_or_ids
from edgeformer.runtime.tasks.encoders.cross_encoder import Ranked, best_documents, encode_messages, score_of
from edgeformer.runtime.tasks.encoders.embeddings.forms import (
    FORMS,
    Embedding,
    Form,
    SparseVector,
    sparse_of_tokens,
    sparse_of_vocabulary,
)
from edgeformer.runtime.tasks.encoders.embeddings.late_interaction import as_read, max_sim
from edgeformer.runtime.tasks.encoders.question_answering import (
    ANSWER_TOKENS,
    Answer,
    best_answers,
    no_answer,
    read_windows,
)
from edgeformer.runtime.tasks.encoders.text_encoder import BATCH, Encoded, Pair, TextEncoder, batches, is_pair
from edgeformer.runtime.tasks.encoders.token_spans import AGGREGATIONS, Aggregation, Span, find_spans
from edgeformer.runtime.tasks.labels import Class, Filling, label_probabilities, softmax
from edgeformer.runtime.tasks.model import Text
from edgeformer.runtime.text.text_prompts import choose_prompt

NO_INSTRUCTION = "this model ranks texts without an instruction. Leave prompt and prompt_name out."

ABILITIES: dict[Gives, str] = {
    "words": "It fills masks: fill_mask.",
    "classes": "It classifies: classify.",
    "token classes": "It classifies: classify.",
    "answers": "It answers questions: answer.",
    "vector": "It embeds: embed.",
    "sparse vector": "It makes sparse vectors: embeddings.",
    "token weights": "It makes sparse vectors: embeddings.",
    "token vectors": "It makes a vector of every token: embeddings, rank.",
}
"""The call for what a model gives, in words."""


class Encoder(TextEncoder):
    """An encoder. `embed` always works; `classify`, `answer` and `fill_mask` need a model with that head."""

    def embed(
        self,
        texts: Text | Pair | Sequence[Text | Pair],
        *,
        batch_size: int = BATCH,
        truncate: bool = True,
        prompt: str | None = None,
        prompt_name: str | None = None,
        dimensions: int | None = None,
    ) -> NDArray[np.float32]:
        """Return one vector for each text: float32 [N, E], or [E] for one text.

        It is what the model pools itself (`sentence_embedding` of a sentence encoder), or else the mean of its last
        hidden states over the text's tokens. Texts of similar length run together, `batch_size` at once; the order of
        the results is that of the texts.

        truncate: cut texts to the tokens that the model has positions for, or to its max_seq_length, as
        sentence-transformers does; otherwise, and for token ids in any case, longer texts are a RequestError. prompt,
        prompt_name: see `with_prompt`. dimensions: return the first numbers of each vector only, for models that were
        trained so (Matryoshka, arXiv 2205.13147); they are not scaled again.
        """
        if dimensions is not None:
            count("dimensions", dimensions, most=self._width())
        prompted = self.with_prompt(texts, prompt, prompt_name)
        vectors = self.by_length(prompted, batch_size, self.embed_encoded, truncate)
        return vectors if dimensions is None else first_dimensions(vectors, dimensions)

    def embed_encoded(self, encoded: list[Encoded]) -> NDArray[np.float32]:
        """Return the vectors of texts from `encode_text`, run as one batch: float32 [N, E].

        Raises RequestError for a model that is made for other embeddings.
        """
        self.require_vectors()
        return self._pooled(encoded) if "vector" in self.gives else self._mean(encoded)

    def require_vectors(self) -> None:
        """Raise RequestError for a model whose embeddings are no single vectors."""
        if self.forms and "dense" not in self.forms:
            raise RequestError(f"this model gives no single vector of a text. {self._abilities()}")

    @property
    def forms(self) -> list[Form]:
        """The forms of embeddings that the model is made for; none where `embed` takes the mean of its states."""
        return list(dict.fromkeys(FORMS[given] for given in self.gives if given in FORMS))

    @overload
    def embeddings(  # type: ignore[overload-overlap]
        self,
        texts: Text,
        *,
        forms: Sequence[Form] | None = None,
        query: bool = False,
        batch_size: int = BATCH,
        truncate: bool = True,
        prompt: str | None = None,
        prompt_name: str | None = None,
    ) -> Embedding: ...

    @overload
    def embeddings(
        self,
        texts: Sequence[Text],
        *,
        forms: Sequence[Form] | None = None,
        query: bool = False,
        batch_size: int = BATCH,
        truncate: bool = True,
        prompt: str | None = None,
        prompt_name: str | None = None,
    ) -> list[Embedding]: ...

    def embeddings(
        self,
        texts: Text | Sequence[Text],
        *,
        forms: Sequence[Form] | None = None,
        query: bool = False,
        batch_size: int = BATCH,
        truncate: bool = True,
        prompt: str | None = None,
        prompt_name: str | None = None,
    ) -> Embedding | list[Embedding]:
        """Return all that the model makes of a text, in one run; for a list of texts, a list.

        forms: `dense`, `sparse`, `tokens`; None for all that the model gives (`Encoder.forms`). query: read texts as
        queries, with the prefix and the tokens behind them that ColBERT has for those, and not as documents. The other
        arguments are those of `embed`. Raises RequestError for a form that the model does not give.
        """
        found, _ = self._read_and_embed(texts, forms, query, batch_size, truncate, prompt, prompt_name)
        return found if self.is_list(texts) else found[0]

    def _read_and_embed(
        self,
        texts: Text | Sequence[Text],
        forms: Sequence[Form] | None,
        query: bool,
        batch_size: int,
        truncate: bool = True,
        prompt: str | None = None,
        prompt_name: str | None = None,
    ) -> tuple[list[Embedding], int]:
        """Return the embeddings of texts, and the number of tokens that the model read for them."""
        wanted = list(self.forms if forms is None else forms if is_list(forms) else ())
        if not wanted or any(not isinstance(form, str) or form not in self.forms for form in wanted):
            known = ", ".join(self.forms) or "none"
            raise RequestError(f"forms is {shown(forms)}; this model gives {known}. {self._abilities()}")
        outputs = [output for output in self.config.head_outputs if FORMS.get(output.gives) in wanted]
        reading = self._reading(query)
        given = self.with_prompt(texts, prompt, prompt_name)
        explicit = prompt is not None or prompt_name is not None
        prompted = given if explicit or not reading.prompt else self.with_prompt(texts, reading.prompt)
        prefixed = 0 if reading.prefix is None else 1
        longest = min(reading.max_length or self.config.context_length, self.config.context_length)
        tokens = 0

        def run(encoded: list[Encoded]) -> list[Embedding]:
            nonlocal tokens
            read = [as_read(*each, reading) for each in encoded]
            tokens += sum(len(ids) for (ids, _), _ in read)
            check_length(max(len(ids) for (ids, _), _ in read), self.config.context_length, "the text")
            attended = [
                len(ids) if reading.expansion is None or reading.expansion.attended else seen for (ids, _), seen in read
            ]
            arrays = self.run_encoded([each for each, _ in read], [output.name for output in outputs], attended)
            return [
                self._embedding(outputs, {name: array[row] for name, array in arrays.items()}, ids, reading)
                for row, ((ids, _), _) in enumerate(read)
            ]

        found: Any = self.by_length(prompted, batch_size, run, truncate, longest - prefixed)
        return list(found) if self.is_list(texts) else [found], tokens

    def _reading(self, query: bool) -> Reading:
        """Return how texts of a role are read."""
        flag("query", query)
        head = self.part("token vectors")
        if not isinstance(head, TokenVectorsHead):
            return Reading()
        return head.query if query else head.document

    def _embedding(
        self, outputs: list[HeadOutput], arrays: dict[str, NDArray[np.float32]], ids: list[int], reading: Reading
    ) -> Embedding:
        """Return the embedding of one text, of its rows of the outputs."""
        found: dict[str, Any] = {}
        for output in outputs:
            array = arrays[output.name]
            match output.gives:
                case "vector":
                    found["dense"] = array
                case "sparse vector":
                    found["sparse"] = sparse_of_vocabulary(array)
                case "token weights":
                    head = self.part("token weights")
                    skipped = head.skipped_tokens if isinstance(head, TokenWeightsHead) else ()
                    found["sparse"] = sparse_of_tokens(array[: len(ids)], ids, skipped)
                case "token vectors":
                    kept = np.isin(np.array(ids), reading.skipped_tokens, invert=True)
                    found["tokens"] = array[: len(ids)][kept]
        return Embedding(**found)

    def sparse_tokens(self, vector: SparseVector, top_k: int | None = None) -> list[tuple[str, float]]:
        """Return the tokens of a sparse vector with their numbers, the largest first. top_k: how many, None for all."""
        if not isinstance(vector, SparseVector):
            raise RequestError(f"vector is {shown(vector)}; it must be the sparse one of an embedding.")
        most = len(vector.indices) if top_k is None else count("top_k", top_k)
        backend, order = self.require_tokenizer().backend, np.argsort(-vector.values, kind="stable")[:most]
        names = [str(backend.id_to_token(int(vector.indices[place]))) for place in order]
        return [(name, float(vector.values[place])) for name, place in zip(names, order, strict=True)]

    # A str is a Sequence[str] too, which mypy reports; the overload of one text comes first and wins.
    @overload
    def classify(self, texts: Text | Pair, *, batch_size: int = BATCH) -> list[Class]: ...  # type: ignore[overload-overlap]

    @overload
    def classify(self, texts: Sequence[Text | Pair], *, batch_size: int = BATCH) -> list[list[Class]]: ...

    def classify(
        self, texts: Text | Pair | Sequence[Text | Pair], *, batch_size: int = BATCH
    ) -> list[Class] | list[list[Class]]:
        """Return all labels of a text with their probabilities, the likeliest first; for a list of texts, a list each.

        A tuple of two texts is a pair. A model that labels tokens gives the likeliest `Class` of each token instead.
        Raises RequestError for a model without classes and for texts beyond its context.
        """
        head = self.config.head
        if not isinstance(head, ClassificationHead):
            raise RequestError(f"this model has no classes. {self._abilities()}")
        logits = self.by_length(texts, batch_size, self._token_logits if head.pooling is None else self._logits)
        rows = [logits] if not self.is_list(texts) else list(logits)
        if head.pooling is None:
            found = [[label_probabilities(head.labels, token)[0] for token in row] for row in rows]
        else:
            found = [label_probabilities(head.labels, row, head.problem_type) for row in rows]
        return found if self.is_list(texts) else found[0]

    def spans(
        self, texts: str | Sequence[str], *, aggregation: Aggregation = "simple", batch_size: int = BATCH
    ) -> list[Span] | list[list[Span]]:
        """Return the labelled spans of a text, in its order; for a list of texts, a list each.

        Neighbouring tokens of one label are a span, as transformers' pipeline joins them; what is labelled O is none.
        aggregation: what labels a word of several tokens: each token by itself (`simple`), its `first` token, the
        `average` of all, or the token that is surest (`max`). Raises RequestError for a model that labels no tokens.
        """
        head = self.config.head
        if not isinstance(head, ClassificationHead) or head.pooling is not None:
            raise RequestError(f"this model labels no tokens. {self._abilities()}")
        if aggregation not in AGGREGATIONS:
            raise RequestError(f"aggregation is {shown(aggregation)}; it must be one of {', '.join(AGGREGATIONS)}.")
        given = [text_or_ids("text", text) for text in (texts if self.is_list(texts) else [texts])]
        if not all(isinstance(text, str) for text in given):
            raise RequestError("spans are parts of texts, and not of token ids. Give texts.")
        logits = self.by_length(given, batch_size, self._token_logits)
        tokenizer = self.require_tokenizer()
        found = [
            find_spans(tokenizer, str(text), softmax(rows), head.labels, aggregation)
            for text, rows in zip(given, logits, strict=True)
        ]
        return found if self.is_list(texts) else found[0]

    def score(
        self,
        pairs: Pair | Sequence[Pair],
        *,
        batch_size: int = BATCH,
        truncate: bool = True,
        prompt: str | None = None,
        prompt_name: str | None = None,
    ) -> NDArray[np.float32]:
        """Return the scores that a cross-encoder gives to pairs of texts: float32 [N], or a number for one pair.

        A model of several labels gives one score for each: [N, labels]. They are those of sentence-transformers'
        CrossEncoder; a causal model that answers yes or no gives the probability of yes. truncate: cut long pairs to
        what the tokenizer allows, the longer text first. prompt: the instruction of a model that has one in its chat
        template; prompt_name: the name of one of its own; neither: its default. Raises RequestError for a model without
        classes of texts, for what is no pair, and for a prompt that the model does not read.
        """
        self.require_scores()
        flag("truncate", truncate)
        many = self.is_list(pairs)
        given: list[Any] = list(pairs) if many else [pairs]
        laid_out = [self._laid_out(pair, truncate, prompt, prompt_name) for pair in given]
        return self.by_length(
            laid_out if many else laid_out[0], batch_size, self.score_encoded, truncate, self._longest_pair
        )

    def encode_pair(
        self, pair: Pair, truncate: bool = True, *, prompt: str | None = None, prompt_name: str | None = None
    ) -> Encoded:
        """Return the token ids and types of a pair, as `score` runs it. Raises RequestError as it does."""
        return self.encode_text(self._laid_out(pair, truncate, prompt, prompt_name), truncate, self._longest_pair)

    def _laid_out(self, pair: Any, truncate: bool, prompt: str | None, prompt_name: str | None) -> Pair | list[int]:
        """Return a pair as it is encoded, or its token ids by the chat template, where the model wants that."""
        if not is_pair(pair):
            raise RequestError(f"{shown(pair)} is no pair; give a tuple of two texts, or a list of such.")
        form = self.require_scores().messages
        if form is not None:
            chosen = choose_prompt(self.manifest.prompts, prompt, prompt_name)
            for part in pair:
                text_or_ids("text", part)
            most = self._longest_pair if truncate else None
            return encode_messages(self.require_tokenizer(), pair, chosen, form == "open", most)
        if prompt is not None or prompt_name is not None:
            raise RequestError(NO_INSTRUCTION)
        return pair

    def score_encoded(self, encoded: list[Encoded]) -> NDArray[np.float32]:
        """Return the scores of pairs from `encode_pair`, run as one batch, as `score` returns them."""
        return score_of(self.require_scores(), self._logits(encoded))

    @property
    def ranks(self) -> bool:
        """Whether the model scores a document for a query, so that `rank` works: as a pair, or by their tokens."""
        return self.scores_pairs or "tokens" in self.forms

    @property
    def scores_pairs(self) -> bool:
        """Whether the model gives one score to a pair of texts that it reads together."""
        head = self.config.head
        return isinstance(head, ClassificationHead) and head.pooling is not None and len(head.labels) == 1

    def require_scores(self) -> ClassificationHead:
        """Return the head that scores pairs. Raises RequestError for a model without one."""
        head = self.config.head
        if not isinstance(head, ClassificationHead) or head.pooling is None:
            raise RequestError(f"this model scores no pairs. {self._abilities()}")
        return head

    @property
    def _longest_pair(self) -> int:
        return min(self.config.context_length, self.require_tokenizer().max_length)

    def rank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        top_k: int | None = None,
        batch_size: int = BATCH,
        prompt: str | None = None,
        prompt_name: str | None = None,
    ) -> list[Ranked]:
        """Return documents by their scores as answers to a query, the best first, as CrossEncoder.rank does.

        A model that makes a vector of every token scores them by MaxSim. top_k: how many, None for all. prompt,
        prompt_name: as in `score`. Raises RequestError for a model that ranks nothing.
        """
        if not self.ranks:
            raise RequestError(f"this model ranks nothing, since it does not give one score. {self._abilities()}")
        if not is_list(documents):
            raise RequestError(f"documents is {shown(documents)}; it must be a list of texts.")
        most = len(documents) if top_k is None else count("top_k", top_k)
        if self.scores_pairs:
            pairs = [(query, document) for document in documents]
            scores = self.score(pairs, batch_size=batch_size, prompt=prompt, prompt_name=prompt_name)
        elif prompt is not None or prompt_name is not None:
            raise RequestError(NO_INSTRUCTION)
        else:
            scores = self.max_sim(query, documents, batch_size=batch_size)
        return best_documents(documents, scores, most)

    def max_sim(self, query: str, documents: Sequence[str], *, batch_size: int = BATCH) -> NDArray[np.float32]:
        """Return the scores of documents for a query by late interaction: float32 [N]; see `embeddings.max_sim`.

        Raises RequestError for a model that makes no vectors of tokens.
        """
        return self.max_sim_and_tokens(query, documents, batch_size=batch_size)[0]

    def max_sim_and_tokens(
        self, query: str, documents: Sequence[str], *, batch_size: int = BATCH
    ) -> tuple[NDArray[np.float32], int]:
        """Return what `max_sim` returns, and the number of tokens that the model read for it."""
        if not is_list(documents):
            raise RequestError(f"documents is {shown(documents)}; it must be a list of texts.")
        if "tokens" not in self.forms:
            raise RequestError(f"this model makes no vectors of tokens for documents. {self._abilities()}")
        [of_query], tokens = self._read_and_embed(query, ["tokens"], True, batch_size)
        asked = of_query.tokens
        texts = list(documents)
        found, more = self._read_and_embed(texts, ["tokens"], False, batch_size) if texts else ([], 0)
        head = self.part("token vectors")
        assert asked is not None and isinstance(head, TokenVectorsHead)
        divisor = max(len(asked), 1) if head.score == "mean" else 1
        scores = [max_sim(asked, each.tokens) / divisor for each in found if each.tokens is not None]
        return np.array(scores, np.float32), tokens + more

    def answer(
        self,
        question: str,
        context: str,
        *,
        top_k: int = 1,
        max_answer_tokens: int = ANSWER_TOKENS,
        allow_none: bool = False,
        batch_size: int = BATCH,
    ) -> list[Answer]:
        """Return the top_k likeliest answers to a question among the spans of a context, best first.

        A context longer than the model's is read in windows. max_answer_tokens: tokens of an answer at most.
        allow_none: whether "the context has no answer" is one, an `Answer` without text. Raises RequestError for a
        model that answers no questions, and for a question that leaves no room for a context.
        """
        if not isinstance(self.config.head, QuestionAnsweringHead):
            raise RequestError(f"this model answers no questions. {self._abilities()}")
        count("top_k", top_k)
        count("max_answer_tokens", max_answer_tokens)
        flag("allow_none", allow_none)
        windows = read_windows(self.require_tokenizer(), question, context, self.config.context_length)
        encoded = [(window.ids, window.type_ids) for window in windows]
        pieces = batches([len(ids) for ids, _ in encoded], count("batch_size", batch_size))
        logits = [row for piece in pieces for row in self._answer_logits([encoded[index] for index in piece])]
        found = best_answers(windows, logits, context, top_k, max_answer_tokens)
        if allow_none:
            found = sorted([*found, no_answer(windows, logits)], key=lambda each: -each.score)[:top_k]
        return found

    def fill_mask(self, text: Text, *, top_k: int = 5) -> list[Filling]:
        """Return the top_k likeliest tokens for the one mask token of a text ([MASK] or <mask>), best first.

        Raises RequestError for a model that fills no masks, and for a text without exactly one mask.
        """
        if "words" not in self.gives:
            raise RequestError(f"this model fills no masks. {self._abilities()}")
        count("top_k", top_k)
        tokenizer = self.require_tokenizer()
        name = tokenizer.special_token("mask_token")
        mask = None if name is None else tokenizer.backend.token_to_id(name)
        if mask is None:
            raise RequestError("the tokenizer of this model names no mask token, so there is nothing to fill.")
        ids, _ = self.encode_text(text)
        places = [place for place, token in enumerate(ids) if token == mask]
        if len(places) != 1:
            raise RequestError(f"the text has {len(places)} masks; give it one {name}.")
        logits = self.run([ids], ["logits"])["logits"][0, places[0]]
        probabilities = softmax(logits)
        best = np.argsort(-logits, kind="stable")[:top_k].tolist()
        return [
            Filling(
                token_id=token,
                token=tokenizer.backend.decode([token], skip_special_tokens=False).strip(),
                probability=float(probabilities[token]),
                text=tokenizer.decode([*ids[: places[0]], token, *ids[places[0] + 1 :]]),
            )
            for token in best
        ]

    def _pooled(self, encoded: list[Encoded]) -> NDArray[np.float32]:
        return self.run_encoded(encoded, ["sentence_embedding"])["sentence_embedding"]

    def _mean(self, encoded: list[Encoded]) -> NDArray[np.float32]:
        states = self.run_encoded(encoded, ["last_hidden_state"])["last_hidden_state"]
        return np.stack([row[: len(ids)].mean(0) for row, (ids, _) in zip(states, encoded, strict=True)])

    def _logits(self, encoded: list[Encoded]) -> NDArray[np.float32]:
        return self.run_encoded(encoded, ["logits"])["logits"]

    def _token_logits(self, encoded: list[Encoded]) -> list[NDArray[np.float32]]:
        return [row[: len(ids)] for row, (ids, _) in zip(self._logits(encoded), encoded, strict=True)]

    def _answer_logits(self, encoded: list[Encoded]) -> list[NDArray[np.float32]]:
        """Return, for each text, the logits of its tokens as the first and as the last one of the answer: [S, 2]."""
        columns = self.run_encoded(encoded, ["start_logits", "end_logits"])
        rows = np.stack([columns["start_logits"], columns["end_logits"]], -1)
        return [row[: len(ids)] for row, (ids, _) in zip(rows, encoded, strict=True)]

    def _width(self) -> int:
        """Return the number of numbers in a vector of `embed`."""
        head, size = self.part("vector"), self.config.hidden_size
        return head.size(size) if isinstance(head, PoolingHead) else size

    def _abilities(self) -> str:
        return " ".join(dict.fromkeys(ABILITIES[given] for given in self.gives)) or "It embeds: embed."


def first_dimensions(vectors: NDArray[np.float32], dimensions: int) -> NDArray[np.float32]:
    """Return the first numbers of vectors [N, E] or [E]. Raises RequestError for more than there are."""
    return vectors[..., : count("dimensions", dimensions, most=vectors.shape[-1])]
