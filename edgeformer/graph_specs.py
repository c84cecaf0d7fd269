"""The graphs that a model is exported as: what each traces of the module, and the tensors that it has.

A decoder and an encoder are one graph each. An encoder and decoder pair is two, over the same weights: the encoder,
with the keys and values that every layer of the decoder will read, computed once; and the decoder, which gets them.
Logits leave every graph as float32: no client should need a half type to sample.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from edgeformer.config import (
    ClassificationHead,
    DecoderConfig,
    EncoderConfig,
    MaskedLMHead,
    PoolingHead,
    Seq2SeqConfig,
    StackConfig,
)
from edgeformer.contract import (
    CacheGeometry,
    TensorSpec,
    audio_inputs,
    decoder_inputs,
    output_names,
    present_names,
    seq2seq_decoder_inputs,
    text_inputs,
)
from edgeformer.layers import Cache

GRAPH = "onnx/model.onnx"
ENCODER_GRAPH = "onnx/encoder_model.onnx"
DECODER_GRAPH = "onnx/decoder_model.onnx"
MERGED_GRAPH = "onnx/decoder_model_merged.onnx"


@dataclass(frozen=True, kw_only=True)
class GraphSpec:
    """One graph of a model.

    file: its place in the bundle. inputs, outputs: its tensors, in order. wrap: from the module to one that takes and
    returns just these, the module being its `model`. stack: the config of the blocks inside, where they are ours.
    """

    file: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[str, ...]
    wrap: Callable[[nn.Module], nn.Module]
    stack: StackConfig | None = None


def decoder_graph(cache: CacheGeometry, config: DecoderConfig | None = None) -> GraphSpec:
    """The graph of a decoder alone, ours or not."""
    return GraphSpec(
        file=GRAPH,
        inputs=tuple(decoder_inputs(cache)),
        outputs=tuple(output_names(cache)),
        wrap=_DecoderGraph,
        stack=config,
    )


def encoder_graph(config: EncoderConfig) -> GraphSpec:
    """The graph of an encoder alone."""
    names: dict[type | None, list[str]] = {
        MaskedLMHead: ["logits"], ClassificationHead: ["logits"], PoolingHead: ["sentence_embedding"], type(None): [],
    }  # fmt: skip
    return GraphSpec(
        file=GRAPH,
        inputs=_encoder_inputs(config, "sequence_length"),
        outputs=("last_hidden_state", *names[type(config.head)]),
        wrap=_EncoderGraph,
        stack=config,
    )


def seq2seq_graphs(config: Seq2SeqConfig) -> tuple[GraphSpec, GraphSpec]:
    """The graphs of an encoder and a decoder that reads it."""
    source = config.decoder.cross_geometry
    assert source is not None
    return (
        GraphSpec(
            file=ENCODER_GRAPH,
            inputs=_encoder_inputs(config.encoder, "source_length"),
            outputs=("last_hidden_state", *present_names(source, "encoder.")),
            wrap=_SourceGraph,
            stack=config.encoder,
        ),
        GraphSpec(
            file=DECODER_GRAPH,
            inputs=tuple(seq2seq_decoder_inputs(config.decoder.cache_geometry, source)),
            outputs=("logits", *present_names(config.decoder.cache_geometry, "decoder.")),
            wrap=_TargetGraph,
            stack=config.decoder,
        ),
    )


def _encoder_inputs(config: EncoderConfig, length: str) -> tuple[TensorSpec, ...]:
    if config.audio is not None:
        return tuple(audio_inputs(config.audio.mel_bins, 2 * config.context_length))
    return tuple(text_inputs(length, config.token_types > 1))


class _Graph(nn.Module):
    """Holds the module as `model`; names in the graph are those of the module without it."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model


class _DecoderGraph(_Graph):
    def forward(self, input_ids: Tensor, attention_mask: Tensor, *caches: Tensor) -> tuple[Tensor, ...]:
        logits, presents = self.model(input_ids, attention_mask, _pairs(caches))
        return logits.float(), *_flat(presents)


class _EncoderGraph(_Graph):
    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        states, *rest = self.model(*inputs)
        return states.float(), *(each.float() for each in rest)


class _SourceGraph(_Graph):
    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        states, sources = self.model.encode(*inputs)  # type: ignore[operator]
        return states.float(), *_flat(sources)


class _TargetGraph(_Graph):
    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, source_mask: Tensor, *caches: Tensor
    ) -> tuple[Tensor, ...]:
        pairs = _pairs(caches)
        layers = len(pairs) // 2
        logits, presents = self.model.decode(  # type: ignore[operator]
            input_ids, attention_mask, source_mask, pairs[:layers], pairs[layers:]
        )
        return logits.float(), *_flat(presents)


def _pairs(caches: Sequence[Tensor]) -> list[Cache]:
    return list(zip(caches[::2], caches[1::2], strict=True))


def _flat(caches: Iterable[Cache]) -> list[Tensor]:
    return [part for cache in caches for part in cache]
