"""The plan of what to patch in a module of transformers.

`planning` makes it once, by running the module on the meta device without weights. Every later run, in whatever
precision, does what the plan says and nothing else.
"""

from dataclasses import dataclass, field

from edgeformer.contract.tensors import CacheGeometry, ConvState, KeyValueState, RecurrentState, State
from edgeformer.transformers_backend.patches.experts import ExpertsForm
from edgeformer.transformers_backend.patches.norms import RMSNormForm
from edgeformer.transformers_backend.patches.rotary import RotaryForm, Rotation


@dataclass(frozen=True)
class AttentionForm:
    """How one layer calls the attention op. module: its name; window: in tokens, 0 for none, as in the op.

    value_dim: elements of a value head, padded with zeros to head_dim where it is smaller.
    """

    module: str
    num_heads: int
    num_kv_heads: int
    head_dim: int
    value_dim: int
    scale: float
    window: int
    softcap: float
    sinks: bool


@dataclass
class PatchPlan:
    """The attention of each layer, norms, experts and rotary modules by name, and the rotation of each kind of call.

    num_layers: layers of the cache; those without any state keep nothing.

    A rotary module that serves several kinds of layers has a form for each kind; the kind is "" if there is only one.
    None stands for code that is not patched. positions: offsets of embeddings of positions by name; first_position: the
    position of the first token, if the module is given positions. notes: tell the user what is not patched, and why.
    """

    context_length: int
    vocab_size: int = 0
    num_layers: int = 0
    attentions: dict[int, AttentionForm] = field(default_factory=dict)
    convolutions: dict[int, ConvState] = field(default_factory=dict)
    recurrences: dict[int, RecurrentState] = field(default_factory=dict)
    norms: dict[str, RMSNormForm] = field(default_factory=dict)
    experts: dict[str, ExpertsForm] = field(default_factory=dict)
    rotaries: dict[str, dict[str, RotaryForm | None]] = field(default_factory=dict)
    rotations: dict[object, Rotation | None] = field(default_factory=dict)
    positions: dict[str, int] = field(default_factory=dict)
    first_position: int = 0
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Add a note for the user, once."""
        if text not in self.notes:
            self.notes.append(text)

    @property
    def geometry(self) -> CacheGeometry:
        """Return what each layer keeps between runs."""
        return CacheGeometry(layers=tuple(self.states(layer) for layer in range(self.num_layers)))

    def states(self, layer: int) -> tuple[State, ...]:
        """Return what one layer keeps: keys and values, the inputs of a convolution, and a recurrent state."""
        attention = self.attentions.get(layer)
        kept: list[State | None] = [self.convolutions.get(layer), self.recurrences.get(layer)]
        if attention is not None:
            kept.insert(0, KeyValueState(num_kv_heads=attention.num_kv_heads, head_dim=attention.head_dim))
        return tuple(state for state in kept if state is not None)

    def tensor_names(self, layer: int) -> list[str]:
        """Return the names of the tensors that one layer keeps, in their order."""
        return [name for state in self.states(layer) for name in state.tensors]
