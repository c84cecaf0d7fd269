"""Let a model read a calibration text, and round each of its linear layers when the text first reaches it.

The model reads it twice in one run: as it is, and as it will be stored. So each layer knows what reaches it and what
should, and makes up for what those before it err. It is float32 PyTorch that reads, all texts at once. Embeddings are
as they were; one that is the head, too, is rounded for both when the text reaches the head.

Memory: every parameter is read when its layer runs, as for any export; beside it are the states of all tokens in one
layer, and the Gram matrix of its inputs [K, K] in a few copies: 2 GB in all for 8,192 tokens and layers as large as
TinyLlama-1.1B's. What is rounded waits on disk.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edgeformer.blueprint import Blueprint
from edgeformer.config import EncoderConfig, Seq2SeqConfig
from edgeformer.errors import ExportError
from edgeformer.export.bundle import Progress
from edgeformer.export.lower import Target
from edgeformer.export.parity.reference import Reference
from edgeformer.export.quantize.calibrated import Calibrated
from edgeformer.export.quantize.calibration_text import CalibrationTokens
from edgeformer.export.quantize.gptq import Costs, costs_of, making_up, round_for_inputs
from edgeformer.export.quantize.weights import check_finite
from edgeformer.quantization import Quantization, WeightFormat
from edgeformer.runtime.sources import pad_right

LOOKUPS = 0.1
"""Part of the mean power of an input that is added to that of each, for a head whose rows are looked up as well: what a
row errs by itself costs something, too. Of 4 bits in blocks of 128, tiny-llama lost 6 % less with it than with none."""


class Layer(NamedTuple):
    """A layer to round, the name of its weight, the format that fits, and whether it is an embedding, too."""

    module: nn.Linear
    name: str
    form: WeightFormat
    looked_up: bool


def calibrate(
    blueprint: Blueprint,
    weights: Mapping[str, Tensor],
    recipe: Quantization,
    text: CalibrationTokens,
    folder: Path,
    progress: Progress = lambda what, part: None,
) -> Calibrated:
    """The matrices that a recipe wants to have rounded by a text.

    Those of every `nn.Linear` that the text reaches. One that runs more than once is rounded for its first inputs.
    folder: an empty one, for what is rounded. Raises ExportError for weights or states that are not finite.
    """
    reference, result = Reference(blueprint, weights, torch.float32), Calibrated(folder)
    layers = list(_layers(reference.module, recipe))
    ids, mask = (each.repeat(2, 1) for each in padded(text))
    rounding = _Rounding(weights, result, len({layer.name for layer in layers}), mask.bool(), progress)
    with ExitStack() as undo:
        for layer in layers:
            undo.callback(layer.module.register_forward_pre_hook(partial(rounding.before, layer)).remove)
            undo.callback(layer.module.register_forward_hook(partial(rounding.after, layer.name)).remove)
        undo.enter_context(reference.loaded())
        undo.enter_context(suppress(Enough))
        let_read(reference, blueprint, ids, mask)
    return result


def calibrated_target(
    target: Target,
    blueprint: Blueprint,
    weights: Mapping[str, Tensor],
    text: CalibrationTokens | None,
    folder: Path,
    progress: Progress,
) -> Target:
    """The target, with what a text has rounded for its recipe, where that asks for one; folder: to make for it."""
    if text is None or target.quantization is None or not target.quantization.by_text:
        return target
    folder.mkdir(parents=True)
    quantization = replace(target.quantization, calibration=text.source)
    calibrated = calibrate(blueprint, weights, quantization, text, folder, progress)
    return replace(target, quantization=quantization, calibrated=calibrated)


def _layers(module: nn.Module, recipe: Quantization) -> Iterator[Layer]:
    """The layers to round."""
    first: dict[int, str] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        first.setdefault(id(parameter), name)
    looked_up = {id(each.weight) for each in module.modules() if isinstance(each, nn.Embedding)}
    for layer in module.modules():
        if type(layer) is not nn.Linear:
            continue
        name, is_table = first[id(layer.weight)], id(layer.weight) in looked_up
        form = recipe.format_of(name, looked_up=is_table)
        fitted = form and form.fitted(layer.in_features)
        if fitted and fitted.rounding == "gptq":
            yield Layer(layer, name, fitted, is_table)


def padded(text: CalibrationTokens) -> tuple[Tensor, Tensor]:
    """Token ids of all texts, and which are no padding: int64 [B, S] each."""
    ids, mask = map(torch.from_numpy, pad_right([each.tolist() for each in text.texts], 0))
    return ids, mask


def valid_tokens(x: Tensor, valid: Tensor) -> Tensor:
    """Inputs [n, K] of a layer, of x [..., K], without those of padding. valid: bool [B, S]."""
    return x[valid] if x.shape[:2] == valid.shape else x.flatten(0, -2)


class Enough(Exception):
    """For hooks to raise: all that was to be seen of a text has been, and logits as a rule need not be computed."""


def let_read(reference: Reference, blueprint: Blueprint, ids: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
    """Let a model of any kind read token ids int64 [B, S]; both halves of a pair read the same.

    Returns what it says: logits or, of an encoder, states and what its head makes of them.
    """
    config, module = blueprint.config, reference.module
    caches = [reference.empty_cache(len(ids))] * blueprint.cache.num_layers
    match config:
        case EncoderConfig(token_types=types):
            return tuple(module(ids, mask, torch.zeros_like(ids) if types > 1 else None))
        case Seq2SeqConfig():
            _, sources = module.encode(ids, mask)
            return (module.decode(ids, mask, mask, caches, sources)[0],)
        case _:
            return (module(ids, mask, caches)[0],)


class Inputs(NamedTuple):
    """Of a layer's inputs: what weights cost that err, and the C [K, K] that makes up for what the inputs err."""

    costs: Costs
    making_up: Tensor


class _Rounding:
    """Hooks of the layers that are rounded. The first half of a batch passes them as they are, the second as stored.

    valid: which tokens are no padding, [B, S].
    """

    def __init__(
        self, weights: Mapping[str, Tensor], result: Calibrated, layers: int, valid: Tensor, progress: Progress
    ):
        self._weights = weights
        self._result = result
        self._layers = layers
        self._valid = valid
        self._progress = progress
        self._last: tuple[Tensor, Inputs] | None = None

    def before(self, layer: Layer, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        """Round the layer's weight, unless it is."""
        result, name = self._result, layer.name
        if name in result.formats:
            return
        self._progress(f"calibrating {name}", len(result.formats) / self._layers)
        rows = self._weights[name].float()
        check_finite(rows, [name])
        seen = self._seen(layer, inputs[0])
        aims = rows.addmm(rows, seen.making_up)
        result.add(name, round_for_inputs(rows, seen.costs, layer.form, aims), layer.form)
        if len(result.formats) == self._layers:
            raise Enough

    def after(self, name: str, layer: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        """What the layer gives with its rounded weight, to the half that is for it."""
        change = self._result[name].weights().flatten(1) - self._weights[name].float()
        self._halves(output)[1].add_(F.linear(self._halves(inputs[0])[1], change))
        return output

    def _halves(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Of what has no rows of the batch, such as a table of positions, both are the whole."""
        exact, stored = x.chunk(2) if len(x) == len(self._valid) else (x, x)
        return exact, stored

    def _seen(self, layer: Layer, x: Tensor) -> Inputs:
        """Of the inputs x [..., K] of a layer; layers beside each other read the same."""
        if self._last is None or self._last[0] is not x:
            self._last = None  # two factors of a wide layer need not be in memory
            halves = zip(self._halves(x), self._valid.chunk(2), strict=True)
            exact, stored = (valid_tokens(half, valid) for half, valid in halves)
            gram, lost = stored.t() @ stored, (exact - stored).t() @ stored
            if not (torch.isfinite(gram).all() and torch.isfinite(lost).all()):
                raise ExportError(
                    f"the calibration text makes inputs of {layer.name} that are not finite; nothing can be rounded by "
                    "them. Export without calibration."
                )
            if layer.looked_up:  # a head, which nothing stands beside
                gram.diagonal().add_(LOOKUPS * gram.diagonal().mean())
            self._last = x, Inputs(costs_of(gram), making_up(gram, lost))
        return self._last[1]
