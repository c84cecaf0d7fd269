"""The kinds of models: how the module of each is built, which graphs it is exported as, and how it reads texts.

Another kind is a config class (`edgeformer.config`), its module in a file of this folder, and an entry of `KINDS`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from edgeformer.config import DecoderConfig, Task
from edgeformer.contract.tensors import CacheGeometry
from edgeformer.documents.schema import check
from edgeformer.errors import ExportError
from edgeformer.models import compared
from edgeformer.models.compared import Comparison
from edgeformer.models.decoder import Decoder
from edgeformer.models.dual_encoder import DualEncoder
from edgeformer.models.encoder import Encoder
from edgeformer.models.graph_specs import (
    GraphSpec,
    decoder_graph,
    draft_graphs,
    dual_graphs,
    encoder_graph,
    picture_encoder_graphs,
    picture_graphs,
    seq2seq_graphs,
    vision_graph,
)
from edgeformer.models.pictures.picture_encoder import PictureEncoder
from edgeformer.models.pictures.picture_text import PictureText
from edgeformer.models.pictures.towers import build_tower
from edgeformer.models.seq2seq import Seq2Seq


@dataclass(frozen=True, kw_only=True)
class Kind:
    """The modules of one kind of model: how they are built, exported and run.

    Attributes:
        build: makes the module of a config in a dtype.
        graphs: returns the graphs of a config, which is None for modules that are not edgeformer's, and a cache.
        read: runs a module on texts: module, config, ids int64 [B, S], mask [B, S] and empty caches → logits, or states
            and the outputs of a head.
        comparison: how it is run beside the module of transformers.
        others: returns the graphs beside them, by form: with which a model reads what is no text, or drafts tokens.
    """

    build: Callable[[Any, torch.dtype], nn.Module]
    graphs: Callable[[Any, CacheGeometry], tuple[GraphSpec, ...]]
    read: Callable[[nn.Module, Any, Tensor, Tensor, Sequence[Any]], tuple[Tensor, ...]]
    comparison: Comparison
    others: Callable[[Any], Mapping[str, GraphSpec]] = lambda config: {}


def _build_decoder(config: DecoderConfig, dtype: torch.dtype) -> Decoder:
    alone = config.cross_geometry is None
    check(alone, config, "blocks", "without cross-attention in a decoder that is no part of a Seq2SeqConfig")
    return Decoder(config, dtype)


def _read_with_decoder(module: Any, config: Any, ids: Tensor, mask: Tensor, caches: Sequence[Any]) -> tuple[Tensor]:
    return (module(ids, mask, caches)[0],)


def _read_with_encoder(
    module: Any, config: Any, ids: Tensor, mask: Tensor, caches: Sequence[Any]
) -> tuple[Tensor, ...]:
    return tuple(module(ids, mask, torch.zeros_like(ids) if config.token_types > 1 else None))


def _read_with_both(module: Any, config: Any, ids: Tensor, mask: Tensor, caches: Sequence[Any]) -> tuple[Tensor]:
    _, encoder_outputs = module.encode(ids, mask)
    return (module.decode(ids, mask, mask, caches, encoder_outputs)[0],)


def _read_no_text(module: Any, config: Any, ids: Tensor, mask: Tensor, caches: Sequence[Any]) -> tuple[Tensor]:
    raise ExportError("the model reads pictures, and this is done with texts. Leave it out.")


KINDS: dict[Task, Kind] = {
    "causal-lm": Kind(
        build=_build_decoder,
        graphs=lambda config, cache: (decoder_graph(cache, config),),
        read=_read_with_decoder,
        comparison=compared.DECODER,
        others=draft_graphs,
    ),
    "encoder": Kind(
        build=Encoder,
        graphs=lambda config, cache: (encoder_graph(config),),
        read=_read_with_encoder,
        comparison=compared.ENCODER,
    ),
    "seq2seq-lm": Kind(
        build=Seq2Seq,
        graphs=lambda config, cache: seq2seq_graphs(config),
        read=_read_with_both,
        comparison=compared.SEQ2SEQ,
    ),
    "vision-encoder": Kind(
        build=build_tower,
        graphs=lambda config, cache: (vision_graph(config),),
        read=_read_no_text,
        comparison=compared.VISION,
    ),
    "image-text-encoder": Kind(
        build=PictureEncoder,
        graphs=lambda config, cache: (encoder_graph(config),),
        read=_read_with_encoder,
        comparison=compared.PICTURE_ENCODER,
        others=picture_encoder_graphs,
    ),
    "image-text-to-text": Kind(
        build=PictureText,
        graphs=lambda config, cache: (decoder_graph(cache, config),),
        read=_read_with_decoder,
        comparison=compared.PICTURE_TEXT,
        others=picture_graphs,
    ),
    "audio-text-to-text": Kind(
        build=PictureText,
        graphs=lambda config, cache: (decoder_graph(cache, config),),
        read=_read_with_decoder,
        comparison=compared.SOUND_TEXT,
        others=picture_graphs,
    ),
    "dual-encoder": Kind(
        build=DualEncoder,
        graphs=lambda config, cache: dual_graphs(config),
        read=_read_no_text,
        comparison=compared.DUAL,
    ),
}
"""All kinds of models. Modules that are not edgeformer's are decoders."""
