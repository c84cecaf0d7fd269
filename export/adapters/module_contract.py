"""What a module must keep to be exported, and how it is told that it does not.

The module is run as its clients will run it: a padded batch of two prompts, then a step of one token behind the caches
that came back. Then its graph is looked at: a client's cache is one static buffer of which only a part is valid, and
`edgeformer.ops.group_query_attention` alone knows which.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from edgeformer.errors import ExportError
from edgeformer.export.reference.reference import Reference
from edgeformer.layers import Cache
from edgeformer.model_spec import ModelSpec

CONTRACT = (
    "A module is called with input_ids int64 [B, S], attention_mask int64 [B, T] and a list of one (key, value) for "
    "each layer, [B, K, P, D]; it returns the logits [B, S, V] and such a list with [B, K, T, D]. "
    "docs/tutorials/your-own-module.md has an example."
)

AGREEMENT = 1e-5
"""Two ways to the same float64 logits may differ by so much of the largest: room for a module that computes some of it
in float32, and far below what one wrong position does."""

ROUNDING = {torch.float32: 1e-3, torch.float16: 0.1}
"""A module may be off by so much of its largest logit in a precision; models of hundreds of layers are not."""

FEWEST_TOKENS = 4

LENGTHS = (3, 2)
"""Tokens of the two prompts; the shorter one is padded."""


def check_contract(
    model_spec: ModelSpec, weights: Mapping[str, Tensor], dtype: torch.dtype, *, in_float64: bool = True
) -> None:
    """Raise ExportError unless the module takes and returns what the contract says in `dtype`, the graph's precision.

    in_float64: also hold it against itself, fed in several ways; with all of its parameters in float64.
    """
    prompt, _ = _run_rows(Reference(model_spec, weights, dtype), model_spec, dtype)
    if not in_float64:
        return
    reference = Reference(model_spec, weights, torch.float64)
    exact_prompt, exact_step = _run_rows(reference, model_spec, torch.float64)
    error = _distance(prompt[0], exact_prompt[0])
    if not error <= ROUNDING[dtype]:
        raise ExportError(
            f"the module computes something else in {_named(dtype)} than in float64: logits are {error:.2g} (of the "
            f"largest) off, where rounding explains {ROUNDING[dtype]:.2g} at most. What it computes may not depend on "
            "the type of its parameters; and in a type as small as float16, its values must stay in range."
        )
    texts = _texts(model_spec)
    for row, length in enumerate(LENGTHS):
        alone = reference.run(texts[row : row + 1, : length + 1])[0][0]  # [length + 1, V]
        for what, given, expected in (
            ("in a padded batch of prompts", exact_prompt[row, :length], alone[:length]),
            ("one by one after a past", exact_step[row], alone[length:]),
        ):
            error = _distance(given, expected)
            if not error <= AGREEMENT:
                raise ExportError(
                    f"the module contradicts itself: tokens that are fed {what} have logits {error:.2g} (of the "
                    "largest) off those that the same tokens have at once. Padding on the right, later tokens and "
                    "other rows may change nothing, and every layer must see its own past. Take positions from "
                    "ops.token_positions, or let ops.group_query_attention rotate, and leave masking to it."
                )


def _distance(given: Tensor, expected: Tensor) -> float:
    """max |Δ| / max |expected|."""
    return float((given - expected).abs().max() / expected.abs().max())


def _texts(model_spec: ModelSpec) -> Tensor:
    """Token ids of two rows [2, 4]."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(model_spec.vocab_size, (2, FEWEST_TOKENS), generator=generator)


def _run_rows(reference: Reference, model_spec: ModelSpec, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Logits of two padded prompts [2, 3, V], and of the next token of each [2, 1, V]."""
    texts, lengths = _texts(model_spec), torch.tensor(LENGTHS)
    prompt = texts[:, : max(LENGTHS)].clone()
    prompt[1, LENGTHS[1]] = texts[1, -1]  # padding is any token but the next one
    caches = [reference.empty_cache(2) for _ in range(model_spec.cache.num_layers)]
    mask = (torch.arange(prompt.shape[1]) < lengths[:, None]).long()
    logits, caches = _call(reference, model_spec, dtype, prompt, mask, caches)
    mask = (torch.arange(prompt.shape[1] + 1) < lengths[:, None] + 1).long()
    step, _ = _call(reference, model_spec, dtype, texts.gather(1, lengths[:, None]), mask, caches)
    return logits, step


def _call(
    reference: Reference,
    model_spec: ModelSpec,
    dtype: torch.dtype,
    input_ids: Tensor,
    attention_mask: Tensor,
    caches: list[Cache],
) -> tuple[Tensor, list[Cache]]:
    """Run the module once; whatever is not as it should be is an ExportError."""
    batch, new = input_ids.shape
    past, total = caches[0][0].shape[2], attention_mask.shape[1]
    given = f"{batch} × {new} tokens after a past of {past}, in {_named(dtype)}"
    try:
        result = reference.forward(input_ids, attention_mask, caches)
    except Exception as error:  # somebody else's code may raise anything
        raise ExportError(f"the module fails on {given}: {type(error).__name__}: {error}\n{CONTRACT}") from error
    problem = _problem(result, model_spec, dtype, batch, new, total)
    if problem is not None:
        raise ExportError(f"the module, given {given}, returns {problem}.\n{CONTRACT}")
    logits, presents = result
    return logits, [tuple(present) for present in presents]


def _problem(result: Any, model_spec: ModelSpec, dtype: torch.dtype, batch: int, new: int, total: int) -> str | None:
    """The first thing that is not as expected: what was returned, and what is right."""
    geometry = model_spec.cache
    if not (isinstance(result, tuple | list) and len(result) == 2):
        return f"{_kind(result)}; it must return two things, (logits, caches)"
    logits, caches = result
    shape = [batch, new, model_spec.vocab_size]
    if not (isinstance(logits, Tensor) and logits.is_floating_point() and list(logits.shape) == shape):
        return f"{_kind(logits)} as logits; they must be a float tensor {shape}"
    if not (isinstance(caches, tuple | list) and len(caches) == geometry.num_layers):
        return f"{_kind(caches)} as caches; they must be a list of {geometry.num_layers}, one for each layer"
    shape = [batch, geometry.num_kv_heads, total, geometry.head_dim]
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
