"""The graphs that a model is exported as: the part of the module that each traces, and its inputs and outputs.

A decoder or an encoder is one graph. A dual encoder is one graph for texts and one for pictures, and a further one of
both, for clients that take only that. An encoder-decoder is two graphs over the same weights: the encoder also returns
the cross-attention keys and values of every layer of the decoder, and the decoder takes these as inputs. All graphs
return logits in float32, so that clients need no half-precision type for sampling.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from edgeformer.config import (
    DecoderConfig,
    DualEncoderConfig,
    EncoderConfig,
    MaskedLMHead,
    PictureEncoderConfig,
    PictureTextConfig,
    PictureTower,
    Seq2SeqConfig,
    StackConfig,
    TowerTextConfig,
    VisionConfig,
)
from edgeformer.config.position import AXES
from edgeformer.contract.tensors import (
    HIDDEN_STATES,
    PREDICTED_STATES,
    REQUEST_LENGTH,
    CacheGeometry,
    TensorSpec,
    audio_inputs,
    decoder_inputs,
    draft_inputs,
    dual_inputs,
    embedding_decoder_inputs,
    embedding_inputs,
    output_names,
    present_names,
    seq2seq_decoder_inputs,
    text_inputs,
)
from edgeformer.manifest.graph_forms import (
    BLOCK_GRAPH,
    DECODER_GRAPH,
    ENCODER_GRAPH,
    FORMS,
    GRAPH,
    TEXT_GRAPH,
    VISION_GRAPH,
)

TABLE_ROW = "table_row"
"""An output of the graph that reads embeddings, where its head is the table of embeddings: a row of that table.

It is there until the graph is lowered, so that the weight is stored as the graphs store it that embed tokens.
"""


@dataclass(frozen=True, kw_only=True)
class GraphSpec:
    """One graph of a model.

    Attributes:
        file: path of the graph in the bundle.
        inputs: names and dimensions of the inputs, in order.
        outputs: names of the outputs, in order.
        wrap: class of a module with exactly these inputs and outputs, made of the given module and `caches`.
        caches: geometries of the caches among the inputs, in order.
        stack: the config of the blocks in the graph; None for modules that are not edgeformer's.
    """

    file: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[str, ...]
    wrap: "type[_Graph]"
    caches: tuple[CacheGeometry, ...] = ()
    stack: StackConfig | None = None

    def module(self, model: nn.Module) -> nn.Module:
        """Return a module with the inputs and outputs of the graph, whose attribute `model` is the given module."""
        return self.wrap(model, self.caches)


def decoder_graph(cache: CacheGeometry, config: DecoderConfig | None = None) -> GraphSpec:
    """Return the graph of a causal language model; `config` is None for modules that are not edgeformer's."""
    by_length = config is not None and config.short_context is not None
    drafts = config is not None and config.mtp is not None
    request_length = TensorSpec(REQUEST_LENGTH, ("batch_size",), integer=True)
    return GraphSpec(
        file=GRAPH,
        inputs=tuple(decoder_inputs(cache, *([request_length] if by_length else []))),
        outputs=(*output_names(cache), *([HIDDEN_STATES] if drafts else [])),
        wrap=_DecoderByLengthGraph if by_length else _DecoderWithStatesGraph if drafts else _DecoderGraph,
        caches=(cache,),
        stack=config,
    )


def draft_graphs(config: DecoderConfig | None) -> dict[str, GraphSpec]:
    """Return the graph of the layer that drafts tokens, by its form; none for a model without one."""
    if config is None or config.mtp is None:
        return {}
    cache = config.mtp.cache_geometry
    graph = GraphSpec(
        file=FORMS["mtp"].file,
        inputs=tuple(draft_inputs(cache, config.hidden_size)),
        outputs=(*output_names(cache), PREDICTED_STATES),
        wrap=_DraftGraph,
        caches=(cache,),
        stack=config.mtp_stack,
    )
    return {"mtp": graph}


def encoder_graph(config: EncoderConfig) -> GraphSpec:
    """Return the graph of an encoder without a decoder."""
    return GraphSpec(
        file=GRAPH,
        inputs=_encoder_inputs(config, "sequence_length"),
        outputs=("last_hidden_state", *(output.name for output in config.head_outputs)),
        wrap=_EncoderGraph,
        stack=config,
    )


def vision_graph(config: PictureTower, file: str = GRAPH, wrap: "type[_Graph] | None" = None) -> GraphSpec:
    """Return the graph of a tower of pictures; file, wrap: those of a half of a model, by default of a tower alone."""
    made = {"pooler_output": config.pooler, "image_embeds": config.projection, "logits": config.classifier}
    return GraphSpec(
        file=file,
        inputs=tuple(config.inputs(tiled=False)),
        outputs=("last_hidden_state", *(name for name, part in made.items() if part is not None)),
        wrap=wrap or _EncoderGraph,
        stack=config,
    )


def dual_graphs(config: DualEncoderConfig) -> tuple[GraphSpec, GraphSpec]:
    """Return the graphs of a dual encoder: that of texts, whose input is token ids alone, and that of pictures."""
    texts = GraphSpec(
        file=TEXT_GRAPH,
        inputs=(text_inputs("sequence_length")[0],),
        outputs=("last_hidden_state", *(output.name for output in config.text.head_outputs)),
        wrap=_DualTextGraph,
        stack=config.text,
    )
    return texts, vision_graph(config.vision, VISION_GRAPH, _DualVisionGraph)


def joined_graph(config: DualEncoderConfig) -> GraphSpec:
    """Return the graph of both halves of a dual encoder, with the names that transformers' classes have."""
    return GraphSpec(
        file=GRAPH,
        inputs=tuple(dual_inputs(config.vision.inputs(tiled=False))),
        outputs=("logits_per_image", "logits_per_text", "text_embeds", "image_embeds"),
        wrap=_EncoderGraph,
        stack=config.vision,
    )


def seq2seq_graphs(config: Seq2SeqConfig) -> tuple[GraphSpec, GraphSpec]:
    """Return the graphs of an encoder-decoder: the encoder's and the decoder's."""
    source = config.decoder.cross_geometry
    assert source is not None
    return (
        GraphSpec(
            file=ENCODER_GRAPH,
            inputs=_encoder_inputs(config.encoder, "source_length"),
            outputs=("last_hidden_state", *present_names(source, "encoder.")),
            wrap=_Seq2SeqEncoderGraph,
            stack=config.encoder,
        ),
        GraphSpec(
            file=DECODER_GRAPH,
            inputs=tuple(seq2seq_decoder_inputs(config.decoder.cache_geometry, source)),
            outputs=("logits", *present_names(config.decoder.cache_geometry, "decoder.")),
            wrap=_Seq2SeqDecoderGraph,
            caches=(config.decoder.cache_geometry, source),
            stack=config.decoder,
        ),
    )


def tower_graphs(config: TowerTextConfig) -> dict[str, GraphSpec]:
    """Return the graphs of a tower and of embeddings of tokens, by form."""
    return {
        config.tower_graph: GraphSpec(
            file=FORMS[config.tower_graph].file,
            inputs=tuple(config.tower.inputs(config.tiled)),
            outputs=(config.features,),
            wrap=_PictureGraph,
            stack=config.tower,
        ),
        "embed_tokens": GraphSpec(
            file=FORMS["embed_tokens"].file,
            inputs=(text_inputs("sequence_length")[0],),
            outputs=("inputs_embeds",),
            wrap=_EmbeddingGraph,
        ),
    }


def picture_graphs(config: PictureTextConfig) -> dict[str, GraphSpec]:
    """Return the graphs with which a decoder reads pictures or sound, by form, beside that of text."""
    cache, axes = config.cache_geometry, None if config.axes is None else AXES
    return {
        **tower_graphs(config),
        "embedding_decoder": GraphSpec(
            file=FORMS["embedding_decoder"].file if config.bidirectional is None else BLOCK_GRAPH,
            inputs=tuple(embedding_decoder_inputs(cache, config.wide_size, axes)),
            outputs=(*output_names(cache), *((TABLE_ROW,) if config.tied_head else ())),
            wrap=_EmbeddingDecoderGraph if axes is None else _PositionedDecoderGraph,
            caches=(cache,),
            stack=config,
        ),
    }


def picture_encoder_graphs(config: PictureEncoderConfig) -> dict[str, GraphSpec]:
    """Return the graphs with which an encoder reads pictures, by form, beside that of text."""
    tied = any(isinstance(part, MaskedLMHead) and part.tied for part in config.head.parts) if config.head else False
    return {
        **tower_graphs(config),
        "embedding_encoder": GraphSpec(
            file=FORMS["embedding_encoder"].file,
            inputs=tuple(embedding_inputs(config.wide_size)),
            outputs=(*encoder_graph(config).outputs, *((TABLE_ROW,) if tied else ())),
            wrap=_EmbeddingEncoderGraph,
            stack=config,
        ),
    }


def _encoder_inputs(config: EncoderConfig | VisionConfig, length: str) -> tuple[TensorSpec, ...]:
    if config.kind == "vision":
        return tuple(config.inputs(tiled=False))
    if config.audio is not None:
        return tuple(audio_inputs(config.audio.mel_bins, 2 * config.context_length))
    return tuple(text_inputs(length, config.token_types > 1))


class _Graph(nn.Module):
    """Base of wrappers: holds the module as `model`, a prefix that names in the graph do not have.

    Args:
        caches: geometries of the caches among the inputs, in order.
    """

    def __init__(self, model: nn.Module, caches: tuple[CacheGeometry, ...]):
        super().__init__()
        self.model = model
        self.caches = caches


class _DecoderGraph(_Graph):
    def forward(self, input_ids: Tensor, attention_mask: Tensor, *caches: Tensor) -> tuple[Tensor, ...]:
        (geometry,) = self.caches
        logits, presents = self.model(input_ids, attention_mask, geometry.by_layer(caches))
        return logits.float(), *_flat(presents)


class _DecoderByLengthGraph(_Graph):
    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, request_length: Tensor, *caches: Tensor
    ) -> tuple[Tensor, ...]:
        (geometry,) = self.caches
        layers = geometry.by_layer(caches)
        logits, presents = self.model(input_ids, attention_mask, layers, request_length=request_length)
        return logits.float(), *_flat(presents)


class _DecoderWithStatesGraph(_Graph):
    def forward(self, input_ids: Tensor, attention_mask: Tensor, *caches: Tensor) -> tuple[Tensor, ...]:
        (geometry,), model = self.caches, cast(Any, self.model)
        logits, states, presents = model.forward_with_states(input_ids, attention_mask, geometry.by_layer(caches))
        return logits.float(), *_flat(presents), states.float()


class _DraftGraph(_Graph):
    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, hidden_states: Tensor, *caches: Tensor
    ) -> tuple[Tensor, ...]:
        (geometry,), model = self.caches, cast(Any, self.model)
        read = input_ids, attention_mask, hidden_states, geometry.by_layer(caches)
        logits, states, presents = model.predict(*read)
        return logits.float(), *_flat(presents), states.float()


class _PictureGraph(_Graph):
    def forward(self, *pictures: Tensor) -> Tensor:
        features: Tensor = self.model.see(*pictures)  # type: ignore[operator]
        of_one_picture = pictures[0].dim() == 2  # patches; clients count its states by the first axis
        return (features[0] if of_one_picture else features).float()


class _EmbeddingGraph(_Graph):
    def forward(self, input_ids: Tensor) -> Tensor:
        embeddings: Tensor = self.model.embed_wide(input_ids)  # type: ignore[operator]
        return embeddings.float()


class _EmbeddingDecoderGraph(_Graph):
    def forward(self, inputs_embeds: Tensor, attention_mask: Tensor, *caches: Tensor) -> tuple[Tensor, ...]:
        return _read_embeddings(self, inputs_embeds, attention_mask, caches)


class _PositionedDecoderGraph(_Graph):
    def forward(
        self, inputs_embeds: Tensor, attention_mask: Tensor, position_ids: Tensor, *caches: Tensor
    ) -> tuple[Tensor, ...]:
        return _read_embeddings(self, inputs_embeds, attention_mask, caches, position_ids)


def _read_embeddings(
    graph: _Graph, inputs_embeds: Tensor, attention_mask: Tensor, caches: Sequence[Tensor], *positions: Tensor
) -> tuple[Tensor, ...]:
    (geometry,), model = graph.caches, cast(Any, graph.model)
    x, table = inputs_embeds.to(model.embedding.weight.dtype), model.embedding
    logits, presents = model.read_embeddings(x, attention_mask, geometry.by_layer(caches), *positions)
    return logits.float(), *_flat(presents), *_table_row(table, model.head)


def _table_row(table: nn.Embedding, head: nn.Linear | None) -> tuple[Tensor, ...]:
    """Return what `TABLE_ROW` is, where the matrix of a head is the table of embeddings."""
    return () if head is None or head.weight is not table.weight else (table(torch.zeros(1, dtype=torch.int64)),)


class _EmbeddingEncoderGraph(_Graph):
    def forward(self, inputs_embeds: Tensor, attention_mask: Tensor) -> tuple[Tensor, ...]:
        model = cast(Any, self.model)
        x, table = inputs_embeds.to(model.embedding.weight.dtype), model.embedding
        outputs = model.read_embeddings(x, attention_mask)
        head = model.masked_lm.output if hasattr(model, "masked_lm") else None
        return *(each.float() for each in outputs), *_table_row(table, head)


class _EncoderGraph(_Graph):
    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        states, *rest = self.model(*inputs)
        return states.float(), *(each.float() for each in rest)


class _DualTextGraph(_Graph):
    def forward(self, input_ids: Tensor) -> tuple[Tensor, ...]:
        return tuple(each.float() for each in self.model.encode_texts(input_ids))  # type: ignore[operator]


class _DualVisionGraph(_Graph):
    def forward(self, *pictures: Tensor) -> tuple[Tensor, ...]:
        return tuple(each.float() for each in self.model.vision(*pictures))  # type: ignore[operator]


class _Seq2SeqEncoderGraph(_Graph):
    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        states, encoder_caches = self.model.encode(*inputs)  # type: ignore[operator]
        return states.float(), *_flat(encoder_caches)


class _Seq2SeqDecoderGraph(_Graph):
    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, source_mask: Tensor, *caches: Tensor
    ) -> tuple[Tensor, ...]:
        geometry, source = self.caches
        own = len(geometry.tensors())
        logits, presents = self.model.decode(  # type: ignore[operator]
            input_ids,
            attention_mask,
            source_mask,
            geometry.by_layer(caches[:own]),
            source.by_layer(caches[own:]),
        )
        return logits.float(), *_flat(presents)


def _flat(caches: Iterable[Iterable[Tensor]]) -> list[Tensor]:
    return [part for cache in caches for part in cache]
