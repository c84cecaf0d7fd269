"""What an export needs to know of a model, whoever wrote its module.

The exporter, the checks of parity and the search for faulty nodes read a `ModelSpec` and never ask what kind of model
stands behind it. Three kinds do: our own module of a `ModelConfig` (`blueprint_of`), a module of the user
(`edgeformer.export.export_module`), and a model of transformers.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from edgeformer.config import DecoderConfig, EncoderConfig, ModelConfig, Seq2SeqConfig
from edgeformer.contract import CacheGeometry
from edgeformer.graph_specs import GraphSpec, decoder_graph, encoder_graph, seq2seq_graphs
from edgeformer.manifest import Task
from edgeformer.models import build_model, model_constants

NO_CACHE = CacheGeometry(num_layers=0, num_kv_heads=0, head_dim=0)
"""Of an encoder."""


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """How to build the module of a model, and the sizes that its clients must know.

    build: makes the module with every float parameter and buffer in a dtype, none of them with values: it is called
    where tensors are fake, or on meta. Forward contract of a decoder: input_ids int64 [B, S], attention_mask int64
    [B, T], caches (key, value) of each layer [B, K, P, D] → logits [B, S, V], caches [B, K, T, D]. It must be built and
    traced the same way in every dtype; what it computes in float64 is the measure of parity. constants: computes what
    no checkpoint stores, the module's buffers by name, as exactly as they are known. cache: of the tokens that a
    decoder writes. config: where the module is our own; passes must fire as often as the config says. streams: whether
    every parameter is read only while the module that owns it runs, so that a reference can hold one at a time.
    """

    build: Callable[[torch.dtype], nn.Module]
    constants: Callable[[], Mapping[str, Tensor]]
    cache: CacheGeometry
    vocab_size: int
    context_length: int
    config: ModelConfig | None = None
    streams: bool = False

    @property
    def task(self) -> Task:
        """What bundles of the model are for; a module that is not ours is a decoder."""
        match self.config:
            case Seq2SeqConfig():
                return "seq2seq-lm"
            case EncoderConfig():
                return "encoder"
            case _:
                return "causal-lm"

    @property
    def graphs(self) -> tuple[GraphSpec, ...]:
        """The graphs that the model is exported as, in the order in which they run."""
        match self.config:
            case Seq2SeqConfig():
                return seq2seq_graphs(self.config)
            case EncoderConfig():
                return (encoder_graph(self.config),)
            case _:
                return (decoder_graph(self.cache, self.config),)

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every parameter by name, without allocating any; a parameter of two names has its first one."""
        with torch.device("meta"):
            module = self.build(torch.float32)
        return {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}


@functools.lru_cache(maxsize=8)
def model_spec_of(config: ModelConfig) -> ModelSpec:
    """The model spec of one of our own modules: equal configs have the same one, so that it is traced once."""
    writer = config.decoder if isinstance(config, Seq2SeqConfig) else config
    return ModelSpec(
        build=lambda dtype: build_model(config, dtype),
        constants=lambda: model_constants(config),
        cache=writer.cache_geometry if isinstance(writer, DecoderConfig) else NO_CACHE,
        vocab_size=writer.vocab_size,
        context_length=writer.context_length,
        config=config,
        streams=True,
    )
