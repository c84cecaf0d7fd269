"""Quantize a model's linear layers with GPTQ, on the inputs that a calibration text makes.

The model runs once, with every text twice in the batch. The first half of the batch is computed with the original
weights, the second half with the quantized ones. Before a layer runs it is quantized on the inputs of the second half,
with error compensation for their difference from the first half. That includes the errors of embeddings.

A tied head is quantized earlier, in a run with the original weights: its weight is the embedding, on which everything
that a model computes depends. Models run in float32 PyTorch, with all texts at once.

Both halves of an encoder-decoder read the same text. Its encoder is trained on such texts, but its decoder writes
translations of them, so the layers of a decoder have no error compensation.

Memory: weights are read when their layer runs. Beside them are the hidden states of all tokens in one layer and a few
Gram matrices [K, K] of its inputs, 2.6 GB in all for 8,192 tokens and the layers of TinyLlama-1.1B (measured).
Quantized matrices wait on disk.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edgeformer.errors import ExportError
from edgeformer.export.calibrate.forward_hooks import inputs_of, run_observed, valid_tokens
from edgeformer.export.calibrate.text import CalibrationTokens
from edgeformer.export.lower import GraphJob
from edgeformer.export.progress import Progress, no_progress
from edgeformer.export.quantize.calibrated_weights import Calibrated
from edgeformer.export.quantize.gptq import Costs, costs_of, error_compensation, round_for_inputs
from edgeformer.export.quantize.quantized_tensor import check_finite, is_finite
from edgeformer.export.quantize.rounding import QuantizedBlocks, round_blocks
from edgeformer.export.reference.reference import Reference
from edgeformer.manifest.quantization import Quantization, WeightFormat

GATHER_WEIGHT = 0.1
"""Cost of a tied head's errors as an embedding: a fraction of the mean power of its inputs, added to the power of each.
With it, tiny-llama in 4 bits in blocks of 128 lost 8 % less than without."""


class Layer(NamedTuple):
    """A linear layer or an embedding whose weight is quantized.

    gathered: its weight is an embedding's, so that a linear layer is a tied head. compensates: a linear layer has error
    compensation.
    """

    module: nn.Linear | nn.Embedding
    name: str
    form: WeightFormat
    gathered: bool
    compensates: bool = True


class InputStatistics(NamedTuple):
    """The costs of errors by a layer's inputs, and its matrix [K, K] of error compensation, None without one."""

    costs: Costs
    compensation: Tensor | None = None


def calibrate(job: GraphJob, text: CalibrationTokens, folder: Path, progress: Progress = no_progress) -> Calibrated:
    """Quantize the weight of every `nn.Linear` whose rounding is `gptq` in the job's plan and that the text reaches.

    A layer that runs more than once is quantized with its first inputs. folder: an empty one for the result. Raises
    ExportError for weights or hidden states that are not finite.
    """
    model_spec, weights, quantization = job.model_spec, job.weights, job.plan.quantization
    assert quantization is not None
    reference, result = Reference(model_spec, weights, torch.float32), Calibrated(folder)
    found = list(quantized_layers(reference.module, quantization, model_spec.task == "seq2seq-lm"))
    tables = [layer for layer in found if isinstance(layer.module, nn.Embedding)]
    layers = [layer for layer in found if type(layer.module) is nn.Linear and layer.form.reads_calibration]
    inputs, total = inputs_of(reference, text), len({layer.name for layer in layers})
    if heads := [layer for layer in layers if layer.gathered]:
        run = _Calibrator(weights, result, {head.name for head in heads}, total, inputs.mask.bool(), progress)
        before = [(head.module, partial(run.quantize_tied_head, head)) for head in heads]
        run_observed(reference, model_spec, inputs, until=run.done, before=before)
    if others := [layer for layer in layers if not layer.gathered]:
        inputs = inputs.twice()
        run = _Calibrator(weights, result, {layer.name for layer in others}, total, inputs.mask.bool(), progress)
        before = [(layer.module, partial(run.quantize_layer, layer)) for layer in others]
        after = [(table.module, partial(run.add_embedding_error, table)) for table in tables]
        after += [(layer.module, partial(run.add_layer_error, layer)) for layer in others]
        run_observed(reference, model_spec, inputs, until=run.done, before=before, after=after)
    return result


def with_calibrated_weights(
    job: GraphJob, text: CalibrationTokens | None, folder: Path, progress: Progress
) -> GraphJob:
    """Return a job with calibrated weights, where its quantization config needs any. folder: is made for them."""
    quantization = job.plan.quantization
    if text is None or quantization is None or not quantization.needs_calibration:
        return job
    folder.mkdir(parents=True)
    job = replace(job, plan=replace(job.plan, quantization=replace(quantization, calibration=text.source)))
    return replace(job, calibrated=calibrate(job, text, folder, progress))


def quantized_layers(module: nn.Module, quantization: Quantization, encoder_decoder: bool) -> Iterator[Layer]:
    """Yield the linear layers and embeddings whose weights are quantized."""
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    embeddings = {id(each.weight) for each in module.modules() if isinstance(each, nn.Embedding)}
    for layer in module.modules():
        if type(layer) is nn.Linear or isinstance(layer, nn.Embedding):
            name, gathered = names[id(layer.weight)], id(layer.weight) in embeddings
            form = quantization.format_of(name, gathered=gathered)
            if form := form and form.fitted(layer.weight.shape[1]):
                compensates = not (encoder_decoder and name.startswith("decoder."))
                yield Layer(layer, name, form, gathered, compensates)


@dataclass
class _Calibrator:
    """Observers of a run that quantize its layers.

    pending: names of the weights to quantize in this run. total: the number of weights in all runs, for progress.
    valid: bool [B, S], False for padding. For `quantize_layer` and what adds errors, rows B/2 to B of the batch are
    those that are computed with quantized weights.
    """

    weights: Mapping[str, Tensor]
    result: Calibrated
    pending: set[str]
    total: int
    valid: Tensor
    progress: Progress
    last: tuple[Tensor, InputStatistics] | None = None

    def done(self) -> bool:
        """Whether all weights of this run are quantized."""
        return not self.pending

    def quantize_tied_head(self, head: Layer, x: Tensor) -> None:
        """Quantize a head that is an embedding, on its inputs x [B, S, K], unless that has been done."""
        if head.name in self.pending:
            tokens = valid_tokens(x, self.valid)
            gram = self._gram(head, tokens, tokens)
            gram.diagonal().add_(GATHER_WEIGHT * gram.diagonal().mean())
            self.quantize(head, InputStatistics(costs_of(gram)))

    def quantize_layer(self, layer: Layer, x: Tensor) -> None:
        """Quantize a layer on its inputs x [B, S, K], unless that has been done."""
        if layer.name in self.pending:
            self.quantize(layer, self.statistics(layer, x))

    def quantize(self, layer: Layer, inputs: InputStatistics) -> None:
        """Quantize a layer's weight."""
        self.progress(f"calibrating {layer.name}", len(self.result.formats) / self.total)
        rows = self.weights[layer.name].float()
        check_finite(rows, [layer.name])
        targets = rows if inputs.compensation is None else rows.addmm(rows, inputs.compensation)
        self.result.add(layer.name, round_for_inputs(rows, inputs.costs, layer.form, targets), layer.form)
        self.pending.remove(layer.name)

    def statistics(self, layer: Layer, x: Tensor) -> InputStatistics:
        """Return the statistics of a layer's inputs x [..., K], computed once for layers that read the same tensor.

        An input without rows of the batch, such as a table of positions, is the same for both halves.
        """
        if self.last is None or self.last[0] is not x:
            self.last = None  # the factor [K, K] before is released before the next one is computed
            tokens = valid_tokens(x, self.valid)
            exact, actual = tokens.chunk(2) if len(x) == len(self.valid) else (tokens, tokens)
            gram, compensation = self._gram(layer, actual, actual), None
            if layer.compensates:
                compensation = error_compensation(gram, self._gram(layer, exact - actual, actual))
            self.last = x, InputStatistics(costs_of(gram), compensation)
        return self.last[1]

    def add_layer_error(self, layer: Layer, x: Tensor, y: Tensor) -> None:
        """Add to a layer's output, in its quantized half, what quantization changes in it."""
        change = self.result[layer.name].weights().flatten(1) - self.weights[layer.name].float()
        self._quantized_half(y).add_(F.linear(self._quantized_half(x), change))

    def add_embedding_error(self, table: Layer, token_ids: Tensor, y: Tensor) -> None:
        """Add to an embedding's output, in its quantized half, what quantization changes in it."""
        ids = self._quantized_half(token_ids)
        rows, form = self.weights[table.name][ids.flatten()].float(), table.form
        if table.name in self.result.formats:
            blocks = QuantizedBlocks(*(part[ids.flatten()] for part in vars(self.result[table.name]).values()))
        else:  # no tied head: `gptq` has no products to go by
            form = form.without_calibration()
            blocks = round_blocks(rows.unflatten(1, (-1, form.block or rows.shape[1])), form)
        self._quantized_half(y).add_((blocks.weights().flatten(1) - rows).view(*ids.shape, -1))

    def _quantized_half(self, x: Tensor) -> Tensor:
        return x.chunk(2)[1] if len(x) == len(self.valid) else x

    def _gram(self, layer: Layer, x: Tensor, y: Tensor) -> Tensor:
        """Return Σ xᵀy [K, K] of inputs [n, K]."""
        sums = x.t() @ y
        if not is_finite(sums):
            raise ExportError(
                f"the calibration text makes inputs of {layer.name} that are not finite; nothing can be rounded by "
                "them. Export without calibration."
            )
        return sums
