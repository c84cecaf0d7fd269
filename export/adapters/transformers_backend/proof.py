"""The rerouted module computes what transformers computes: shown before every export, on the real weights.

Both are run in float64 without the roundings inside (`unrounded`): transformers' own module, with its own eager
attention, over a whole text; ours as a ragged batch of two rows of that text, then in single steps. Where they differ
there is no export, and the error names the layer after which they do.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from edgeformer.errors import ExportError
from edgeformer.export.adapters.transformers_backend.float64 import unrounded
from edgeformer.export.adapters.transformers_backend.hf_module import build
from edgeformer.export.adapters.transformers_backend.patch_plan import Plan
from edgeformer.export.adapters.transformers_backend.patched_model import PatchedModel, patch
from edgeformer.export.adapters.transformers_backend.weights import PatchedWeights
from edgeformer.export.reference.weight_streaming import streamed

AGREEMENT = 1e-9
"""Largest difference of a logit over the largest logit: float64 sums in another order differ by 1e-13 or so, a wrong
formula by 1e-6 and far more, however little it is wrong."""

TEXT, STEPS = 32, 3
LONGEST = 512
"""A longer window is not looked over the edge of: that would take minutes, and a plan reads it from the mask itself."""


def prove(config: Any, plan: Plan, weights: Mapping[str, Tensor]) -> float:
    """Compare the two modules; return the largest difference of a logit over the largest logit.

    weights: by transformers' names. Raises ExportError where the rerouted module computes something else.
    """
    tokens = _tokens(config, plan)
    untouched = build(config, torch.float32, "eager")
    patched = patch(config, plan, torch.float64)
    length = tokens.shape[1]
    with torch.no_grad(), unrounded():
        with streamed(untouched, weights, torch.float64), _recorded(untouched, plan) as expected_states:
            expected = _logits(untouched, tokens)
        lengths = [length - STEPS, max(1, (length - STEPS) // 2)]
        with (
            streamed(patched.causal_lm, PatchedWeights(weights, plan), torch.float64),
            _recorded(patched.causal_lm, plan) as states,
        ):
            pieces = _ragged(patched, tokens, lengths)
    scale = expected.abs().max()
    worst = 0.0
    for (row, start), logits in pieces:
        difference = (logits - expected[start : start + len(logits)]).abs().max() / scale
        if not difference <= AGREEMENT:
            where = _first_difference(states, expected_states, lengths[0])
            cause = (
                "transformers does not count its tokens from 0, as runtimes of a bundle do"
                if _counts_otherwise(untouched, weights, tokens, expected)
                else "this is a bug in edgeformer, or a model whose code does more than our ops; please report it with "
                "the model's config.json"
            )
            raise ExportError(
                f"rerouted, {type(untouched).__name__} does not compute what it computes in transformers: logits of a "
                f"text of {length} tokens differ by {difference:.1e} of the largest (row {row}, from token {start}). "
                f"{where} Nothing was exported: {cause}."
            )
        worst = max(worst, difference.item())
    return worst


def _logits(untouched: Any, tokens: Tensor, **options: Tensor) -> Tensor:
    """What transformers computes of a text: [N, V]."""
    try:
        return untouched(input_ids=tokens, use_cache=False, return_dict=True, **options).logits[0]
    except Exception as error:  # code that is not ours, which may raise anything
        raise ExportError(
            f"{type(untouched).__name__} of transformers cannot be run itself: {type(error).__name__}: {error}"
        ) from error


def _counts_otherwise(untouched: Any, weights: Mapping[str, Tensor], tokens: Tensor, expected: Tensor) -> bool:
    """Whether the positions that the rerouted module is given change what transformers' own computes."""
    positions = torch.arange(tokens.shape[1]).unsqueeze(0)
    with torch.no_grad(), unrounded(), streamed(untouched, weights, torch.float64):
        given = _logits(untouched, tokens, position_ids=positions)
    return not torch.allclose(given, expected, rtol=0, atol=AGREEMENT * expected.abs().max().item())


def _tokens(config: Any, plan: Plan) -> Tensor:
    """A random text that is longer than every small window, [1, N]."""
    windows = [form.window for form in plan.attentions.values() if form.window < LONGEST]
    length = min(max(windows, default=0) + TEXT, plan.context_length)
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, config.vocab_size, (1, length), generator=generator)


def _ragged(module: PatchedModel, tokens: Tensor, lengths: list[int]) -> list[tuple[tuple[int, int], Tensor]]:
    """Feed prefixes of one text as rows of a batch, then single steps.

    Returns (row, first position) and the logits [n, V] of every run.
    """
    geometry = module.plan.geometry
    rows, longest = len(lengths), max(lengths)
    empty = torch.zeros(rows, geometry.num_kv_heads, 0, geometry.head_dim, dtype=torch.float64)
    caches = [(empty, empty)] * geometry.num_layers
    counts = torch.tensor(lengths)
    prompts = torch.where(torch.arange(longest) < counts[:, None], tokens[:, :longest], 0)
    pieces = []
    for step in range(STEPS + 1):
        ids = prompts if step == 0 else tokens[0, counts + step - 1].unsqueeze(1)
        mask = (torch.arange(longest + step) < counts[:, None] + step).to(torch.int64)
        logits, caches = module(ids, mask, caches)
        for row, length in enumerate(lengths):
            start = 0 if step == 0 else length + step - 1
            pieces.append(((row, start), logits[row, : length if step == 0 else 1]))
    return pieces


@contextmanager
def _recorded(model: nn.Module, plan: Plan) -> Iterator[dict[str, Tensor]]:
    """Collect what every layer returns in its first run, [N, E] of the first row, by the layer's name."""
    states: dict[str, Tensor] = {}

    def record(name: str, returned: Any) -> None:
        state = returned[0] if isinstance(returned, tuple) else returned
        states.setdefault(name, state[0])

    handles = []
    for form in plan.attentions.values():
        name = _layer(form.module)
        hook = lambda module, inputs, returned, name=name: record(name, returned)  # noqa: E731
        handles.append(model.get_submodule(name).register_forward_hook(hook))
    try:
        yield states
    finally:
        for handle in handles:
            handle.remove()


def _layer(attention: str) -> str:
    """The name of the layer that holds an attention: up to its number."""
    parts = attention.split(".")
    numbers = [index for index, part in enumerate(parts) if part.isdigit()]
    return ".".join(parts[: numbers[0] + 1]) if numbers else attention


def _first_difference(states: Mapping[str, Tensor], expected: Mapping[str, Tensor], length: int) -> str:
    for layer, (name, exact) in enumerate(expected.items()):
        exact = exact[:length]
        difference = (states[name][:length] - exact).abs().max() / exact.abs().max()
        if not difference <= AGREEMENT:
            return f"The states of a prompt first differ after layer {layer} ({name}, by {difference:.1e})."
    return "The states of a prompt agree in every layer; what differs comes after them, or in the steps."
