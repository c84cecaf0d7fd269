"""Check that a module of the user's keeps the forward contract, by running it as its clients will.

The module is fed a padded batch of two prompts, then a step of one token behind the caches that it returned. In float64
the results must agree with those of each text in one run. `capture.checked` checks the graph afterwards.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from edgeformer.errors import ExportError
from edgeformer.export.reference.reference import Reference
from edgeformer.layers import LayerCache
from edgeformer.models.model_spec import ModelSpec

CONTRACT = (
    "A module is called with input_ids int64 [B, S], attention_mask int64 [B, T] and a list of one (key, value) for "
    "each layer, [B, K, P, D]; it returns the logits [B, S, V] and such a list with [B, K, T, D]. "
    "docs/tutorials/your-own-module.md has an example."
)

SAME_IN_FLOAT64 = 1e-5
"""max |Δ| / max |logit| by which two ways to the same float64 logits may differ. It leaves room for a module that
computes some of it in float32, and is far below what one wrong position does."""

LARGEST_ROUNDING = {torch.float32: 1e-3, torch.float16: 0.1}
"""max |Δ| / max |logit| by which a precision may differ from float64. Models of hundreds of layers stay below it."""

LENGTHS = (3, 2)
"""Tokens of the two prompts; the shorter one is padded."""

FEWEST_TOKENS = max(LENGTHS) + 1
"""Positions that a module must have: the longer prompt, and the step after it."""


def check_contract(
    model_spec: ModelSpec, weights: Mapping[str, Tensor], dtype: torch.dtype, *, in_float64: bool = True
) -> None:
    """Raise ExportError unless the module takes and returns what the contract says in `dtype`, the graph's precision.

    in_float64: also compare the module with itself, fed in several ways, with all of its parameters in float64.
    """
    generator = torch.Generator().manual_seed(0)
    texts = torch.randint(model_spec.vocab_size, (len(LENGTHS), FEWEST_TOKENS), generator=generator)
    prompt, _ = _Run(model_spec, Reference(model_spec, weights, dtype)).prompts_then_step(texts)
    if not in_float64:
        return
    reference = Reference(model_spec, weights, torch.float64)
    exact_prompt, exact_step = _Run(model_spec, reference).prompts_then_step(texts)
    error = _distance(prompt[0], exact_prompt[0])
    if not error <= LARGEST_ROUNDING[dtype]:
        raise ExportError(
            f"the module computes something else in {_named(dtype)} than in float64: logits are {error:.2g} (of the "
            f"largest) off, where rounding explains {LARGEST_ROUNDING[dtype]:.2g} at most. What it computes may not "
            "depend on the type of its parameters; and in a type as small as float16, its values must stay in range."
        )
    for row, length in enumerate(LENGTHS):
        alone = reference.run(texts[row : row + 1, : length + 1])[0][0]  # [length + 1, V]
        for fed, given, expected in (
            ("in a padded batch of prompts", exact_prompt[row, :length], alone[:length]),
            ("one by one after a past", exact_step[row], alone[length:]),
        ):
            error = _distance(given, expected)
            if not error <= SAME_IN_FLOAT64:
                raise ExportError(
                    f"the module contradicts itself: tokens that are fed {fed} have logits {error:.2g} (of the "
                    "largest) off those that the same tokens have at once. Padding on the right, later tokens and "
                    "other rows may change nothing, and every layer must see its own past. Take positions from "
                    "ops.token_positions, or let ops.group_query_attention rotate, and leave masking to it."
                )


def _distance(given: Tensor, expected: Tensor) -> float:
    """Return max |Δ| / max |expected|."""
    return float((given - expected).abs().max() / expected.abs().max())


@dataclass
class _Run:
    """A module in one precision; every result is checked against the contract."""

    model_spec: ModelSpec
    reference: Reference

    def prompts_then_step(self, texts: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits of two padded prompts [2, 3, V], and of the next token of each [2, 1, V]."""
        lengths = torch.tensor(LENGTHS)
        prompt = texts[:, : max(LENGTHS)].clone()
        prompt[1, LENGTHS[1]] = texts[1, -1]  # the padding is any token but the next one
        caches = self.reference.empty_caches(2)
        mask = (torch.arange(prompt.shape[1]) < lengths[:, None]).long()
        logits, caches = self._forward(prompt, mask, caches)
        mask = (torch.arange(prompt.shape[1] + 1) < lengths[:, None] + 1).long()
        step, _ = self._forward(texts.gather(1, lengths[:, None]), mask, caches)
        return logits, step

    def _forward(self, input_ids: Tensor, mask: Tensor, caches: list[LayerCache]) -> tuple[Tensor, list[LayerCache]]:
        """Run the module once. Raises ExportError for a failure, and for results that the contract excludes."""
        batch, new = input_ids.shape
        past = caches[0][0].shape[2]
        given = f"{batch} × {new} tokens after a past of {past}, in {_named(self.reference.dtype)}"
        try:
            result = self.reference.forward(input_ids, mask, caches)
        except Exception as error:  # somebody else's code may raise anything
            raise ExportError(f"the module fails on {given}: {type(error).__name__}: {error}\n{CONTRACT}") from error
        problem = self._problem(result, batch, new, mask.shape[1])
        if problem is not None:
            raise ExportError(f"the module, given {given}, returns {problem}.\n{CONTRACT}")
        logits, presents = result
        return logits, [tuple(present) for present in presents]

    def _problem(self, result: Any, batch: int, new: int, total: int) -> str | None:
        """Describe the first thing that is not as expected: what was returned, and what is right."""
        geometry, dtype = self.model_spec.cache, self.reference.dtype
        if not (isinstance(result, tuple | list) and len(result) == 2):
            return f"{_kind(result)}; it must return two things, (logits, caches)"
        logits, caches = result
        shape = [batch, new, self.model_spec.vocab_size]
        if not (isinstance(logits, Tensor) and logits.is_floating_point() and list(logits.shape) == shape):
            return f"{_kind(logits)} as logits; they must be a float tensor {shape}"
        if not (isinstance(caches, tuple | list) and len(caches) == geometry.num_layers):
            return f"{_kind(caches)} as caches; they must be a list of {geometry.num_layers}, one for each layer"
        shape = list(geometry.tensors()[0].shape(batch, total))
        for layer, cache in enumerate(caches):
            if not (isinstance(cache, tuple | list) and len(cache) == 2):
                return f"{_kind(cache)} as the cache of layer {layer}; it must be a pair (key, value)"
            for name, part in zip(("key", "value"), cache, strict=True):
                if not (isinstance(part, Tensor) and part.dtype == dtype and list(part.shape) == shape):
                    return f"{_kind(part)} as the {name} of layer {layer}; it must be a {_named(dtype)} tensor {shape}"
        return None


def _kind(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a {_named(value.dtype)} tensor {list(value.shape)}"
    kind = type(value).__name__
    return f"a {kind} of {len(value)}" if isinstance(value, tuple | list) else f"a {kind}"


def _named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
