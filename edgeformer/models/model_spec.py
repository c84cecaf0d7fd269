"""The model spec: everything that an export needs to know about a model, independent of the source of its module.

Export, verification and the search for faulty nodes read only the `ModelSpec`. There are three sources of one: a
`ModelConfig` (`model_spec_of`), a module of the user (`edgeformer.export.export_module`), and a model of transformers.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from edgeformer.config import Form, ModelConfig, Task
from edgeformer.contract.tensors import CacheGeometry
from edgeformer.models import build_model, model_constants
from edgeformer.models.graph_specs import GraphSpec
from edgeformer.models.kinds import KINDS
from edgeformer.models.without_values import without_values


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """How to build the module of a model, and the sizes that its clients must know.

    A decoder's forward takes input_ids int64 [B, S], attention_mask int64 [B, T] and per layer the tensors that `cache`
    says, such as the past key and value, each [B, K, P, D]; it returns logits [B, S, V] and per layer the present ones,
    such as key and value, each [B, K, T, D]. It must
    build and trace in the same way in every dtype; its float64 results are the reference of verification.

    Attributes:
        build: returns the module with all float parameters and buffers in a dtype and without values. It is called
            under FakeTensorMode or on the meta device.
        constants: computes the module's buffers, which no checkpoint stores: name → tensor, in float64 or int64.
        cache: geometry of the decoder's own cache; `NO_CACHE` for an encoder.
        vocab_size: number of tokens that the model generates, or reads if it is an encoder.
        context_length: positions that the model can process.
        config: the config of a module of edgeformer; it implies how often each pass must change the graph. None for
            other modules.
        streams: whether every parameter is read only while the module that owns it runs, so that the reference can
            hold one parameter in memory at a time.
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
        """Return the task of the model's bundles; a module without config is a decoder."""
        return "causal-lm" if self.config is None else self.config.task

    @property
    def form(self) -> Form:
        """Return what clients call this kind of model."""
        return "decoder" if self.config is None else self.config.form

    @property
    def short_context(self) -> int | None:
        """Return the most tokens of a request with other rotary factors than longer ones; None where all are alike."""
        return None if self.config is None else self.config.output_stack.short_context

    @property
    def graphs(self) -> tuple[GraphSpec, ...]:
        """Return the graphs that the model is exported as, in the order in which they run."""
        return KINDS[self.task].graphs(self.config, self.cache)

    @property
    def other_graphs(self) -> Mapping[str, GraphSpec]:
        """Return the graphs beside these, by form: with which a model reads pictures, or drafts tokens."""
        return KINDS[self.task].others(self.config)

    def read(self, module: nn.Module, ids: Tensor, mask: Tensor, caches: Sequence[Any]) -> tuple[Tensor, ...]:
        """Run the model's module on texts; an encoder-decoder reads them with both halves.

        ids, mask: int64 [B, S]. caches: empty ones of every layer. Returns the logits or, for an encoder, hidden states
        and the outputs of its head.
        """
        return KINDS[self.task].read(module, self.config, ids, mask, caches)

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every parameter by name, without allocating any; shared parameters have one name."""
        with without_values():
            module = self.build(torch.float32)
        return {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}


@functools.lru_cache(maxsize=8)
def model_spec_of(config: ModelConfig) -> ModelSpec:
    """Return the model spec of a config; equal configs have the same spec, so that it is traced once."""
    stack = config.output_stack
    return ModelSpec(
        build=lambda dtype: build_model(config, dtype),
        constants=lambda: model_constants(config),
        cache=stack.cache_geometry,
        vocab_size=config.vocab_size,
        context_length=config.context_length,
        config=config,
        streams=True,
    )
