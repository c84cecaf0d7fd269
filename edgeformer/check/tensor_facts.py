"""Facts about the inputs and outputs of a graph, and what its layers keep between runs according to them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from edgeformer.contract.tensors import CacheGeometry, ConvState, KeyValueState, RecurrentState, State, past_name

Dim = int | str | None
"""A dimension of a tensor: a number, a symbol, or None if the file does not say."""

PAST = re.compile(r"past_key_values\.\d+\.(?:(decoder|encoder)\.)?(?:key|value)|past_(?:conv|recurrent|ssm)\.\d+")
"""Name of a past in the contract; the group is the cache of an encoder-decoder."""

NAMES = {tensor: past_name(tensor, "%d") for tensor in ("key", "value", "conv", "recurrent", "ssm")}
"""Names of the pasts of a decoder in the contract, by tensor; %d stands for the layer."""


@dataclass(frozen=True)
class TensorFacts:
    """An input or output: name, data type in lower case (float, int64), dimensions."""

    name: str
    dtype: str
    dims: tuple[Dim, ...]

    def size(self, place: int) -> int:
        """Return a dimension, or 0 if there is no number at this place."""
        dim = self.dims[place] if place < len(self.dims) else None
        return dim if isinstance(dim, int) else 0


def is_per_token(past: str) -> bool:
    """Return whether a past has a slot for every token: keys and values do, other states have a fixed size."""
    return past.startswith("past_key_values.")


def find_pasts(
    inputs: Mapping[str, TensorFacts], names: Mapping[str, str] = NAMES
) -> dict[int, dict[str, TensorFacts]]:
    """Return the inputs that have one of the names, by layer and by tensor."""
    patterns = {tensor: re.compile(re.escape(name).replace("%d", r"(\d{1,4})")) for tensor, name in names.items()}
    found: dict[int, dict[str, TensorFacts]] = {}
    for name, facts in inputs.items():
        for tensor, pattern in patterns.items():
            if match := pattern.fullmatch(name):
                found.setdefault(int(match[1]), {})[tensor] = facts
    return found


def find_cache(inputs: Mapping[str, TensorFacts], part: str = "") -> CacheGeometry:
    """Return what each layer keeps, up to the last that keeps something; sizes that are no numbers are 0.

    part: `decoder.` or `encoder.` for a cache of an encoder-decoder.
    """
    names = {tensor: re.sub(r"(key|value)$", rf"{part}\1", name) for tensor, name in NAMES.items()}
    found = find_pasts(inputs, names)
    return CacheGeometry(layers=tuple(_states(found.get(layer, {})) for layer in range(max(found, default=-1) + 1)))


def _states(kept: Mapping[str, TensorFacts]) -> tuple[State, ...]:
    """Return the states of a layer, in the order of the contract."""
    states: list[State] = []
    if facts := kept.get("key", kept.get("value")):
        states.append(KeyValueState(num_kv_heads=facts.size(1), head_dim=facts.size(3)))
    if facts := kept.get("conv"):
        states.append(ConvState(channels=facts.size(1), width=facts.size(2)))
    names: tuple[Literal["recurrent", "ssm"], ...] = ("recurrent", "ssm")
    for name in names:
        if facts := kept.get(name):
            heads, key, value = (facts.size(place) for place in (1, 2, 3))
            states.append(RecurrentState(name=name, num_heads=heads, key_dim=key, value_dim=value))
    return tuple(states)
