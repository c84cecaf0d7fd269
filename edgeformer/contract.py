"""The tensors of every graph in a bundle: their names, in order, their dimensions, and the geometry of caches.

Both sides of a bundle agree here: `edgeformer.export` writes graphs of this form and `edgeformer.runtime` binds them.

A decoder:
    input_ids int64 [batch_size, sequence_length]; attention_mask int64 [batch_size, total_sequence_length]
    past_key_values.{i}.key|value [batch_size, num_kv_heads, past_sequence_length, head_dim]
    → logits float32 [batch_size, sequence_length, vocab_size]; present.{i}.key|value, the past with the new tokens in
    it (of the graph's own precision, or int8 where the manifest has scales for them)

A decoder that reads an encoder (its own cache is called `decoder`, that of the source `encoder`):
    input_ids, decoder_attention_mask, encoder_attention_mask int64 [batch_size, source_length],
    past_key_values.{i}.decoder.key|value, past_key_values.{i}.encoder.key|value
    → logits, present.{i}.decoder.key|value

The same for other clients, merged with what makes keys and values of the encoder's states (where use_cache_branch is
false; otherwise they are those that came back); all tokens count, so that there is no mask of them:
    encoder_attention_mask (not of recordings, which have no padding), input_ids, encoder_hidden_states float32
    [batch_size, source_length, hidden_size]; for every layer past_key_values.{i}.decoder.key, .decoder.value,
    .encoder.key, .encoder.value, the last two [batch_size, num_heads, past_source_length, head_dim];
    use_cache_branch bool [1]
    → logits; for every layer present.{i}.decoder.key, .decoder.value, .encoder.key, .encoder.value

An encoder for it:
    input_ids, attention_mask int64 [batch_size, source_length] (or input_features [batch_size, mel_bins, frames])
    → last_hidden_state [batch_size, source_length, hidden_size], present.{i}.encoder.key|value [batch_size, num_heads,
    source_length, head_dim], for every layer of the decoder

An encoder alone:
    input_ids, attention_mask int64 [batch_size, sequence_length], and token_type_ids where the model has several
    → last_hidden_state, and what the head makes of it: logits or sentence_embedding
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

CacheForm = Literal["any", "dynamic", "static"]
"""How a decoder graph takes its past and gives the present.

static: the past is a preallocated buffer, and the present is the same buffer. dynamic: the past holds the tokens so
far, and the present is the past with the new tokens concatenated. any: the graph takes both.

A dynamic cache keeps the padding of a batch between the tokens of its rows. The attention mask says which slots hold
tokens, and may have zeros anywhere; tokenizers that pad for generation put them before the text. In the other two forms
every token stands at its position, and only the number of ones in a row of the mask counts: ones, then zeros.
"""


@dataclass(frozen=True, kw_only=True)
class CacheGeometry:
    """Keys and values of a decoder, or of an encoder for it: the same two numbers in every layer."""

    num_layers: int
    num_kv_heads: int
    head_dim: int

    def elements(self, batch_size: int, capacity: int, windows: Sequence[int | None] = ()) -> int:
        """Elements of a cache for `batch_size` rows of `capacity` tokens: keys and values of all layers.

        windows: of each layer, the most tokens that it keeps; None for all.
        """
        kept = [min(window or capacity, capacity) for window in windows or [None] * self.num_layers]
        return 2 * sum(kept) * batch_size * self.num_kv_heads * self.head_dim


@dataclass(frozen=True)
class TensorSpec:
    """A tensor of a graph: its name and its dimensions, numbers or symbols. integer: int64, else of the graph's own
    precision.
    """

    name: str
    dims: tuple[str | int, ...]
    integer: bool = False


def past_names(geometry: CacheGeometry, part: str = "") -> list[str]:
    """past_key_values.0.key, past_key_values.0.value, past_key_values.1.key, …; part: `decoder.` or `encoder.`"""
    return _cache_names("past_key_values", geometry, part)


def present_names(geometry: CacheGeometry, part: str = "") -> list[str]:
    """present.0.key, present.0.value, present.1.key, …; part: `decoder.` or `encoder.`"""
    return _cache_names("present", geometry, part)


def input_names(geometry: CacheGeometry) -> list[str]:
    """Every input of a decoder graph, in order."""
    return [spec.name for spec in decoder_inputs(geometry)]


def output_names(geometry: CacheGeometry) -> list[str]:
    """Every output of a decoder graph, in order."""
    return ["logits", *present_names(geometry)]


def decoder_inputs(geometry: CacheGeometry) -> list[TensorSpec]:
    """Every input of a decoder graph, in order."""
    return [
        _tokens("input_ids"),
        _tokens("attention_mask", "total_sequence_length"),
        *_caches(past_names(geometry), geometry, "past_sequence_length"),
    ]


def seq2seq_decoder_inputs(geometry: CacheGeometry, source: CacheGeometry) -> list[TensorSpec]:
    """Every input of a decoder graph that reads an encoder, in order. source: its keys and values."""
    return [
        _tokens("input_ids"),
        _tokens("decoder_attention_mask", "total_sequence_length"),
        _tokens("encoder_attention_mask", "source_length"),
        *_caches(past_names(geometry, "decoder."), geometry, "past_sequence_length"),
        *_caches(past_names(source, "encoder."), source, "source_length"),
    ]


def merged_input_names(geometry: CacheGeometry, source: CacheGeometry, masked: bool = True) -> list[str]:
    """Every input of a merged decoder graph, in order. masked: whether sources have padding."""
    caches = _merged(past_names(geometry, "decoder."), past_names(source, "encoder."))
    mask = ["encoder_attention_mask"] if masked else []
    return [*mask, "input_ids", "encoder_hidden_states", *caches, "use_cache_branch"]


def merged_output_names(geometry: CacheGeometry, source: CacheGeometry) -> list[str]:
    """Every output of a merged decoder graph, in order."""
    return ["logits", *_merged(present_names(geometry, "decoder."), present_names(source, "encoder."))]


def text_inputs(length: str, token_types: bool = False) -> list[TensorSpec]:
    """Inputs of an encoder graph that reads text."""
    names = ["input_ids", "attention_mask", *(["token_type_ids"] if token_types else [])]
    return [_tokens(name, length) for name in names]


def audio_inputs(mel_bins: int, frames: int) -> list[TensorSpec]:
    """The input of an encoder graph that reads recordings, all of one length: a log-mel spectrogram."""
    return [TensorSpec("input_features", ("batch_size", mel_bins, frames))]


def _merged(own: Sequence[str], source: Sequence[str]) -> list[str]:
    """Layer by layer: key and value of the decoder's own cache, then of the source."""
    return [name for layer in range(0, len(own), 2) for names in (own, source) for name in names[layer : layer + 2]]


def _tokens(name: str, length: str = "sequence_length") -> TensorSpec:
    return TensorSpec(name, ("batch_size", length), integer=True)


def _caches(names: Sequence[str], geometry: CacheGeometry, length: str) -> list[TensorSpec]:
    return [TensorSpec(name, ("batch_size", geometry.num_kv_heads, length, geometry.head_dim)) for name in names]


def _cache_names(prefix: str, geometry: CacheGeometry, part: str) -> list[str]:
    return [f"{prefix}.{layer}.{part}{name}" for layer in range(geometry.num_layers) for name in ("key", "value")]
