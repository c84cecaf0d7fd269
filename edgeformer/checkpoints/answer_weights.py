"""Weights of a causal model that scores a text by its next token: one vector in place of the output projection."""

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor

from edgeformer.checkpoints.expert_weights import LazyWeights
from edgeformer.checkpoints.weights import parameter_shapes
from edgeformer.config import DecoderConfig, ModelConfig

VECTOR = "classifier.output.weight"
"""The parameter that takes the place of the output projection, [1, E]."""


class AnswerWeights(LazyWeights):
    """The weights of a causal model, and the difference of the rows of its answers: logit(yes) − logit(no).

    causal: weights and config of the causal model. config: that of the model which scores, whose head names the tokens.
    """

    def __init__(
        self, weights: Mapping[str, Tensor], causal: DecoderConfig, config: ModelConfig, tokens: Iterable[int]
    ):
        self._weights, self._tokens, self._scale = weights, list(tokens), causal.logit_scale
        self._table = "embedding.weight" if causal.tied_head else "head.weight"
        self._names = list(parameter_shapes(config))

    def __getitem__(self, name: str) -> Tensor:
        if name != VECTOR:
            return self._weights[name]
        rows = self._weights[self._table][self._tokens].to(torch.float32)
        vector = rows[0] - rows[1] if len(rows) > 1 else rows[0]
        return self._scale * vector.unsqueeze(0)

    def read_expert(self, name: str, expert: int) -> Tensor:
        """Return one expert of a stacked parameter."""
        return self._weights.read_expert(name, expert)  # type: ignore[attr-defined]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
