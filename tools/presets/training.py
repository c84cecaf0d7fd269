"""The training loop: bfloat16 modules, float32 master weights, one seed, and checkpoints to continue from.

Muon trains the matrices inside the blocks, AdamW everything else (source: Keller Jordan, "Muon", 2024; its learning
rates are scaled to AdamW's by the rule of arXiv 2502.16982). The learning rate warms up linearly and falls to 0 like a
cosine, or on a line from where the cosine of a longer training is.
"""

import math
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

from edgeformer.checkpoints.weights import RandomWeights
from edgeformer.config import ModelConfig
from edgeformer.errors import EdgeformerError
from edgeformer.models import build_model, model_constants
from presets.differentiable import differentiable_ops

DTYPE = torch.bfloat16
"""Type of the module during training, and of the stored weights."""

CHECKPOINT_EVERY = 100

INNER = (".blocks.", ".projector.", ".mtp.block.", ".mtp.projection.")
"""Parts of the names of matrices that Muon trains."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to train.

    Attributes:
        steps: of the optimiser. warmup: steps until the full learning rate.
        horizon: steps after which the cosine of the learning rate would be 0; None for all steps. cooldown: the last
            steps, in which it falls to 0 on a line, whatever the horizon.
        clip: norm of the gradient.
    """

    steps: int
    seed: int = 0
    learning_rate: float = 5e-3
    warmup: int = 100
    weight_decay: float = 0.05
    z_loss: float = 1e-4
    horizon: int | None = None
    cooldown: int = 0
    clip: float = 1.0


Loss = Callable[[nn.Module, Random, Options], Tensor]
"""Return the loss of one batch, which is drawn with the random numbers of its step."""


def initial_module(config: ModelConfig, seed: int) -> nn.Module:
    """Return a module with seeded random matrices, norms of 1 and biases of 0, in DTYPE."""
    module = build_model(config, DTYPE)
    weights = RandomWeights(config, seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.dim() > 1:
                parameter.copy_(weights[name])
            elif name.endswith("bias"):
                parameter.zero_()
    fill_constants(module, config)
    return module


def fill_constants(module: nn.Module, config: ModelConfig) -> None:
    """Fill the buffers that no checkpoint stores: rotary tables, buckets of distances."""
    buffers = dict(module.named_buffers())
    for name, value in model_constants(config).items():
        buffers[name].copy_(value)


def evaluation_module(module: nn.Module, config: ModelConfig) -> nn.Module:
    """Return the module in float32, with the stored weights and exact constants, as an export computes it."""
    exact = build_model(config, torch.float32)
    exact.load_state_dict(module.state_dict())
    fill_constants(exact, config)
    return exact.requires_grad_(False)


def cross_entropy(logits: Tensor, targets: Tensor, z_loss: float) -> Tensor:
    """Return the mean over logits [N, V] and targets int64 [N]. z_loss: weight of log²Z (arXiv 2204.02311)."""
    logits = logits.float()
    partition = logits.logsumexp(-1)
    right = logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    return (partition - right).mean() + z_loss * partition.square().mean()


class Trainer:
    """A module in training, which can be saved and resumed.

    module: with the weights to begin with; None for seeded ones. Parameters that require no gradient stay as they are.
    """

    def __init__(self, config: ModelConfig, options: Options, module: nn.Module | None = None):
        self.options = options
        self.module = initial_module(config, options.seed) if module is None else module
        self.losses: list[float] = []
        self.seconds = 0.0
        named = {name: each for name, each in self.module.named_parameters() if each.requires_grad}
        self._parameters = list(named.values())
        self._masters = [parameter.detach().float().clone() for parameter in self._parameters]
        inner = [
            parameter.dim() == 2 and any(part in f".{name}" for part in INNER) for name, parameter in named.items()
        ]
        matrices = [master for master, is_inner in zip(self._masters, inner, strict=True) if is_inner]
        others = [master for master, is_inner in zip(self._masters, inner, strict=True) if not is_inner]
        rate, decay = options.learning_rate, options.weight_decay
        self._optimizers: list[torch.optim.Optimizer] = [
            torch.optim.Muon(matrices, rate, weight_decay=decay, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(others, rate, betas=(0.9, 0.95), weight_decay=0.0),
        ]

    @property
    def step(self) -> int:
        """Return the number of steps done."""
        return len(self.losses)

    def train_step(self, loss_of: Loss, *, of_all: bool = True) -> float:
        """Do one step on the batch that belongs to it and return the loss.

        of_all: whether it depends on every parameter; the others are left as they are.
        """
        begun = time.perf_counter()
        random = Random(f"{self.options.seed}/{self.step}")
        with differentiable_ops():
            loss = loss_of(self.module, random, self.options)
            loss.backward()
        if not math.isfinite(loss.item()):
            raise EdgeformerError(f"the loss of step {self.step} is {loss.item()}; try a lower --learning-rate.")
        for parameter, master in zip(self._parameters, self._masters, strict=True):
            assert parameter.grad is not None or not of_all, "a parameter that no loss depends on"
            master.grad = None if parameter.grad is None else parameter.grad.float()
            parameter.grad = None
        nn.utils.clip_grad_norm_(self._masters, self.options.clip)
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.options.learning_rate * schedule(self.step, self.options)
            optimizer.step()
        with torch.no_grad():
            for parameter, master in zip(self._parameters, self._masters, strict=True):
                parameter.copy_(master)
        self.losses.append(loss.item())
        self.seconds += time.perf_counter() - begun
        return loss.item()

    def save(self, path: Path) -> None:
        """Write everything that the next step needs; an interrupted write never replaces a complete file."""
        state = {
            "options": asdict(self.options),
            "masters": self._masters,
            "optimizers": [optimizer.state_dict() for optimizer in self._optimizers],
            "losses": self.losses,
            "seconds": self.seconds,
        }
        partial = path.with_suffix(".partial")
        torch.save(state, partial)
        os.replace(partial, path)

    def resume(self, path: Path) -> None:
        """Continue from a checkpoint. Raises EdgeformerError if it belongs to another training."""
        state: dict[str, Any] = torch.load(path, weights_only=True)
        if state["options"] != asdict(self.options) or len(state["masters"]) != len(self._masters):
            raise EdgeformerError(
                f"{path} was written with other options ({state['options']}). Give the same ones, or another --work."
            )
        with torch.no_grad():
            for mine, theirs in zip(self._masters, state["masters"], strict=True):
                mine.copy_(theirs)
            for parameter, master in zip(self._parameters, self._masters, strict=True):
                parameter.copy_(master)
        for optimizer, saved in zip(self._optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.losses, self.seconds = state["losses"], state["seconds"]


def schedule(step: int, options: Options) -> float:
    """Return the fraction of the learning rate at a step: a linear ramp, then half a cosine, and a cooldown at last."""
    if step < options.warmup:
        return (step + 1) / options.warmup
    done = (step - options.warmup) / max(1, (options.horizon or options.steps) - options.warmup)
    left = (options.steps - step) / max(1, options.cooldown)
    return 0.5 * (1 + math.cos(math.pi * done)) * min(1, left)
