"""Compare the patched module with transformers' own, on the real weights, before every export.

Both run in float64 without the roundings inside (`computing_in_float64`): transformers' module, with its own eager
attention and the weights that transformers itself reads from the folder, over a whole text; the patched one over two
prefixes of that text as a ragged batch, then in single steps. Where they differ there is no export, and the error names
the layer after which they do.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from edgeformer.errors import EdgeformerError, ExportError
from edgeformer.export.reference.weight_streaming import streaming_parameters
from edgeformer.transformers_backend.float64 import computing_in_float64
from edgeformer.transformers_backend.hf_module import build
from edgeformer.transformers_backend.patch_plan import PatchPlan
from edgeformer.transformers_backend.patched_model import PatchedModel, build_patched
from edgeformer.transformers_backend.tensors.loaded_weights import LoadedWeights, load_weights
from edgeformer.transformers_backend.tensors.weights import patched_tensors
from edgeformer.transformers_backend.transformers_shim import quietly

LOGIT_TOLERANCE = 1e-9
"""Largest difference of a logit over the largest logit: float64 sums in another order differ by 1e-13 or so, a wrong
formula by 1e-6 and far more, however little it is wrong."""

TEXT, STEPS = 32, 3
"""Tokens of the text beyond the longest window, and how many of them are single steps."""

LONGEST_WINDOW = 512
"""Longer windows, in tokens, are not exceeded by the text, which would take minutes: they were read from the mask."""


def prove(
    config: Any, plan: PatchPlan, weights: Mapping[str, Tensor], folder: Path, allow_pickle: bool = False
) -> float:
    """Compare the two modules; return the largest difference of a logit over the largest logit.

    weights: those of the patched module, by transformers' names. folder: the checkpoint, which transformers reads by
    itself. Raises ExportError where the patched module computes something else.
    """
    tokens = _tokens(config, plan)
    length = tokens.shape[1]
    original = build(config, torch.float32, "eager")
    loaded = _load(original, folder, allow_pickle)
    patched = build_patched(config, plan, torch.float64)
    lengths = [length - STEPS, max(1, (length - STEPS) // 2)]
    with torch.no_grad(), computing_in_float64(), quietly():
        with streaming_parameters(original, loaded, torch.float64), _recorded(original, plan) as expected_states:
            expected = _logits(original, tokens)
        if not expected.isfinite().all():
            raise ExportError(f"{type(original).__name__} of transformers computes logits that are no numbers itself.")
        with (
            streaming_parameters(patched.causal_lm, patched_tensors(weights, plan), torch.float64),
            _recorded(patched.causal_lm, plan) as states,
        ):
            pieces = _run_patched(patched, tokens, lengths)
    worst = 0.0
    for row, start, logits in pieces:
        difference = ((logits - expected[start : start + len(logits)]).abs().max() / expected.abs().max()).item()
        if not difference <= LOGIT_TOLERANCE:
            where = _first_difference(states, expected_states, lengths[0])
            cause = (
                "transformers does not count its tokens from 0, as runtimes of a bundle do"
                if _positions_matter(original, loaded, tokens, expected)
                else "this is a bug in edgeformer, or a model whose code does more than our ops; please report it with "
                "the model's config.json"
            )
            raise ExportError(
                f"the patched {type(original).__name__} does not compute what it computes in transformers: logits of a "
                f"text of {length} tokens differ by {difference:.1e} of the largest (row {row}, from token {start}). "
                f"{where} Nothing was exported: {cause}."
            )
        worst = max(worst, difference)
    return worst


def _load(original: Any, folder: Path, allow_pickle: bool) -> LoadedWeights:
    """Let transformers load the checkpoint, and give its own module the buffers that are stored there."""
    try:
        with quietly():
            loaded = load_weights(original, folder, allow_pickle)
    except Exception as error:  # code that is not ours may raise anything
        raise ExportError(
            f"transformers cannot load the weights in {folder} itself: {type(error).__name__}: {error}"
        ) from error
    loaded.place_buffers(original)
    return loaded


def _logits(original: Any, tokens: Tensor, **options: Tensor) -> Tensor:
    """Return the logits of transformers' own module for a text [1, N]: [N, V]."""
    try:
        return original(input_ids=tokens, use_cache=False, return_dict=True, **options).logits[0]
    except Exception as error:  # code that is not ours may raise anything
        raise ExportError(
            f"{type(original).__name__} of transformers cannot be run itself: {type(error).__name__}: {error}"
        ) from error


def _positions_matter(original: Any, weights: Mapping[str, Tensor], tokens: Tensor, expected: Tensor) -> bool:
    """Return whether transformers' own module computes something else when it is given positions from 0 on."""
    positions = torch.arange(tokens.shape[1]).unsqueeze(0)
    with torch.no_grad(), computing_in_float64(), streaming_parameters(original, weights, torch.float64):
        given = _logits(original, tokens, position_ids=positions)
    return not torch.allclose(given, expected, rtol=0, atol=LOGIT_TOLERANCE * expected.abs().max().item())


def _tokens(config: Any, plan: PatchPlan) -> Tensor:
    """Return a random text that is longer than every window up to `LONGEST_WINDOW`, [1, N].

    It has no padding tokens where those change the positions of others.
    """
    windows = [form.window for form in plan.attentions.values() if form.window < LONGEST_WINDOW]
    length = min(max(windows, default=0) + TEXT, plan.context_length)
    generator = torch.Generator().manual_seed(0)
    padding = getattr(config, "pad_token_id", None) if plan.first_position else None
    tokens = torch.randint(0, config.vocab_size - (padding is not None), (1, length), generator=generator)
    return tokens if padding is None else tokens + (tokens >= padding)


def _run_patched(module: PatchedModel, tokens: Tensor, lengths: list[int]) -> list[tuple[int, int, Tensor]]:
    """Run the patched module as `_run_ragged` does. Raises ExportError for whatever transformers' code raises."""
    try:
        return _run_ragged(module, tokens, lengths)
    except EdgeformerError:
        raise
    except Exception as error:  # code that is not ours may raise anything
        raise ExportError(
            f"the patched {type(module.causal_lm).__name__} cannot be run on a batch and in steps: "
            f"{type(error).__name__}: {error}. Its layers keep something outside of the cache, most often."
        ) from error


def _run_ragged(module: PatchedModel, tokens: Tensor, lengths: list[int]) -> list[tuple[int, int, Tensor]]:
    """Run prefixes of a text [1, N] as rows of a batch, padded on the right, then each row's next tokens one by one.

    Returns for every run and row: the row, the position of its first token, and the logits [n, V].
    """
    geometry = module.plan.geometry
    rows, longest = len(lengths), max(lengths)
    caches = geometry.by_layer(
        [torch.zeros(tensor.shape(rows, 0), dtype=torch.float64) for tensor in geometry.tensors()]
    )
    counts = torch.tensor(lengths)
    prompts = torch.where(torch.arange(longest) < counts[:, None], tokens[:, :longest], 0)
    pieces = []
    for step in range(STEPS + 1):
        ids = prompts if step == 0 else tokens[0, counts + step - 1].unsqueeze(1)
        mask = (torch.arange(longest + step) < counts[:, None] + step).to(torch.int64)
        logits, caches = module(ids, mask, caches)
        for row, length in enumerate(lengths):
            start, new = (0, length) if step == 0 else (length + step - 1, 1)
            pieces.append((row, start, logits[row, :new]))
    return pieces


@contextmanager
def _recorded(model: nn.Module, plan: PatchPlan) -> Iterator[dict[str, Tensor]]:
    """Collect what every layer returns in its first run, [N, E] of the first row, by the layer's name."""
    states: dict[str, Tensor] = {}

    def record(name: str, module: nn.Module, inputs: Any, returned: Any) -> None:
        state = returned[0] if isinstance(returned, tuple) else returned
        states.setdefault(name, state[0])

    with ExitStack() as undo:
        for name in (_layer_name(form.module) for form in plan.attentions.values()):
            undo.callback(model.get_submodule(name).register_forward_hook(partial(record, name)).remove)
        yield states


def _layer_name(attention: str) -> str:
    """Return the name of the layer that holds an attention: the attention's name up to its first number."""
    parts = attention.split(".")
    number = next((index for index, part in enumerate(parts) if part.isdigit()), len(parts))
    return ".".join(parts[: number + 1])


def _first_difference(states: Mapping[str, Tensor], expected: Mapping[str, Tensor], length: int) -> str:
    """Return a sentence that names the first layer whose states of a prompt of `length` tokens differ."""
    for layer, (name, exact) in enumerate(expected.items()):
        exact = exact[:length]
        difference = (states[name][:length] - exact).abs().max() / exact.abs().max()
        if not difference <= LOGIT_TOLERANCE:
            return f"The states of a prompt first differ after layer {layer} ({name}, by {difference:.1e})."
    return "The states of a prompt agree in every layer; what differs comes after them, or in the steps."
