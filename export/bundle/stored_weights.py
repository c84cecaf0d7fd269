"""Read the weights of a bundle back: the tensors of its graphs, as parameters of the module."""

import math
from collections.abc import Iterator
from pathlib import Path

import onnx_ir as ir
import torch
from torch import Tensor

from edgeformer.checkpoints.expert_weights import LazyWeights, is_large
from edgeformer.errors import BundleError
from edgeformer.export.bundle.ort_format import SUFFIX, load_onnx
from edgeformer.export.graph.tensors import TORCH_DTYPES, TensorSource, split_stored, unscaled
from edgeformer.export.quantize.packing import unpack
from edgeformer.export.quantize.quantized_tensor import dequantized, unpacked
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.parts import StoredWeight
from edgeformer.manifest.quantization import WeightFormat
from edgeformer.models.model_spec import ModelSpec

KEPT = 2**28
"""Parameters of the largest model whose dequantized matrices stay in memory: 1 GiB in float32. Those of larger ones are
dequantized anew in each run of a reference."""


def _source(stored: StoredWeight) -> TensorSource:
    """Return what a stored tensor was made from, without the factor of `scaled` outputs."""
    return TensorSource(stored.parameters, stored.transposed, interleaved=stored.interleaved)


def _load(path: Path) -> ir.Model:
    """Load a graph. Its weights are mapped from their file; those of a graph in ORT format are in memory."""
    return ir.from_proto(load_onnx(path)) if path.suffix == SUFFIX else ir.load(path)


def _weight_graphs(manifest: Manifest) -> list[str]:
    """Return the graphs that hold all weights together: those that run or draft, a tower, joined halves."""
    names = ("vision_encoder", "audio_encoder", "joined", "mtp")
    others = [manifest.graphs[name].file for name in names if name in manifest.graphs]
    return [*manifest.step_graphs, *others]


def _similarity(manifest: Manifest) -> dict[str, Tensor]:
    """Return the parameters of a dual encoder's similarity, which no graph stores but the one that joins its halves."""
    if manifest.similarity is None:
        return {}
    numbers = {"scale": math.log(manifest.similarity.scale), "bias": manifest.similarity.bias}
    return {f"similarity.{name}": torch.tensor([value], dtype=torch.float64) for name, value in numbers.items()}


class StoredWeights(LazyWeights):
    """The parameters that the graphs of a bundle store, by name; each is read, and dequantized, when it is asked for.

    The graphs are those of `_weight_graphs`. Of a model of up to `KEPT` parameters each matrix is dequantized once.
    Raises BundleError for weights that the manifest lists and the graphs lack.
    """

    def __init__(self, folder: Path, manifest: Manifest, model_spec: ModelSpec):
        self._shapes = model_spec.parameter_shapes()
        opened = [_load(folder / name).graph for name in _weight_graphs(manifest)]
        self._initializers = {name: value for graph in opened for name, value in graph.initializers.items()}
        # A quantized matrix is several tensors; its integers stand for all of them.
        self._place = {
            parameter: (name, stored)
            for name, stored in manifest.weights.items()
            for parameter in stored.parameters
            if parameter in self._shapes and stored.part in (None, "integers") and name in self._initializers
        }
        self._numbers = _similarity(manifest)
        self._keeps_all = sum(map(math.prod, self._shapes.values())) <= KEPT
        self._kept: dict[str, dict[str, Tensor]] = {}
        lost = sorted(self._shapes.keys() - self._place.keys() - self._numbers.keys())
        if lost:
            raise BundleError(f"the graph of {folder} lacks weights that its manifest lists ({', '.join(lost[:5])}).")

    @property
    def formats(self) -> dict[str, WeightFormat]:
        """The format of every parameter that is quantized."""
        return {
            parameter: stored.quantized
            for parameter, (_, stored) in self._place.items()
            if stored.quantized is not None
        }

    def __getitem__(self, parameter: str) -> Tensor:
        if parameter in self._numbers and parameter not in self._place:
            return self._numbers[parameter]
        name, stored = self._place[parameter]
        if len(self._shapes[parameter]) == 3 and stored.quantized is not None:
            return torch.stack([self.read_expert(parameter, expert) for expert in range(self._shapes[parameter][0])])
        if stored.quantized is not None:
            return self._dequantized(name, stored)[parameter]
        value = unscaled(self._read(name), stored.scaled, -1)
        return split_stored(value, _source(stored), self._shapes)[parameter]

    def read_expert(self, parameter: str, expert: int) -> Tensor:
        """Return one expert of a stacked parameter."""
        name, stored = self._place[parameter]
        if stored.quantized is None:
            value = self._read(name, expert)
        else:
            value = self._rows(name, stored, expert)
        return split_stored(value[None], _source(stored), self._shapes)[parameter][0]

    def read_rows(self, parameter: str, rows: slice | Tensor) -> Tensor:
        """Return some rows of a parameter."""
        if not self.has_rows(parameter):
            return self[parameter][rows]
        name, stored = self._place[parameter]
        if stored.quantized is None:
            return self._read(name, rows)
        if name in self._kept:
            return self._kept[name][parameter][rows]
        return self._rows(name, stored, rows)

    def has_rows(self, parameter: str) -> bool:
        """Whether a parameter is a matrix whose rows can be read by themselves."""
        stored = self._place[parameter][1]
        by_rows = not stored.transposed if stored.quantized is None else stored.transposed == stored.columns
        divided = stored.quantized is None or stored.quantized.block is not None
        whole = len(stored.parameters) == 1 and stored.scaled is None and not stored.interleaved
        return len(self._shapes[parameter]) == 2 and by_rows and divided and whole

    def shape_of(self, parameter: str) -> tuple[int, ...]:
        """Return the shape of a parameter."""
        return self._shapes[parameter]

    def experts_of(self, parameter: str) -> int | None:
        """Return the number of experts of a stacked parameter that is quantized or large, and None for any other."""
        shape = self._shapes[parameter]
        stacked = is_large(shape) or (len(shape) == 3 and self._place[parameter][1].quantized is not None)
        return shape[0] if stacked else None

    def scale_dtype(self, parameter: str) -> torch.dtype:
        """Return the type of the scales of a quantized parameter."""
        name = self._place[parameter][0]
        matrix = name.removesuffix(".flat").removesuffix(".integers")
        dtype = self._initializers[f"{matrix}.scales"].dtype
        assert dtype is not None
        return TORCH_DTYPES[dtype]

    def output_rows(self, parameter: str, value: Tensor) -> Tensor:
        """Return a quantized parameter as [N, K], with a row for each output; blocks of a row share a scale."""
        stored = self._place[parameter][1]
        return value if stored.transposed == stored.columns else value.t()

    def steps(self, parameter: str) -> tuple[Tensor, Tensor]:
        """Return scales and zero points of a quantized parameter's integers, float32 [N, B], for B blocks of a row."""
        name, stored = self._place[parameter]
        parts, form = self._parts(name, stored), stored.quantized
        assert form is not None and stored.transposed == stored.columns
        scales = parts["scales"].reshape(parts["scales"].shape[0], -1) * (1 << form.unused_bits)
        zeros = torch.full(scales.shape, float(form.zero))
        if not form.symmetric:
            zeros = unpack(parts["zero_points"], form.bits, scales.shape[1]).float()
        # The rows of parameters that share a matrix follow each other.
        before = sum(self._shapes[other][0] for other in stored.parameters[: stored.parameters.index(parameter)])
        rows = slice(before, before + self._shapes[parameter][0])
        return scales[rows], zeros[rows]

    def _read(self, name: str, part: int | slice | Tensor | None = None) -> Tensor:
        """Read a stored tensor, or a part of it: one expert, or rows."""
        tensor = self._initializers[name].const_value
        assert tensor is not None
        # numpy takes a tensor of one number for that number, which would drop the axis of rows.
        index = part.numpy() if isinstance(part, Tensor) else part
        numbers = tensor.numpy() if index is None else tensor.numpy()[index]
        if tensor.dtype == ir.DataType.BFLOAT16:  # numpy lacks the type, so torch cannot convert it
            return torch.from_numpy(numbers.view("uint16").copy()).view(torch.bfloat16)
        return torch.from_numpy(numbers.copy())

    def _dequantized(self, name: str, stored: StoredWeight) -> dict[str, Tensor]:
        """Return the parameters of a matrix as integers, scales and zero points mean them, without `scaled` factors.

        Parameters that share a matrix are read one after another, so that the last such matrix is kept in any case.
        """
        if name in self._kept:
            return self._kept[name]
        rows = self._rows(name, stored)
        found = split_stored(rows.t() if stored.columns else rows, _source(stored), self._shapes)
        if not self._keeps_all:
            self._kept.clear()
        if self._keeps_all or len(found) > 1:
            self._kept[name] = found
        return found

    def _rows(self, name: str, stored: StoredWeight, part: int | slice | Tensor | None = None) -> Tensor:
        """Return a dequantized matrix [N, K], an expert of a stack or rows, without the zeros of its last block."""
        assert stored.quantized is not None
        shape = self._shapes[stored.parameters[0]]
        inputs = shape[-1] if stored.transposed == stored.columns else shape[-2]
        return dequantized(self._parts(name, stored, part), stored.quantized)[:, :inputs]

    def _parts(self, name: str, stored: StoredWeight, part: int | slice | Tensor | None = None) -> dict[str, Tensor]:
        """Return the parts of a quantized matrix, of one expert or of rows, without the factor of `scaled` outputs.

        name: of its integers.
        """
        assert stored.quantized is not None
        matrix = name.removesuffix(".flat").removesuffix(".integers")
        # In float32: another rounding of float16 scales, by the factor, would make other weights of them.
        scales = unscaled(self._read(f"{matrix}.scales", part).float(), stored.scaled, 0)
        parts = {"integers": unpacked(self._read(name, part), stored.quantized), "scales": scales}
        if not stored.quantized.symmetric:
            parts["zero_points"] = self._read(f"{matrix}.zero_points", part)
        return parts

    def __iter__(self) -> Iterator[str]:
        return iter(self._place)

    def __len__(self) -> int:
        return len(self._place)
