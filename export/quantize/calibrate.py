"""Let a model read a calibration text, and round each of its linear layers when the text first reaches it.

What reaches a layer has passed the layers before it as they are stored, so that one makes up for what others err. It is
float32 PyTorch that reads, all texts in one run. Embeddings are as they were.

Memory: every parameter is read when its layer runs, as for any export; beside it are the states of all tokens in one
layer, and the Gram matrix of its inputs [K, K] in a few copies: 2 GB in all for 8,192 tokens and layers as large as
TinyLlama-1.1B's. What is rounded waits on disk.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

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
from edgeformer.export.quantize.gptq import inverse_factor, round_for_inputs
from edgeformer.export.quantize.weights import check_finite
from edgeformer.quantization import Quantization, WeightFormat
from edgeformer.runtime.sources import pad_right


def calibrate(
    blueprint: Blueprint,
    weights: Mapping[str, Tensor],
    recipe: Quantization,
    text: CalibrationTokens,
    folder: Path,
    progress: Progress = lambda what, part: None,
) -> Calibrated:
    """The matrices that a recipe wants to have rounded by a text.

    Those of every `nn.Linear` that the text reaches and whose weight is no embedding, too. One that runs more than once
    is rounded for its first inputs. folder: an empty one, for what is rounded. Raises ExportError for weights or states
    that are not finite.
    """
    reference, result = Reference(blueprint, weights, torch.float32), Calibrated(folder)
    layers = list(_layers(reference.module, recipe))
    ids, mask = padded(text)
    rounding = _Rounding(weights, result, len({name for _, name, _ in layers}), mask.bool(), progress)
    with ExitStack() as undo:
        for layer, name, form in layers:
            undo.callback(layer.register_forward_pre_hook(partial(rounding.before, name, form)).remove)
            undo.callback(layer.register_forward_hook(partial(rounding.after, name)).remove)
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


def _layers(module: nn.Module, recipe: Quantization) -> Iterator[tuple[nn.Linear, str, WeightFormat]]:
    """The layers to round, with the names of their weights and the formats that fit them."""
    first: dict[int, str] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        first.setdefault(id(parameter), name)
    looked_up = {id(each.weight) for each in module.modules() if isinstance(each, nn.Embedding)}
    for layer in module.modules():
        if type(layer) is not nn.Linear or id(layer.weight) in looked_up:
            continue
        name = first[id(layer.weight)]
        form = recipe.format_of(name)
        fitted = form and form.fitted(layer.in_features)
        if fitted and fitted.rounding == "gptq":
            yield layer, name, fitted


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


class _Rounding:
    """Hooks of the layers that are rounded. valid: which tokens are no padding, [B, S]."""

    def __init__(
        self, weights: Mapping[str, Tensor], result: Calibrated, layers: int, valid: Tensor, progress: Progress
    ):
        self._weights = weights
        self._result = result
        self._layers = layers
        self._valid = valid
        self._progress = progress
        self._last: tuple[Tensor, Tensor] | None = None

    def before(self, name: str, form: WeightFormat, layer: nn.Module, inputs: tuple[Any, ...]) -> None:
        """Round the layer's weight, unless it is."""
        result = self._result
        if name in result.formats:
            return
        self._progress(f"calibrating {name}", len(result.formats) / self._layers)
        rows = self._weights[name].float()
        check_finite(rows, [name])
        result.add(name, round_for_inputs(rows, self._factor(name, inputs[0]), form), form)
        if len(result.formats) == self._layers:
            raise Enough

    def after(self, name: str, layer: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        """What the layer gives with its rounded weight."""
        change = self._result[name].weights().flatten(1) - self._weights[name].float()
        return output + F.linear(inputs[0], change)

    def _factor(self, name: str, x: Tensor) -> Tensor:
        """Of the inputs x [..., K] of a layer; layers beside each other read the same."""
        if self._last is None or self._last[0] is not x:
            self._last = None  # two factors of a wide layer need not be in memory
            tokens = valid_tokens(x, self._valid)
            gram = tokens.t() @ tokens
            if not torch.isfinite(gram).all():
                raise ExportError(
                    f"the calibration text makes inputs of {name} that are not finite; nothing can be rounded by them. "
                    "Export without calibration."
                )
            self._last = x, inverse_factor(gram)
        return self._last[1]
