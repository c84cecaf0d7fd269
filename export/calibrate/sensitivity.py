"""Measure how much a model loses when one group of its matrices is rounded, for every format that it may have.

A group are the linear layers that read the same input (query, key and value; gate and up), which may be stored as one
matrix, or a table of embeddings with the head that shares it. Two figures of each are measured:

    divergence   mean KL of the next token, in nats, on a few hundred tokens, when this group alone is rounded crudely
    errors       squared error of the group's products over the whole text: of that rounding, and of each format

To second order a divergence is proportional to the squared error that causes it, so that a format's loss is

    loss(format) = divergence · error(format) / error(crude rounding)

The error of a format has two parts: what GPTQ is expected to leave of the weights' error (`expected_error`), and what
comes of rounding the inputs to 8 bits in blocks as long as the weights', as the kernels do. Divergences take a run of
the model for each group; errors take one run for all.
"""

import hashlib
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edgeformer import __version__
from edgeformer.errors import ExportError
from edgeformer.export.calibrate.forward_hooks import Inputs, inputs_of, run_observed, valid_tokens
from edgeformer.export.calibrate.groups import FORMATS, Group, SensitivityFile
from edgeformer.export.calibrate.text import CalibrationTokens
from edgeformer.export.calibrate.weights import Layer, quantized_layers
from edgeformer.export.lower import GraphJob
from edgeformer.export.progress import Progress
from edgeformer.export.quantize.gptq import Costs, costs_of, expected_error
from edgeformer.export.quantize.quantized_tensor import check_finite
from edgeformer.export.quantize.rounding import round_blocks
from edgeformer.export.reference.quantized_activations import fake_quantize_activations
from edgeformer.export.reference.reference import Reference
from edgeformer.manifest.quantization import WeightFormat

CRUDE = WeightFormat(bits=4, block=128, rounding="gptq").without_calibration()
"""The rounding whose divergence is measured: coarse, so that float32 does not hide it."""
SAMPLES, LENGTH = 2, 256
"""Texts that divergences are measured on, and tokens of each at most."""
ROWS = 512
"""Rows of a matrix that errors are measured on, at equal distances: outputs are like each other, and a table of tokens
has more rows than all other matrices. Errors and the crude error are of the same rows."""


def measure_groups(job: GraphJob, text: CalibrationTokens, kept: Path | None, progress: Progress) -> list[Group]:
    """Return the groups of all matrices that the plan quantizes and the text reaches, with their figures.

    kept: a file that has what an earlier export measured, and gets what is measured now; None for none. Raises
    ExportError for a file of another model or text, and for hidden states that are not finite.
    """
    run = _Measurement(job, text)
    progress("measuring what each format loses", 0)
    fingerprints = ("", "") if kept is None else (run.fingerprint(), run.errors_fingerprint())
    store = SensitivityFile(kept, *fingerprints)
    if not store.groups:
        store.add_groups(run.errors())
    exact: list[Tensor] | None = None
    for number, group in enumerate(store.groups):
        progress(f"measuring what {group.names[0]} loses", number / len(store.groups))
        if group.key not in store.divergences:
            exact = exact or run.log_probabilities()
            store.add_divergence(group.key, run.divergence(group, exact))
        group.divergence = store.divergences[group.key]
    return store.groups


class _Measurement:
    """One model and one text, run in float32 PyTorch."""

    def __init__(self, job: GraphJob, text: CalibrationTokens):
        quantization = job.plan.quantization
        assert quantization is not None
        self._weights, self._text, self._model_spec = job.weights, text, job.model_spec
        self._reference = Reference(job.model_spec, job.weights, torch.float32)
        self._layers = [
            layer
            for layer in quantized_layers(self._reference.module, quantization, encoder_decoder=False)
            if layer.form.block is not None
        ]
        places = np.unique(np.linspace(0, len(text.texts) - 1, SAMPLES).astype(int))
        self._samples = [inputs_of(self._reference, _alone(text, place)) for place in places]

    def fingerprint(self) -> str:
        """Return a hash of all that divergences depend on: weights, samples and the crude rounding."""
        digest = hashlib.sha256(repr((CRUDE, [sample.ids.tolist() for sample in self._samples])).encode())
        for sample in self._samples:
            if sample.features is not None:
                digest.update(sample.features.numpy().tobytes())
        for name, value in self._weights.items():
            digest.update(name.encode())
            digest.update(value.contiguous().flatten().view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def errors_fingerprint(self) -> str:
        """Return a hash of what errors depend on besides: the whole text, the layers, the formats and the version."""
        texts = [text.tolist() for text in self._text.texts]
        layers = [layer.name for layer in self._layers]
        content = (__version__, FORMATS, ROWS, self._text.source.sha256, texts, layers)
        return hashlib.sha256(repr(content).encode()).hexdigest()

    def errors(self) -> list[Group]:
        """Return the groups with the errors of their products over all texts."""
        heads = {layer.name for layer in self._layers if not isinstance(layer.module, nn.Embedding)}
        inputs = inputs_of(self._reference, self._text)
        observer = _Errors(self._weights, inputs.mask.bool())
        before: list[tuple[nn.Module, Callable[[Tensor], None]]] = []
        for layer in self._layers:
            if not isinstance(layer.module, nn.Embedding):
                before.append((layer.module, partial(observer.product, layer)))
            elif layer.name not in heads:
                before.append((layer.module, partial(observer.gather, layer)))
        pending = {layer.name for layer in self._layers}
        run_observed(self._reference, self._model_spec, inputs, until=lambda: observer.seen == pending, before=before)
        return observer.groups

    def log_probabilities(self) -> list[Tensor]:
        """Return the log-probabilities of the next token after each token of the samples, float64 [S, V]."""
        return [self._logits(sample).double().log_softmax(-1) for sample in self._samples]

    def _logits(self, sample: Inputs) -> Tensor:
        """Return the logits of one text [S, V]."""
        if sample.features is None:
            return self._reference.run(sample.ids)[0][0]
        with self._reference.loaded():
            return sample.run(self._reference, self._model_spec)[0]

    def divergence(self, group: Group, exact: Sequence[Tensor]) -> float:
        """Return the mean KL on the samples when the group is rounded by CRUDE."""
        changes = {name: crude_change(self._weights[name].float(), name) for name in group.names}
        with ExitStack() as stack:
            for layer in self._layers:
                if layer.name in changes:
                    hook = partial(_add_change, changes[layer.name])
                    stack.callback(layer.module.register_forward_hook(hook).remove)
            rounded = self.log_probabilities()
        nats = [(truth.exp() * (truth - other)).sum(-1) for truth, other in zip(exact, rounded, strict=True)]
        found = float(torch.cat(nats).mean())
        if not np.isfinite(found):
            raise ExportError(f"the calibration text makes outputs that are not finite when {group.names} are rounded.")
        return max(found, 0.0)


def _alone(text: CalibrationTokens, place: int) -> CalibrationTokens:
    """Return one of the texts, cut to LENGTH tokens, or with all of its pictures."""
    if text.pictures:
        return replace(text, texts=[text.texts[place]], pictures=[text.pictures[place]])
    return replace(text, texts=[text.texts[place][:LENGTH]])


def crude_change(rows: Tensor, name: str) -> Tensor:
    """Return what CRUDE changes in a matrix [N, K]."""
    check_finite(rows, [name])
    form = CRUDE.fitted(rows.shape[1])
    assert form is not None, "others are no candidates"
    return round_blocks(rows.unflatten(1, (-1, form.block)), form).weights().flatten(1) - rows


def _add_change(change: Tensor, layer: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    return output + (F.embedding if isinstance(layer, nn.Embedding) else F.linear)(inputs[0], change)


@dataclass
class _Input:
    """The input of a group: the tensor, to know it again, its costs, and the Gram matrices [K, K].

    gram: of the inputs. rounding: by format, of what rounding the inputs changes in them.
    """

    tensor: "weakref.ref[Tensor]"
    group: Group
    costs: Costs
    gram: Tensor
    rounding: dict[int, Tensor]


class _Errors:
    """Observers that add up the errors of products. valid: bool [B, S], False for padding."""

    def __init__(self, weights: Mapping[str, Tensor], valid: Tensor):
        self._weights, self._valid = weights, valid
        self._last: _Input | None = None
        self.groups: list[Group] = []
        self.seen: set[str] = set()

    def product(self, layer: Layer, x: Tensor) -> None:
        """Add a linear layer, given its input x [B, S, K], to the group of those that read the same."""
        if layer.name in self.seen:
            return
        self.seen.add(layer.name)
        if self._last is None or self._last.tensor() is not x:
            self._last = None  # matrices [K, K] before are released before the next ones are computed
            self._last = self._new_input(layer, x)
        read, weights = self._last, self._weights[layer.name]
        group, rows = self._add(read.group, layer.name, weights), _sampled(weights).float()
        for_each = len(weights) / len(rows)
        group.crude += for_each * _power(crude_change(rows, layer.name), read.gram)
        of_inputs = {block: _power(rows, rounding) for block, rounding in read.rounding.items()}
        errors: dict[WeightFormat, float] = {}  # formats that differ in blocks which do not divide the inputs are one
        for form in FORMATS:
            fitted = group.fitted(layer.name, form)
            assert fitted.block is not None
            if fitted not in errors:
                found = expected_error(rows, read.costs, fitted) + of_inputs[fitted.block]
                errors[fitted] = for_each * found
            group.errors[form] = group.errors.get(form, 0.0) + errors[fitted]

    def gather(self, layer: Layer, token_ids: Tensor) -> None:
        """Add a table of embeddings that no head shares, given token ids [B, S]."""
        if layer.name in self.seen:
            return
        self.seen.add(layer.name)
        weights = self._weights[layer.name]
        tokens, counts = token_ids[self._valid].unique(return_counts=True)
        rows, counts = weights[tokens].float(), counts.float()
        self.groups.append(group := Group())
        self._add(group, layer.name, weights)
        group.crude = float(counts @ crude_change(rows, layer.name).square().sum(1))
        for form in FORMATS:
            fitted = group.fitted(layer.name, form).without_calibration()
            rounded = round_blocks(rows.unflatten(1, (-1, fitted.block)), fitted).weights().flatten(1)
            group.errors[form] = float(counts @ (rounded - rows).square().sum(1))

    def _new_input(self, layer: Layer, x: Tensor) -> _Input:
        tokens = valid_tokens(x, self._valid)
        gram = tokens.t() @ tokens
        if not gram.isfinite().all():
            raise ExportError(
                f"the calibration text makes inputs of {layer.name} that are not finite; no format can be chosen by "
                "them. Export without a target size."
            )
        self.groups.append(group := Group())
        rounding = {}
        for fitted in filter(None, (form.fitted(tokens.shape[1]) for form in FORMATS)):
            if fitted.block is not None and fitted.block not in rounding:
                change = fake_quantize_activations(tokens, fitted.block) - tokens
                rounding[fitted.block] = change.t() @ change
        return _Input(weakref.ref(x), group, costs_of(gram), gram, rounding)

    @staticmethod
    def _add(group: Group, name: str, weights: Tensor) -> Group:
        group.names.append(name)
        group.sizes.append((weights.shape[0], weights.shape[1]))
        return group


def _sampled(weights: Tensor) -> Tensor:
    """Return ROWS rows of a matrix [N, K], or all of fewer."""
    return weights[torch.linspace(0, len(weights) - 1, min(ROWS, len(weights))).round().long()]


def _power(rows: Tensor, gram: Tensor) -> float:
    """Return the sum of squares of products of a matrix [N, K] with inputs of a Gram matrix [K, K]."""
    return float(sum(((part @ gram) * part).sum() for part in _parts(rows)))


def _parts(rows: Tensor) -> Iterator[Tensor]:
    yield from rows.split(4096)
