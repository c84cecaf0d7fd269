"""Let a model read a calibration text, and round each of its linear layers when the text first reaches it.

The model reads it twice in one run: as it is, and as it will be stored. So each layer knows what reaches it and what
should, and makes up for what those before it err, embeddings among them. Where one of these is the head, too, the text
reaches that last, and all else follows from it; so before that run there is another, for heads alone, of the model as
it is. It is float32 PyTorch that reads, all texts at once.

Both halves of an encoder-decoder read the same text. An encoder is made to read such texts, a decoder is not: it is to
write translations of them. So its layers are rounded for that text, but do not change to make up for errors on it.

Memory: every parameter is read when its layer runs, as for any export; beside it are the states of all tokens in one
layer, and the Gram matrix of its inputs [K, K] in a few copies: 2.6 GB in all for 8,192 tokens and layers as large as
TinyLlama-1.1B's. What is rounded waits on disk.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edgeformer.config import Seq2SeqConfig
from edgeformer.errors import ExportError
from edgeformer.export.calibrate.forward_hooks import Enough, padded, read_with_hooks, valid_tokens
from edgeformer.export.calibrate.text import CalibrationTokens
from edgeformer.export.lower import LoweringOptions
from edgeformer.export.progress import Progress
from edgeformer.export.quantize.calibrated_weights import Calibrated
from edgeformer.export.quantize.gptq import Costs, costs_of, error_compensation, round_for_inputs
from edgeformer.export.quantize.quantized_tensor import check_finite, is_finite
from edgeformer.export.quantize.rounding import QuantizedBlocks, round_blocks
from edgeformer.export.reference.reference import Reference
from edgeformer.model_spec import ModelSpec
from edgeformer.quantization import Quantization, WeightFormat

LOOKUPS = 0.1
"""Part of the mean power of an input that is added to that of each, for a head whose rows are looked up as well: what a
row errs by itself costs something, too. Of 4 bits in blocks of 128, tiny-llama lost 8 % less with it than with none."""


class Table(NamedTuple):
    """An embedding that is stored rounded: the name of its weight, and the format."""

    name: str
    form: WeightFormat


class Inputs(NamedTuple):
    """Of a layer's inputs: what weights cost that err, and the C [K, K] that makes up for what the inputs err."""

    costs: Costs
    error_compensation: Tensor | None = None


class Layer(NamedTuple):
    """A layer to round, the name of its weight, the format that fits, and whether it is an embedding, too.

    makes_up: whether it makes up for what its inputs err.
    """

    module: nn.Linear
    name: str
    form: WeightFormat
    gathered: bool
    compensates: bool = True


def calibrate(
    model_spec: ModelSpec,
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
    reference, result = Reference(model_spec, weights, torch.float32), Calibrated(folder)
    layers = list(_layers(reference.module, recipe, pair=isinstance(model_spec.config, Seq2SeqConfig)))
    (ids, mask), total = padded(text), len({layer.name for layer in layers})
    if heads := [layer for layer in layers if layer.gathered]:
        first = _RoundingHeads(weights, result, {head.name for head in heads}, total, mask.bool(), progress)
        hooks = [head.module.register_forward_pre_hook(partial(first.before, head)) for head in heads]
        read_with_hooks(reference, model_spec, ids, mask, hooks)
    if others := [layer for layer in layers if not layer.gathered]:
        ids, mask = ids.repeat(2, 1), mask.repeat(2, 1)
        second = _RoundingLayers(weights, result, {layer.name for layer in others}, total, mask.bool(), progress)
        hooks = [
            module.register_forward_hook(partial(second.after_lookup, table))
            for module, table in _tables(reference.module, recipe)
        ]
        for layer in others:
            hooks.append(layer.module.register_forward_pre_hook(partial(second.before, layer)))
            hooks.append(layer.module.register_forward_hook(partial(second.after, layer)))
        read_with_hooks(reference, model_spec, ids, mask, hooks)
    return result


def calibrated_lowering(
    lowering: LoweringOptions,
    model_spec: ModelSpec,
    weights: Mapping[str, Tensor],
    text: CalibrationTokens | None,
    folder: Path,
    progress: Progress,
) -> LoweringOptions:
    """The target, with what a text has rounded for its recipe, where that asks for one; folder: to make for it."""
    if text is None or lowering.quantization is None or not lowering.quantization.needs_calibration:
        return lowering
    folder.mkdir(parents=True)
    quantization = replace(lowering.quantization, calibration=text.source)
    calibrated = calibrate(model_spec, weights, quantization, text, folder, progress)
    return replace(lowering, quantization=quantization, calibrated=calibrated)


def _layers(module: nn.Module, recipe: Quantization, *, pair: bool) -> Iterator[Layer]:
    """The layers to round; pair: of an encoder-decoder."""
    names = _names(module)
    gathered = {id(each.weight) for each in module.modules() if isinstance(each, nn.Embedding)}
    for layer in module.modules():
        if type(layer) is not nn.Linear:
            continue
        name, is_table = names[id(layer.weight)], id(layer.weight) in gathered
        form = recipe.format_of(name, gathered=is_table)
        fitted = form and form.fitted(layer.in_features)
        if fitted and fitted.rounding == "gptq":
            yield Layer(layer, name, fitted, is_table, not (pair and name.startswith("decoder.")))


def _tables(module: nn.Module, recipe: Quantization) -> Iterator[tuple[nn.Embedding, Table]]:
    """Embeddings that are stored rounded; what no text rounds, `mse` does."""
    names = _names(module)
    for table in module.modules():
        if isinstance(table, nn.Embedding):
            name = names[id(table.weight)]
            form = recipe.format_of(name, gathered=True)
            fitted = form and form.fitted(table.embedding_dim)
            if fitted:
                yield table, Table(name, replace(fitted, rounding="mse") if fitted.rounding == "gptq" else fitted)


def _names(module: nn.Module) -> dict[int, str]:
    """What parameters are called, by their identity: those of several names by the first."""
    names: dict[int, str] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), name)
    return names


class _Rounding:
    """Hooks that round layers by what reaches them.

    left: names of the weights that are to be rounded. total: how many there are in all. valid: which tokens are no
    padding, [B, S].
    """

    def __init__(
        self,
        weights: Mapping[str, Tensor],
        result: Calibrated,
        left: Iterable[str],
        total: int,
        valid: Tensor,
        progress: Progress,
    ):
        self._weights = weights
        self._result = result
        self._left = set(left)
        self._total = total
        self._valid = valid
        self._progress = progress

    def wants(self, layer: Layer) -> bool:
        """Whether a layer is still to be rounded; those that share its weight may have been."""
        if layer.name in self._left:
            self._progress(f"calibrating {layer.name}", len(self._result.formats) / self._total)
        return layer.name in self._left

    def products(self, layer: Layer, x: Tensor, y: Tensor) -> Tensor:
        """Σ xᵀy of inputs [n, K] of a layer, [K, K]."""
        sums = x.t() @ y
        if not is_finite(sums):
            raise ExportError(
                f"the calibration text makes inputs of {layer.name} that are not finite; nothing can be rounded by "
                "them. Export without calibration."
            )
        return sums

    def round(self, layer: Layer, inputs: Inputs) -> None:
        """Round a layer's weight; Enough, if it was the last one."""
        rows = self._weights[layer.name].float()
        check_finite(rows, [layer.name])
        aims = rows if inputs.error_compensation is None else rows.addmm(rows, inputs.error_compensation)
        self._result.add(layer.name, round_for_inputs(rows, inputs.costs, layer.form, aims), layer.form)
        self._left.remove(layer.name)
        if not self._left:
            raise Enough


class _RoundingHeads(_Rounding):
    """Of heads that are embeddings, too. The whole batch passes all layers as they are."""

    def before(self, layer: Layer, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        """Round a head's weight, unless it is."""
        if self.wants(layer):
            tokens = valid_tokens(inputs[0], self._valid)
            gram = self.products(layer, tokens, tokens)
            gram.diagonal().add_(LOOKUPS * gram.diagonal().mean())
            self.round(layer, Inputs(costs_of(gram)))


class _RoundingLayers(_Rounding):
    """Of all others. The first half of a batch passes them as they are, the second as they are stored.

    What has no rows of the batch, such as a table of positions, is the same for both.
    """

    _last: tuple[Tensor, Inputs] | None = None

    def before(self, layer: Layer, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        """Round a layer's weight, unless it is."""
        if self.wants(layer):
            self.round(layer, self._seen(layer, inputs[0]))

    def after(self, layer: Layer, module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        """What the layer gives with its rounded weight, to the half that is for it."""
        change = self._result[layer.name].weights().flatten(1) - self._weights[layer.name].float()
        self._stored(output).add_(F.linear(self._stored(inputs[0]), change))

    def after_lookup(self, table: Table, module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        """What is found in an embedding as it is stored, the same way."""
        ids = self._stored(inputs[0])
        rows = self._weights[table.name][ids.flatten()].float()
        if table.name in self._result.formats:
            stored = self._result[table.name]
            found = QuantizedBlocks(*(part[ids.flatten()] for part in vars(stored).values()))
        else:
            found = round_blocks(rows.unflatten(1, (-1, table.form.block or rows.shape[1])), table.form)
        self._stored(output).add_((found.weights().flatten(1) - rows).view(*ids.shape, -1))

    def _stored(self, x: Tensor) -> Tensor:
        return x.chunk(2)[1] if len(x) == len(self._valid) else x

    def _seen(self, layer: Layer, x: Tensor) -> Inputs:
        """Of the inputs x [..., K] of a layer; layers beside each other read the same."""
        if self._last is None or self._last[0] is not x:
            self._last = None  # two factors of a wide layer need not be in memory
            tokens = valid_tokens(x, self._valid)
            exact, stored = tokens.chunk(2) if len(x) == len(self._valid) else (tokens, tokens)
            gram = self.products(layer, stored, stored)
            change = (
                error_compensation(gram, self.products(layer, exact - stored, stored)) if layer.compensates else None
            )
            self._last = x, Inputs(costs_of(gram), change)
        return self._last[1]
