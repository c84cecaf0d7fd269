"""The model spec of a module over which an adapter runs, kept apart from the weights: the reference of such graphs."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from edgeformer.lora.adapter_tensors import Update
from edgeformer.models.model_spec import ModelSpec


def with_updates(model_spec: ModelSpec, updates: Mapping[str, Update]) -> ModelSpec:
    """Return a model spec whose linear layers also add b (a x), by parameter name; weights stay those of the base."""

    def build(dtype: torch.dtype) -> nn.Module:
        module = model_spec.build(dtype)
        for name, update in updates.items():
            _adapt(module.get_submodule(name.removesuffix(".weight")), update)
        return module

    return replace(model_spec, build=build)


def _adapt(layer: nn.Module, update: Update) -> None:
    """Add the update's product to the outputs of a layer.

    It reads the input before hooks that are registered later round it: the graph rounds inputs of quantized products,
    and these products are not quantized.
    """
    added: list[Tensor] = []

    def multiply(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        x = inputs[0]
        added[:] = [x @ update.a.to(x.dtype).mT @ update.b.to(x.dtype).mT]

    def add(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        return output + added.pop()

    layer.register_forward_pre_hook(multiply)
    layer.register_forward_hook(add)
