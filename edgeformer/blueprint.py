"""What an export needs to know of a model, whoever wrote its module.

The exporter, the checks of parity and the search for faulty nodes read a `Blueprint` and never ask what kind of model
stands behind it. Three kinds do: our own `Decoder` of a `ModelConfig` (`blueprint_of`), a module of the user
(`edgeformer.export.export_module`), and a model of transformers.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from edgeformer.config import ModelConfig
from edgeformer.contract import CacheGeometry
from edgeformer.models import Decoder, decoder_constants


@dataclass(frozen=True, kw_only=True)
class Blueprint:
    """How to build the module of a decoder, and the sizes that its clients must know.

    build: makes the module with every float parameter and buffer in a dtype, none of them with values: it is called
    where tensors are fake, or on meta. Forward contract: input_ids int64 [B, S], attention_mask int64 [B, T], caches
    (key, value) of each layer [B, K, P, D] → logits [B, S, V], caches [B, K, T, D]. It must be built and traced the
    same way in every dtype; what it computes in float64 is the measure of parity. constants: computes what no
    checkpoint stores, the module's buffers by name, as exactly as they are known. config: where the module is our own
    `Decoder`; its reference then needs one block in memory instead of the whole module, and passes must fire as often
    as the config says. streams: whether every parameter is read only while the module that owns it runs, so that a
    reference can hold one at a time.
    """

    build: Callable[[torch.dtype], nn.Module]
    constants: Callable[[], Mapping[str, Tensor]]
    cache: CacheGeometry
    vocab_size: int
    context_length: int
    config: ModelConfig | None = None
    streams: bool = False

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every parameter by name, without allocating any; a parameter of two names has its first one."""
        with torch.device("meta"):
            module = self.build(torch.float32)
        return {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}


def blueprint_of(config: ModelConfig) -> Blueprint:
    """The blueprint of our own decoder."""
    return Blueprint(
        build=lambda dtype: Decoder(config, dtype),
        constants=lambda: decoder_constants(config),
        cache=config.cache_geometry,
        vocab_size=config.vocab_size,
        context_length=config.context_length,
        config=config,
    )
