"""The tensor contract: names, order and dimensions of the inputs and outputs of every graph in a bundle.

`edgeformer.export` writes graphs of this form, and `edgeformer.runtime` binds them.

Decoder (causal language model):
    input_ids int64 [batch_size, sequence_length]; attention_mask int64 [batch_size, total_sequence_length];
    past_key_values.{i}.key|value [batch_size, num_kv_heads, past_sequence_length, head_dim]
    → logits float32 [batch_size, sequence_length, vocab_size]; present.{i}.key|value: the past with the new tokens in
    it. Caches have the precision of the graph, or are int8 if the manifest has cache_scales.

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

Encoder of an encoder-decoder:
    input_ids, attention_mask int64 [batch_size, source_length] (or input_features [batch_size, mel_bins, frames])
    → last_hidden_state [batch_size, source_length, hidden_size]; for every layer of the decoder
    present.{i}.encoder.key|value [batch_size, num_heads, source_length, head_dim]

Encoder:
    input_ids, attention_mask int64 [batch_size, sequence_length]; token_type_ids if the model has several types
    → last_hidden_state; logits or sentence_embedding if the model has a head
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

CacheForm = Literal["any", "dynamic", "static"]
"""How a decoder graph takes its past and returns the present.

static: the past is a preallocated buffer, and the present is the same buffer. dynamic: the past holds the tokens so
far, and the present is the past with the new tokens concatenated. any: the graph takes both.

A dynamic cache keeps the padding of a batch between the tokens of its rows. Its attention mask marks the slots that
hold tokens and may have zeros anywhere; tokenizers that pad for generation put them before the text. In the other two
forms every token is at its position, and rows of the mask are ones, then zeros.
"""


@dataclass(frozen=True, kw_only=True)
class CacheGeometry:
    """Sizes of a key/value cache; all layers have the same number of heads and head_dim."""

    num_layers: int
    num_kv_heads: int
    head_dim: int

    def elements(self, batch_size: int, capacity: int, windows: Sequence[int | None] = ()) -> int:
        """Return the number of elements of keys and values of all layers, for `batch_size` rows of `capacity` tokens.

        windows: per layer, the number of tokens that it keeps at most; None for all. Empty: all layers keep all.
        """
        kept = [min(window or capacity, capacity) for window in windows or [None] * self.num_layers]
        return 2 * sum(kept) * batch_size * self.num_kv_heads * self.head_dim


@dataclass(frozen=True)
class TensorSpec:
    """Name and dimensions (numbers or symbols) of a tensor of a graph.

    Attributes:
        integer: the dtype is int64; otherwise it is the precision of the graph.
    """

    name: str
    dims: tuple[str | int, ...]
    integer: bool = False


def past_names(geometry: CacheGeometry, part: str = "") -> list[str]:
    """Return past_key_values.0.key, past_key_values.0.value, past_key_values.1.key, …

    part: inserted after the layer; `decoder.` or `encoder.` for an encoder-decoder.
    """
    return _cache_names("past_key_values", geometry, part)


def present_names(geometry: CacheGeometry, part: str = "") -> list[str]:
    """Return present.0.key, present.0.value, present.1.key, …; see `past_names` for `part`."""
    return _cache_names("present", geometry, part)


def input_names(geometry: CacheGeometry) -> list[str]:
    """Return the names of all inputs of a decoder graph, in order."""
    return [spec.name for spec in decoder_inputs(geometry)]


def output_names(geometry: CacheGeometry) -> list[str]:
    """Return the names of all outputs of a decoder graph, in order."""
    return ["logits", *present_names(geometry)]


def decoder_inputs(geometry: CacheGeometry) -> list[TensorSpec]:
    """Return all inputs of a decoder graph, in order."""
    return [
        _tokens("input_ids"),
        _tokens("attention_mask", "total_sequence_length"),
        *_caches(past_names(geometry), geometry, "past_sequence_length"),
    ]


def seq2seq_decoder_inputs(geometry: CacheGeometry, source: CacheGeometry) -> list[TensorSpec]:
    """Return all inputs of the decoder graph of an encoder-decoder, in order.

    source: geometry of the cross-attention keys and values.
    """
    return [
        _tokens("input_ids"),
        _tokens("decoder_attention_mask", "total_sequence_length"),
        _tokens("encoder_attention_mask", "source_length"),
        *_caches(past_names(geometry, "decoder."), geometry, "past_sequence_length"),
        *_caches(past_names(source, "encoder."), source, "source_length"),
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


def _merged(own: Sequence[str], source: Sequence[str]) -> list[str]:
    """Return, layer by layer, key and value of the decoder's own cache, then those of cross-attention."""
    return [name for layer in range(0, len(own), 2) for names in (own, source) for name in names[layer : layer + 2]]


def _tokens(name: str, length: str = "sequence_length") -> TensorSpec:
    return TensorSpec(name, ("batch_size", length), integer=True)


def _caches(names: Sequence[str], geometry: CacheGeometry, length: str) -> list[TensorSpec]:
    return [TensorSpec(name, ("batch_size", geometry.num_kv_heads, length, geometry.head_dim)) for name in names]


def _cache_names(prefix: str, geometry: CacheGeometry, part: str) -> list[str]:
    return [f"{prefix}.{layer}.{part}{name}" for layer in range(geometry.num_layers) for name in ("key", "value")]
