"""Weights of a model by parameter name, read one tensor at a time.

`CheckpointWeights` maps the files of a checkpoint into memory: reading a tensor reads its bytes only, and they stay
file-backed. `RandomWeights` makes seeded tensors for configs without a checkpoint. Both are read-only mappings from
parameter name to torch tensor; an export accepts any such mapping.
"""

import functools
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from edgeformer.checkpoints import computed_tensors, mxfp4
from edgeformer.checkpoints.expert_weights import LazyWeights, StoredBlocks, is_stacked
from edgeformer.checkpoints.tensor_files import TensorFile, open_pickle, open_tensors
from edgeformer.checkpoints.weight_map import find_weight_files
from edgeformer.config import AttentionConfig, DeltaNetConfig, ModelConfig
from edgeformer.errors import WeightsError
from edgeformer.families import Family, find_tensors
from edgeformer.families._family import Place
from edgeformer.lora.adapter_tensors import LoraAdapter, Update
from edgeformer.lora.merged_adapter import Changes, MergedAdapter
from edgeformer.manifest.parts import LeftOut
from edgeformer.manifest.quantization import WeightFormat
from edgeformer.models import build_model
from edgeformer.models.without_values import without_values

UNHEARD = "audio"
"""The modality that no model of pictures and text is exported with."""

Weights = Mapping[str, Tensor]
Shapes = dict[str, tuple[int, ...]]


def parameter_shapes(config: ModelConfig) -> Shapes:
    """Return the shape of every parameter of the model by name, without allocating any."""
    return dict(_parameters(config)[0])


def _second_names(config: ModelConfig) -> dict[str, str]:
    """Return, for every further name of a shared parameter (tied head, shared embedding), its first name."""
    return dict(_parameters(config)[1])


@functools.lru_cache(maxsize=8)
def _parameters(config: ModelConfig) -> tuple[Shapes, dict[str, str]]:
    """Return the shapes of a model's parameters, and the first names of shared ones by their further names."""
    with without_values():
        model = build_model(config)
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    first = {id(parameter): name for name, parameter in model.named_parameters()}
    names = {name: first[id(parameter)] for name, parameter in model.named_parameters(remove_duplicate=False)}
    return shapes, {name: earlier for name, earlier in names.items() if name != earlier}


class CheckpointWeights(LazyWeights):
    """The weights of a Hugging Face folder (one file, or shards with an index), by edgeformer's parameter names.

    Opening reads headers, and compares names and shapes with the config; one WeightsError reports every missing,
    unexpected and misshapen tensor. Tables and masks that the config determines are read, too, and reported where they
    differ (`computed_tensors`). Copies of a tied weight are compared when it is first read; a WeightsError names
    two that differ.

    merged: the adapter that is merged into the tensors when they are read. head_layers: the folders, or pickles, with
    the weights of layers of the head, by the beginnings of their names.

    allow_pickle: whether pickles are read where there are no safetensors.

    left_out: what the checkpoint holds for other modalities, where the model is a text model inside a bigger one.
    """

    def __init__(
        self,
        folder: Path,
        family: Family,
        config: ModelConfig,
        merged: MergedAdapter | None = None,
        head_layers: Mapping[str, Path] = MappingProxyType({}),
        allow_pickle: bool = False,
    ):
        stored = open_tensors(folder, allow_pickle)
        self._names: dict[str, str] = {}
        self.left_out: tuple[LeftOut, ...] = ()
        if family.nested:
            self._names, others = find_tensors(family, stored)
            if family.sees:
                unheard = set() if config.task == "audio-text-to-text" else {UNHEARD}
                seen = (names for modality, names in others.items() if modality not in unheard)
                self._names |= {name.removeprefix("model."): name for names in seen for name in names}
                others = {modality: names for modality, names in others.items() if modality in unheard}
            self.left_out = tuple(_left_out(modality, names, stored) for modality, names in others.items())
            stored = {name: stored[theirs] for name, theirs in self._names.items()}
        prefix = family.optional_prefix
        self._absent_prefix = "" if any(name.startswith(prefix) for name in stored) else prefix
        stored = {self._absent_prefix + name: file for name, file in stored.items()}
        for layer, place in head_layers.items():
            opened = open_tensors(place, allow_pickle) if place.is_dir() else open_pickle(place)
            for name, file in opened.items():
                stored[f"{layer}.{name}"] = file
                self._names[f"{layer}.{name}"] = name
        for name, copied in merged.copies.items() if merged else ():
            if name not in stored and copied in stored:
                stored[name] = stored[copied]
                self._names[name] = self._names.get(copied, copied.removeprefix(self._absent_prefix))
        self._folder, self._family = folder, family
        self._stored = stored
        self._config = config
        self._changes: Changes = {}
        self._shapes = parameter_shapes(config)
        self._places = family.places(self._shapes, stored)
        # Parameters that are packed into each tensor of the checkpoint, in their order there.
        self._members: dict[str, list[str]] = {}
        for name in sorted(self._shapes, key=self._part):
            self._members.setdefault(self._places[name].tensor, []).append(name)

        self._places |= self._straight_experts()
        problems, expected = [], self._expected_shapes()
        self._expected = expected
        if merged is not None:
            self._changes = self._changes_of(merged)
        for theirs, shape in expected.items():
            if theirs not in stored:
                if theirs not in family.zero_if_absent:
                    problems.append(f"missing: {theirs} {list(shape)}")
                continue
            found = tuple(self._open(theirs).get_shape())
            # A vector may be stored as a matrix of one row, and one of a single number as that number.
            alike = _without_ones(found) == _without_ones(shape) or _are_kernels(found, shape)
            if not alike and not _are_tables(found, shape):
                problems.append(f"misshapen: {theirs} is {list(found)}, and the config implies {list(shape)}")
        self._copies = self._find_copies(family)
        problems += self._unread(family)
        if problems:
            shown = problems[:20] + ([f"… and {len(problems) - 20} more"] if len(problems) > 20 else [])
            raise WeightsError(
                f"the tensors in {_described(folder)} do not fit its config.json:\n  " + "\n  ".join(shown) + "\n"
                "Check that config.json and the weights belong together."
            )

    def _find_copies(self, family: Family) -> dict[str, list[str]]:
        """Return further stored tensors by the parameter of which each must be a copy (tied head, shared embedding)."""
        copies: dict[str, list[str]] = {}
        self._heads: set[str] = set()
        first_names = _second_names(self._config)
        for name, place in family.places(first_names, self._stored).items():
            if place.tensor in self._stored and place.tensor not in self._expected:
                copies.setdefault(first_names[name], []).append(place.tensor)
                self._heads |= {place.tensor} if "head" in name else set()
        # Where nothing is tied, neither are a shared embedding that no half has and a second bias of a head.
        # An encoder alone has one embedding, whatever the halves of its encoder-decoder had.
        tied = any("embedding" in name for name in first_names.values())
        alone = [name for name in ("embedding.weight",) if self._config.form == "encoder" and name in self._shapes]
        for name in self._shapes if tied else alone:
            others = [other for other in family.other_names(name, self._stored) if other not in self._expected]
            copies.setdefault(name, []).extend(other for other in others if family.ignores(other))
        for tensor, name in family.copies.items():
            if tensor in self._stored:
                copies.setdefault(first_names.get(name, name), []).append(tensor)
        return copies

    def _unread(self, family: Family) -> list[str]:
        """Return the problems of the tensors that no parameter is read from."""
        read = {copy for copies in self._copies.values() for copy in copies}
        read |= {
            name.removesuffix(mxfp4.BLOCKS) + mxfp4.SCALES for name in self._expected if name.endswith(mxfp4.BLOCKS)
        }
        problems = []
        for name in sorted(self._stored.keys() - self._expected.keys() - read):
            kind = family.computed(name)
            if kind is not None:
                problem = computed_tensors.difference(kind, self._slice(name)[...], self._config, name)
                problems += [f"different: {name} {problem}"] if problem else []
            elif not family.ignores(name):
                problems.append(f"unexpected: {name}")
        return problems

    def updates(self, adapter: LoraAdapter) -> dict[str, Update]:
        """Return what an adapter adds to each parameter that it changes, without merging it.

        Raises ConfigError for an adapter that does more than that, and WeightsError for one that does not fit.
        """
        adapter.require_low_rank()
        updates: dict[str, Update] = {}
        for tensor, change in self._changes_of(MergedAdapter(adapter, {})).items():
            a, b = change(self._slice(tensor)).added()
            if "#" in self._places[self._members[tensor][0]].tensor or len(self._expected[tensor]) != 2:
                raise WeightsError(
                    f"the adapter {adapter.folder} changes experts ({tensor}). Merge it: --merge-adapter."
                )
            updates |= {name: Update(a, self._unpacked(name, b)) for name in self._members[tensor]}
        return updates

    def _changes_of(self, merged: MergedAdapter) -> Changes:
        shared = {self._places[name].tensor for name in _second_names(self._config).values()}
        return merged.changes(self._family, self._places, self._expected, shared, self._names)

    def _part(self, name: str) -> int:
        packed = self._places[name].packed
        return packed.part if packed else 0

    def _expected_shapes(self) -> Shapes:
        """Return the shape of every tensor that the checkpoint must have, by the checkpoint's names."""
        expected: Shapes = {}
        for tensor, names in self._members.items():
            rows, *rest = self._shapes[names[0]]
            if "#" in tensor:
                expected |= {row: tuple(rest) for row in _rows(tensor, rows)}
                continue
            shape = self._shape_of(names)
            if self._places[names[0]].transposed:
                shape[-2:] = shape[:-3:-1]
            expected[tensor] = tuple(shape)
        return expected

    def _shape_of(self, names: list[str]) -> list[int]:
        """Return the shape of a tensor that holds parameters, if it is not transposed.

        Packed parameters share the rows of the tensor; otherwise it holds one parameter, or a copy for each name.
        """
        shape, packed = list(self._shapes[names[0]]), self._places[names[0]].packed
        if packed:
            shape[packed.axis] = sum(self._shapes[name][packed.axis] for name in names)
        return shape

    def _straight_experts(self) -> dict[str, Place]:
        """Return the places of parameters of experts that are not stored transposed, where their family has them so.

        transformers 5 reads those of Qwen3-VL-MoE both ways, by their shape, and writes them as they are computed with.
        """
        found: dict[str, Place] = {}
        for tensor, names in self._members.items():
            shape = self._shape_of(names)
            if not self._places[names[0]].transposed or len(shape) != 3 or shape[1] == shape[2]:
                continue
            if tensor in self._stored and list(self._open(tensor).get_shape()) == shape:
                found |= {name: replace(self._places[name], transposed=False) for name in names}
        return found

    def _open(self, tensor: str) -> Any:
        """Return a tensor of the checkpoint that is read when it is indexed; blocks of MXFP4 as what they mean."""
        scales = tensor.removesuffix(mxfp4.BLOCKS) + mxfp4.SCALES
        if tensor.endswith(mxfp4.BLOCKS) and scales in self._stored:
            return mxfp4.PackedSlice(tensor, self._slice(tensor), self._slice(scales))
        change = self._changes.get(tensor)
        return self._slice(tensor) if change is None else change(self._slice(tensor))

    def _slice(self, tensor: str) -> Any:
        name = tensor.removeprefix(self._absent_prefix)
        return self._stored[tensor].get_slice(self._names.get(name, name))

    def __getitem__(self, name: str) -> Tensor:
        tensor = self._read(name)
        for copy in self._copies.get(name, []):
            if not torch.equal(tensor, self._open(copy)[:].to(tensor.dtype)):
                if copy in self._family.copies:
                    raise WeightsError(
                        f"the safetensors in {self._folder} hold {self._places[name].tensor} and {copy}, which differ, "
                        "and edgeformer's layers of multi-token prediction share the model's. Leave mtp out."
                    )
                apart = 'If it was trained with two, say so there ("tie_word_embeddings": false); otherwise remove'
                raise WeightsError(
                    f"the safetensors in {self._folder} hold {self._places[name].tensor} and {copy}, which differ, and "
                    f"by config.json the model has one matrix for both. {apart if copy in self._heads else 'Remove'} "
                    "the tensor that is left over."
                )
        self._copies.pop(name, None)  # compare only once
        return tensor

    def _read(self, name: str) -> Tensor:
        place = self._places[name]
        if "#" in place.tensor:
            return torch.stack([self._open(row)[:] for row in _rows(place.tensor, self._shapes[name][0])])
        if place.tensor not in self._stored:
            return torch.zeros(self._shapes[name])  # the constructor has checked that it may be absent
        tensor: Tensor = self._open(place.tensor)[...].reshape(self._expected[place.tensor])
        return self._unpacked(name, tensor.mT if place.transposed else tensor)

    def read_expert(self, name: str, expert: int) -> Tensor:
        """Return one expert of a stacked parameter [X, out, in]; reads no other."""
        place = self._places[name]
        if "#" in place.tensor:
            part: Tensor = self._open(place.tensor.replace("#", str(expert)))[...]
            return part
        stack = self._open(place.tensor)[expert : expert + 1]
        return self._unpacked(name, stack.mT if place.transposed else stack)[0]

    def read_rows(self, name: str, rows: slice | Tensor) -> Tensor:
        """Return some rows of a parameter; of one that is a tensor by itself, no others are read."""
        place = self._places[name]
        alone = place.packed is None and not place.transposed and place.tensor in self._stored
        if alone and not self._copies.get(name) and place.tensor not in self._changes:
            opened = self._open(place.tensor)
            if list(opened.get_shape()) == list(self._shapes[name]):
                return _read_rows(opened, rows)
        return self[name][rows]

    def read_blocks(self, name: str, form: WeightFormat, part: slice | int) -> StoredBlocks | None:
        """Return the integers, scales and zero points that a quantized checkpoint stores for a parameter.

        None where it stores other blocks, or none (`expert_weights.read_blocks`). part: rows, or an expert.
        """
        place = self._places[name]
        if place.transposed or ("#" not in place.tensor and place.tensor not in self._stored):
            return None
        own = isinstance(part, int) and "#" in place.tensor
        opened = self._open(place.tensor.replace("#", str(part)) if own else place.tensor)
        if not hasattr(opened, "blocks") or (isinstance(part, slice) and "#" in place.tensor):
            return None
        index = slice(part, part + 1) if isinstance(part, int) and not own else slice(None)
        found: StoredBlocks | None = opened.blocks(form.bits, form.block, form.symmetric, index)
        if found is None or own:
            return found
        integers, scales, zeros = (self._unpacked(name, each) for each in found)
        rows = 0 if isinstance(part, int) else part
        return integers[rows], scales[rows], zeros[rows]

    def _unpacked(self, name: str, tensor: Tensor) -> Tensor:
        """Return the parameter that is a part of a tensor."""
        place = self._places[name]
        if place.packed is None:
            return tensor
        names = self._members[place.tensor]
        axis, shards = place.packed.axis, place.packed.shards
        match place.packed.layout:
            case "alternating":
                return tensor[:, place.packed.part :: len(names)]
            case "shared_last":
                latent = self._attention.latent
                assert latent is not None, "only heads of latent attention have a shared part"
                heads = tensor.unflatten(0, (self._attention.num_heads, -1))  # [H, D, …]
                return heads.roll(latent.shared_dim, 1).flatten(0, 1)
            case "groups":
                shards = self._attention.num_kv_heads
            case "heads":
                shards = self._attention.num_heads
            case "key_heads":
                shards = self._delta_net.num_key_heads
        sizes = [self._shapes[member][axis] // shards for member in names]
        divided = tensor.unflatten(axis, (shards, -1))  # [shards, rows / shards, …], of experts [X, 1, rows, …]
        part = divided.split(sizes, dim=axis + 1)[names.index(name)]
        if place.packed.layout == "key_heads" and name.endswith("query_key_value.weight"):
            config = self._delta_net
            kinds = part.split([config.key_dim, config.key_dim, config.inner_size // shards], dim=1)
            return torch.cat([kind.flatten(0, 1) for kind in kinds])
        return part.flatten(axis, axis + 1)

    @property
    def _delta_net(self) -> DeltaNetConfig:
        """Return the config of linear attention, which is the same in all layers that have it."""
        layers = (block.recurrent for block in self._config.output_stack.blocks)
        return next(layer for layer in layers if isinstance(layer, DeltaNetConfig))

    @property
    def _attention(self) -> AttentionConfig:
        """Return the attention by whose heads tensors are divided, the same in all blocks."""
        return self._config.output_stack.attentions[0]

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)


class RandomWeights(LazyWeights):
    """Seeded random parameters: weights of norms near one, matrices normal with a deviation of 1 / sqrt(inputs).

    Each tensor depends only on the seed and its name. Activations keep a scale of about one through any number of
    layers, so that numerical comparisons are as hard as with trained weights.
    """

    def __init__(self, config: ModelConfig, seed: int):
        self.shapes = parameter_shapes(config)
        self._seed = seed

    def __getitem__(self, name: str) -> Tensor:
        shape = self.shapes[name]
        if is_stacked(name):
            return torch.stack([self.read_expert(name, expert) for expert in range(shape[0])])
        noise = self._noise(name, shape)
        module, _, last = name.rpartition(".")
        if "norm" in module or len(shape) == 1:
            near_one = last == "scale" or ("norm" in module and last in ("weight", "running_var"))
            return 0.1 * noise + (1 if near_one else 0)
        return noise / math.sqrt(shape[-1])

    def read_expert(self, name: str, expert: int) -> Tensor:
        """Return one expert of a stacked parameter."""
        noise = self._noise(f"{name}/{expert}", self.shapes[name][1:])
        return 0.1 * noise if noise.dim() == 1 else noise / math.sqrt(noise.shape[-1])

    def _noise(self, name: str, shape: tuple[int, ...]) -> Tensor:
        # Combine both into one 32-bit number: torch's generator drops higher bits of its seed.
        generator = torch.Generator().manual_seed(zlib.crc32(f"{self._seed}/{name}".encode()))
        return torch.randn(shape, generator=generator)

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)


def _described(folder: Path) -> Path:
    """Return where weights are, for people: a GGUF file where a folder is made of one."""
    files = find_weight_files(folder)
    return files.paths[0].resolve() if files.gguf and files.paths else folder


def _left_out(modality: str, names: Iterable[str], stored: Mapping[str, TensorFile]) -> LeftOut:
    """Count the tensors of a modality, and the numbers in them; reads headers only."""
    sizes = [math.prod(stored[name].get_slice(name).get_shape()) for name in names]
    return LeftOut(modality=modality, tensors=len(sizes), parameters=sum(sizes))


def _are_kernels(found: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Return whether a matrix is stored as the kernels of a convolution over pixels, or frames of them, each a row."""
    return len(found) in (4, 5) and len(shape) == 2 and found[0] == shape[0] and math.prod(found) == math.prod(shape)


def _are_tables(found: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Return whether a matrix is stored as two tables of positions, of columns and rows of a picture (Gemma 4)."""
    return len(found) == 3 and 2 in found[:2] and (found[0] * found[1], found[2]) == shape


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape without its axes of length one."""
    return tuple(size for size in shape if size != 1)


def _read_rows(opened: Any, rows: slice | Tensor) -> Tensor:
    """Return rows of a tensor that is read when it is cut; of indices each row is read once, and no other."""
    if isinstance(rows, slice):
        part: Tensor = opened[rows]
        return part
    read, places = rows.unique(return_inverse=True)
    return torch.cat([opened[row : row + 1] for row in read.tolist()])[places]


def _rows(tensor: str, count: int) -> list[str]:
    """Return the names of the tensors that hold one row each; `#` in the pattern is the row."""
    return [tensor.replace("#", str(row)) for row in range(count)]
