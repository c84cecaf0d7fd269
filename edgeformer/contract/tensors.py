"""The tensor contract: names, order and dimensions of the inputs and outputs of every graph in a bundle.

`edgeformer.export` writes graphs of this form, and `edgeformer.runtime` binds them.

Decoder (causal language model):
    input_ids int64 [batch_size, sequence_length]; attention_mask int64 [batch_size, total_sequence_length];
    for every layer what it keeps: past_key_values.{i}.key|value [batch_size, num_kv_heads, past_sequence_length,
    head_dim] of attention, past_conv.{i} [batch_size, channels, width] of a causal convolution, past_recurrent.{i} or
    past_ssm.{i} [batch_size, num_heads, key_dim, value_dim] of a recurrent layer; initializers, which are inputs, too,
    in the graph that the runtime opens: logits_start int64 [1], the first token of which there are logits, counted from
    the end if negative, 0; and request_length int64 [1 or batch_size], where rotary embeddings have other factors for
    long requests: the most tokens that each row will have, the context length
    → logits float32 [batch_size, logits_length, vocab_size], which is sequence_length for a logits_start of 0;
    present.{i}.key|value: the past with the new tokens in it; present_conv.{i}, present_recurrent.{i}, present_ssm.{i}:
    the states after the new tokens. Layers may have different numbers of heads and head_dims; a layer that reads an
    earlier layer's keys and values has none of its own.
    Caches have the precision of the graph, but recurrent and ssm states are float32 in every graph; keys and values are
    int8 or float8e4m3fn if the manifest has cache_scales, which say which.

Decoder of an encoder-decoder (its own cache is named `decoder`, the cross-attention cache `encoder`):
    input_ids, decoder_attention_mask, encoder_attention_mask int64 [batch_size, source_length],
    past_key_values.{i}.decoder.key|value, past_key_values.{i}.encoder.key|value
    → logits, present.{i}.decoder.key|value

Merged decoder of an encoder-decoder, as Optimum exports it, for other clients. Where use_cache_branch is false, the
graph computes the cross-attention keys and values from the encoder's states; otherwise it takes them from its inputs.
It has no mask of target tokens, because all of them are valid:
    encoder_attention_mask (absent for spectrograms, which have no padding), input_ids, encoder_hidden_states float32
    [batch_size, source_length, hidden_size]; for every layer past_key_values.{i}.decoder.key, .decoder.value,
    .encoder.key, .encoder.value, the last two [batch_size, num_heads, past_source_length, head_dim];
    use_cache_branch bool [1]
    → logits; for every layer present.{i}.decoder.key, .decoder.value, .encoder.key, .encoder.value

Alignment graph of a speech model, which runs once on a whole text:
    the inputs of the decoder → cross_attentions float32 [batch_size, heads, sequence_length, source_length], the
    presents of the decoder

Encoder of an encoder-decoder:
    input_ids, attention_mask int64 [batch_size, source_length] (or input_features [batch_size, mel_bins, frames], or
    pixel_values float32 [batch_size, channels, height, width])
    → last_hidden_state [batch_size, source_length, hidden_size]; for every layer of the decoder
    present.{i}.encoder.key|value [batch_size, num_heads, source_length, head_dim]

Encoder of pictures of any size, in a batch padded to the most patches of one:
    pixel_values float32 [batch_size, num_patches, numbers], pixel_attention_mask int64 [batch_size, num_patches],
    spatial_shapes int64 [batch_size, 2]
    → last_hidden_state [batch_size, num_patches, hidden_size]; pooler_output or logits

Encoder:
    input_ids, attention_mask int64 [batch_size, sequence_length]; token_type_ids if the model has several types
    → last_hidden_state; what the heads compute (`edgeformer.config.heads`): logits; start_logits and end_logits of
    answers to questions [batch_size, sequence_length]; sentence_embedding [batch_size, size], sparse_embedding
    [batch_size, vocab_size], token_weights [batch_size, sequence_length], token_embeddings [batch_size,
    sequence_length, size]
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Literal, NamedTuple, TypeVar

from edgeformer.documents import schema

T = TypeVar("T")

LOGITS_START, LOGITS_LENGTH = "logits_start", "logits_length"
"""An optional input of decoders, and the tokens that logits have then. Graphs of earlier versions do not have it."""

REQUEST_LENGTH = "request_length"
"""An optional input of decoders whose rotary embeddings depend on the length of a request."""

ENCODER_OUTPUTS = (
    "last_hidden_state", "logits", "start_logits", "end_logits", "sentence_embedding", "sparse_embedding",
    "token_weights", "token_embeddings", "pooler_output", "image_embeds",
)  # fmt: skip
"""The outputs of encoders: the states, and those that heads compute."""

CROSS_ATTENTIONS = "cross_attentions"
"""The output of an alignment graph."""

SCALE_BYTES = 4
"""Bytes of the scale behind a key or value in int8, a float32."""

CacheForm = Literal["any", "dynamic", "static"]
"""How a decoder graph takes its past and returns the present.

static: the past is a preallocated buffer, and the present is the same buffer. dynamic: the past holds the tokens so
far, and the present is the past with the new tokens concatenated. any: the graph takes both.

A dynamic cache keeps the padding of a batch between the tokens of its rows. Its attention mask marks the slots that
hold tokens and may have zeros anywhere; tokenizers that pad for generation put them before the text. In the other two
forms every token is at its position, and rows of the mask are ones, then zeros.
"""


@dataclass(frozen=True, kw_only=True)
class KeyValueState:
    """Keys and values of the tokens so far: two tensors [B, num_kv_heads, tokens, head_dim]."""

    kind: Literal["key_value"] = "key_value"
    num_kv_heads: int
    head_dim: int

    @property
    def tensors(self) -> tuple[str, ...]:
        """Return the names of the state's tensors in a layer."""
        return ("key", "value")

    @property
    def dims(self) -> tuple[int | None, ...]:
        """Return the dimensions of each tensor behind the batch; None stands for the number of tokens."""
        return (self.num_kv_heads, None, self.head_dim)


@dataclass(frozen=True, kw_only=True)
class ConvState:
    """The last `width` inputs of a causal depthwise convolution, the newest last: [B, channels, width].

    width is the size of the kernel minus one. The state is zero before the first token.
    """

    kind: Literal["conv"] = "conv"
    channels: int
    width: int

    @property
    def tensors(self) -> tuple[str, ...]:
        """Return the names of the state's tensors in a layer."""
        return ("conv",)

    @property
    def dims(self) -> tuple[int | None, ...]:
        """Return the dimensions of each tensor behind the batch."""
        return (self.channels, self.width)


@dataclass(frozen=True, kw_only=True)
class RecurrentState:
    """The matrix of each head of a recurrent layer: [B, num_heads, key_dim, value_dim]; zero before the first token.

    It is float32 in graphs of half precision, too: every token adds to it, and in float16 the rounding of each would
    add up.

    Attributes:
        name: of the tensor, as transformers.js expects it: `ssm` of selective state spaces (Mamba-2), else `recurrent`.
    """

    kind: Literal["recurrent"] = "recurrent"
    name: Literal["recurrent", "ssm"] = "recurrent"
    num_heads: int
    key_dim: int
    value_dim: int

    @property
    def tensors(self) -> tuple[str, ...]:
        """Return the names of the state's tensors in a layer."""
        return (self.name,)

    @property
    def dims(self) -> tuple[int | None, ...]:
        """Return the dimensions of each tensor behind the batch."""
        return (self.num_heads, self.key_dim, self.value_dim)


State = KeyValueState | ConvState | RecurrentState


@dataclass(frozen=True)
class StateTensor:
    """One tensor of the cache of one layer.

    Attributes:
        layer: index of the layer.
        name: of the tensor in its layer, such as `key`.
        past, present: names of the tensor as input and as output of a graph.
        state: the state that it belongs to.
    """

    layer: int
    name: str
    past: str
    present: str
    state: State

    @property
    def single(self) -> bool:
        """Whether the tensor is float32 in graphs of half precision, too."""
        return isinstance(self.state, RecurrentState)

    @property
    def per_token(self) -> bool:
        """Whether the tensor has a slot for every token; otherwise its size is fixed."""
        return None in self.state.dims

    def shape(self, batch_size: int, tokens: int) -> tuple[int, ...]:
        """Return the dimensions for a number of rows and of tokens."""
        return (batch_size, *(tokens if size is None else size for size in self.state.dims))

    def spec(self, length: str) -> "TensorSpec":
        """Return the tensor as the input of a graph; `length` is the symbol of the number of tokens."""
        dims = ("batch_size", *(length if size is None else size for size in self.state.dims))
        return TensorSpec(self.past, dims, single=self.single)


class ElementBytes(NamedTuple):
    """Bytes of one element: of keys and values, and of states of fixed size that need not be float32."""

    tokens: int
    states: int


@dataclass(frozen=True, kw_only=True)
class CacheGeometry:
    """Shapes of all that the layers of a decoder keep between runs.

    Attributes:
        layers: the states of each layer, in order; none for a layer that reads an earlier layer's keys and values, and
            for one that reads no other token.
    """

    layers: tuple[tuple[State, ...], ...]

    @classmethod
    def of_attention(cls, num_layers: int, num_kv_heads: int, head_dim: int) -> "CacheGeometry":
        """Return the geometry of layers that all keep keys and values of one number of heads and one head_dim."""
        return cls(layers=((KeyValueState(num_kv_heads=num_kv_heads, head_dim=head_dim),),) * num_layers)

    @property
    def num_layers(self) -> int:
        """Return the number of layers, with those that keep nothing."""
        return len(self.layers)

    @property
    def key_value(self) -> KeyValueState | None:
        """Return the keys and values of a layer where those of all layers are alike, and None otherwise."""
        kept = {state for states in self.layers for state in states if isinstance(state, KeyValueState)}
        return kept.pop() if len(kept) == 1 else None

    @property
    def is_uniform(self) -> bool:
        """Whether all layers keep keys and values of one shape, and nothing else."""
        kept = self.key_value
        return kept is not None and all(states == (kept,) for states in self.layers)

    @property
    def recurrent(self) -> bool:
        """Whether a layer has a state of fixed size, which cannot be cut back to fewer tokens."""
        return any(None not in state.dims for states in self.layers for state in states)

    def tensors(self, part: str = "") -> list[StateTensor]:
        """Return the tensors of all layers, in order.

        part: inserted after the layer in the names of keys and values; `decoder.` or `encoder.` for an encoder-decoder.
        """
        return [
            StateTensor(layer, name, *_state_names(layer, name, part), state)
            for layer, states in enumerate(self.layers)
            for state in states
            for name in state.tensors
        ]

    def by_layer(self, tensors: Sequence[T]) -> list[tuple[T, ...]]:
        """Split one thing per tensor, in the order of `tensors`, into a tuple for each layer."""
        rest = iter(tensors)
        split = [tuple(next(rest) for state in states for _ in state.tensors) for states in self.layers]
        assert next(rest, None) is None, f"there are more than {len(self.tensors())} tensors"
        return split

    def elements(self, batch_size: int, capacity: int, windows: Sequence[int | None] = ()) -> int:
        """Return the number of elements of all states, for `batch_size` rows of `capacity` tokens.

        windows: per layer, the number of tokens that it keeps at most; None for all. Empty: all layers keep all.
        """
        return sum(count for _, count in self._counted(batch_size, capacity, windows))

    def _counted(
        self, batch_size: int, capacity: int, windows: Sequence[int | None]
    ) -> Iterator[tuple[StateTensor, int]]:
        kept = [min(window or capacity, capacity) for window in windows or [None] * self.num_layers]
        return ((tensor, math.prod(tensor.shape(batch_size, kept[tensor.layer]))) for tensor in self.tensors())

    def with_scales_per_token(self) -> "CacheGeometry":
        """Return the geometry of keys and values in int8, behind each of which is its scale."""
        return CacheGeometry(
            layers=tuple(
                tuple(
                    replace(state, head_dim=state.head_dim + SCALE_BYTES) if isinstance(state, KeyValueState) else state
                    for state in states
                )
                for states in self.layers
            )
        )

    @property
    def elements_per_token(self) -> int:
        """Return the number of elements that a token adds to the cache of one row."""
        return self.elements(1, 1) - self.elements(1, 0)

    def size_in_bytes(
        self, element: ElementBytes, batch_size: int, capacity: int, windows: Sequence[int | None] = ()
    ) -> int:
        """Return the bytes of all states; other arguments are those of `elements`."""
        return sum(
            count * (4 if tensor.single else element.tokens if tensor.per_token else element.states)
            for tensor, count in self._counted(batch_size, capacity, windows)
        )

    def to_json(self) -> list[dict[str, Any]]:
        """Return JSON data. A run of equal layers is stored once, with the number of repetitions."""
        return [{"repeat": len(list(run)), "states": schema.to_json(states)} for states, run in groupby(self.layers)]

    @classmethod
    def from_json(cls, data: Any, path: str = "") -> "CacheGeometry":
        """Return the geometry that `to_json` stored. Raises ConfigError for data of another form."""
        layers = schema.repeated(data, "states", path or "the cache")
        return cls(layers=tuple(schema.from_json(tuple[State, ...], states, path) for states in layers))


@dataclass(frozen=True)
class TensorSpec:
    """Name and dimensions (numbers or symbols) of a tensor of a graph.

    Attributes:
        integer: the dtype is int64; otherwise it is the precision of the graph.
        single: the dtype is float32 in graphs of half precision, too.
    """

    name: str
    dims: tuple[str | int, ...]
    integer: bool = False
    single: bool = False


def past_names(geometry: CacheGeometry, part: str = "") -> list[str]:
    """Return the names of the past of every layer: past_key_values.0.key, past_key_values.0.value, past_conv.1, …

    part: see `CacheGeometry.tensors`.
    """
    return [tensor.past for tensor in geometry.tensors(part)]


def past_name(tensor: str, layer: int | str, part: str = "") -> str:
    """Return the name of the past of a tensor of a layer, such as `key`. part: see `CacheGeometry.tensors`."""
    return _state_names(layer, tensor, part)[0]


def present_names(geometry: CacheGeometry, part: str = "") -> list[str]:
    """Return the names of the presents, in the order of `past_names`: present.0.key, …, present_conv.1, …"""
    return [tensor.present for tensor in geometry.tensors(part)]


def input_names(geometry: CacheGeometry) -> list[str]:
    """Return the names of all inputs of a decoder graph, in order."""
    return [spec.name for spec in decoder_inputs(geometry)]


def output_names(geometry: CacheGeometry) -> list[str]:
    """Return the names of all outputs of a decoder graph, in order."""
    return ["logits", *present_names(geometry)]


def decoder_inputs(geometry: CacheGeometry, *others: TensorSpec) -> list[TensorSpec]:
    """Return all inputs of a decoder graph, in order. others: further ones, before the caches."""
    return [
        _tokens("input_ids"),
        _tokens("attention_mask", "total_sequence_length"),
        *others,
        *_caches(geometry, "past_sequence_length"),
    ]


def seq2seq_decoder_inputs(geometry: CacheGeometry, source: CacheGeometry) -> list[TensorSpec]:
    """Return all inputs of the decoder graph of an encoder-decoder, in order.

    source: geometry of the cross-attention keys and values.
    """
    return [
        _tokens("input_ids"),
        _tokens("decoder_attention_mask", "total_sequence_length"),
        _tokens("encoder_attention_mask", "source_length"),
        *_caches(geometry, "past_sequence_length", "decoder."),
        *_caches(source, "source_length", "encoder."),
    ]


def merged_input_names(geometry: CacheGeometry, source: CacheGeometry, masked: bool = True) -> list[str]:
    """Return the names of all inputs of a merged decoder graph, in order.

    masked: whether the encoder's input may have padding, so that there is an encoder_attention_mask.
    """
    caches = _merged(past_names(geometry, "decoder."), past_names(source, "encoder."))
    mask = ["encoder_attention_mask"] if masked else []
    return [*mask, "input_ids", "encoder_hidden_states", *caches, "use_cache_branch"]


def merged_output_names(geometry: CacheGeometry, source: CacheGeometry) -> list[str]:
    """Return the names of all outputs of a merged decoder graph, in order."""
    return ["logits", *_merged(present_names(geometry, "decoder."), present_names(source, "encoder."))]


def text_inputs(length: str, token_types: bool = False) -> list[TensorSpec]:
    """Return the inputs of an encoder graph for text; `length` is the symbol of the number of tokens."""
    names = ["input_ids", "attention_mask", *(["token_type_ids"] if token_types else [])]
    return [_tokens(name, length) for name in names]


def audio_inputs(mel_bins: int, frames: int) -> list[TensorSpec]:
    """Return the input of an encoder graph for speech: log-mel spectrograms, all of one length."""
    return [TensorSpec("input_features", ("batch_size", mel_bins, frames))]


AUDIO_VALUES, FEATURE_MASK = "audio_values", "feature_attention_mask"
"""Inputs of towers of sound: the first with transformers.js' name, the other with that of transformers."""


def sound_inputs(mel_bins: int, frames: int, *, masked: bool) -> list[TensorSpec]:
    """Return the inputs of a tower of sound: windows of a spectrogram, float32 in every precision of the graph.

    masked: whether there is one that has ones for frames of sound, then zeros.
    """
    values = TensorSpec(AUDIO_VALUES, ("batch_size", mel_bins, frames), single=True)
    mask = TensorSpec(FEATURE_MASK, ("batch_size", frames), integer=True)
    return [values, *([mask] if masked else [])]


def _embeddings(width: int) -> TensorSpec:
    return TensorSpec("inputs_embeds", ("batch_size", "sequence_length", width), single=True)


def embedding_inputs(width: int) -> list[TensorSpec]:
    """Return the inputs of the graph of an encoder that reads embeddings in the place of tokens."""
    return [_embeddings(width), _tokens("attention_mask")]


def embedding_decoder_inputs(geometry: CacheGeometry, width: int, axes: int | None = None) -> list[TensorSpec]:
    """Return all inputs of the graph of a decoder that reads embeddings in the place of tokens, in order.

    axes: of its positions, where these have several; they are an input then.
    """
    embeddings = _embeddings(width)
    _, mask, *caches = decoder_inputs(geometry)
    if axes is None:
        return [embeddings, mask, *caches]
    positions = TensorSpec(POSITION_IDS, (axes, "batch_size", "sequence_length"), integer=True)
    return [embeddings, mask, positions, *caches]


HIDDEN_STATES = "hidden_states"
"""The states of tokens behind the final norm: an output of a decode graph with a draft graph, which reads them."""

PREDICTED_STATES = "predicted_hidden_states"
"""The output of a draft graph that stands in for the states of the next tokens."""


def draft_inputs(geometry: CacheGeometry, hidden_size: int) -> list[TensorSpec]:
    """Return all inputs of the graph of a layer that drafts tokens (multi-token prediction), in order."""
    states = TensorSpec(HIDDEN_STATES, ("batch_size", "sequence_length", hidden_size), single=True)
    return decoder_inputs(geometry, states)


POSITION_IDS = "position_ids"
"""The input of positions that have several axes."""


MEDIA_INPUTS = ("input_features", "pixel_values", AUDIO_VALUES)
"""Inputs of encoder graphs that hold no tokens: spectrograms, pixels."""


def picture_inputs(channels: int, height: int, width: int, tiled: bool = False) -> list[TensorSpec]:
    """Return the input of an encoder graph for pictures, all of one size, float32 in every precision of the graph.

    tiled: whether there is an axis for the pictures that one is cut into, and for those of one text.
    """
    tiles = ("num_images",) if tiled else ()
    return [TensorSpec("pixel_values", ("batch_size", *tiles, channels, height, width), single=True)]


def patch_inputs(numbers: int, grid: str) -> list[TensorSpec]:
    """Return the inputs of an encoder graph for one picture of any size, which is cut into patches.

    numbers: of a patch. grid: name of the input that says the rows and columns of patches, [[1, rows, columns]].
    """
    return [TensorSpec("pixel_values", ("num_patches", numbers), single=True), TensorSpec(grid, (1, 3), integer=True)]


PATCH_MASK, SHAPES = "pixel_attention_mask", "spatial_shapes"
"""Inputs beside padded patches: which of them do not pad, and the rows and columns of each picture."""


def padded_patch_inputs(numbers: int) -> list[TensorSpec]:
    """Return the inputs of an encoder graph for pictures of any size, which are cut into patches and padded.

    numbers: of a patch.
    """
    return [
        TensorSpec("pixel_values", ("batch_size", "num_patches", numbers), single=True),
        TensorSpec(PATCH_MASK, ("batch_size", "num_patches"), integer=True),
        TensorSpec(SHAPES, ("batch_size", 2), integer=True),
    ]


def dual_inputs(pictures: Sequence[TensorSpec]) -> list[TensorSpec]:
    """Return the inputs of a graph of texts and pictures, whose numbers differ; pictures: those of their graph."""
    return [
        TensorSpec("input_ids", ("text_batch_size", "sequence_length"), integer=True),
        *(replace(each, dims=("image_batch_size", *each.dims[1:])) for each in pictures),
    ]


def _merged(own: Sequence[str], source: Sequence[str]) -> list[str]:
    """Return, layer by layer, key and value of the decoder's own cache, then those of cross-attention."""
    return [name for layer in range(0, len(own), 2) for names in (own, source) for name in names[layer : layer + 2]]


def _tokens(name: str, length: str = "sequence_length") -> TensorSpec:
    return TensorSpec(name, ("batch_size", length), integer=True)


def _caches(geometry: CacheGeometry, length: str, part: str = "") -> list[TensorSpec]:
    return [tensor.spec(length) for tensor in geometry.tensors(part)]


def past_layer(past: str) -> int:
    """Return the layer of a past, by its name."""
    return int(past.split(".")[1])


def _state_names(layer: int | str, name: str, part: str) -> tuple[str, str]:
    """Return the names of the past and the present of a tensor, as transformers.js and Optimum name them."""
    if name in ("key", "value"):
        return f"past_key_values.{layer}.{part}{name}", f"present.{layer}.{part}{name}"
    return f"past_{name}.{layer}", f"present_{name}.{layer}"
