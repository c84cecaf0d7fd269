"""How often does verification fail a graph that is right?

    python tools/false_alarms.py --models 200

Draws random small models over every option that the llama family has, exports each, verifies it quickly, and prints the
failure rate, the models that failed, and how close the others came to each limit. Every second model is fp16.
"""

import json
import random
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

from edgeformer import __version__
from edgeformer.config import ModelConfig
from edgeformer.export.bundle import GraphWriter
from edgeformer.export.parity import Report, verify_graph
from edgeformer.export.pipeline import build_graph
from edgeformer.families import read_model_config
from edgeformer.manifest import SCHEMA_VERSION, Manifest, Precision, SpecialTokens
from edgeformer.weights import RandomWeights


def random_config(draw: random.Random) -> dict[str, Any]:
    """A config.json of the llama family."""
    kv_heads = draw.choice([1, 2, 3])
    heads = kv_heads * draw.choice([1, 2, 4])
    head_dim = draw.choice([8, 16, 16, 32, 32, 64, 12])
    scalings: list[dict[str, Any]] = [
        {"rope_type": "default"},
        {"rope_type": "linear", "factor": draw.choice([2.0, 4.0])},
        {"rope_type": "dynamic", "factor": 2.0},
        {"rope_type": "proportional", "partial_rotary_factor": 0.5},
        {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    ]  # fmt: skip
    return {
        "model_type": "llama",
        "vocab_size": draw.choice([53, 131, 500, 2003]),
        "hidden_size": draw.choice([32, 48, 64, 96, 128]),
        "intermediate_size": draw.choice([40, 96, 200]),
        "num_hidden_layers": draw.choice([1, 2, 3, 5]),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "hidden_act": draw.choice(["silu", "silu", "gelu", "relu", "gelu_pytorch_tanh"]),
        "max_position_embeddings": draw.choice([64, 256, 700]),
        "rms_norm_eps": draw.choice([1e-6, 1e-5, 1e-3]),
        "rope_parameters": {**draw.choice(scalings), "rope_theta": draw.choice([1e4, 5e5])},
        "tie_word_embeddings": draw.random() < 0.5,
        "attention_bias": draw.random() < 0.3,
        "mlp_bias": draw.random() < 0.3,
    }


class Scaled(Mapping[str, Tensor]):
    """Random weights with their matrices made larger or smaller: some models amplify rounding more than others."""

    def __init__(self, weights: Mapping[str, Tensor], gain: float):
        self._weights, self._gain = weights, gain

    def __getitem__(self, name: str) -> Tensor:
        value = self._weights[name]
        return value * self._gain if value.dim() > 1 else value

    def __iter__(self) -> Any:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)


def manifest_of(config: ModelConfig, precision: Precision) -> Manifest:
    """What a bundle of this model would say of itself."""
    return Manifest(
        schema_version=SCHEMA_VERSION, task="causal-lm", name="random", source="random", random_weights=0, ops="ort",
        precision=precision, provider="cpu", graph="onnx/model.onnx", model=config, cache=config.cache_geometry,
        tokens=SpecialTokens(eos=(), bos=None, pad=None), files={}, weights={}, versions={}, parity=None,
    )  # fmt: skip


def verify_one(data: dict[str, Any], precision: Precision, seed: int, gain: float, mode: Any) -> Report:
    """Export one model to a temporary folder and verify it."""
    manifest = manifest_of(read_model_config(data)[1], precision)
    weights = Scaled(RandomWeights(manifest.model, seed), gain)
    with tempfile.TemporaryDirectory() as folder:
        graph, _ = build_graph(manifest.model, weights, precision)
        GraphWriter(Path(folder), lambda what, part: None).write(graph, manifest.graph)
        return verify_graph(Path(folder), manifest, weights, mode=mode)


@click.command(help=__doc__)
@click.option("--models", default=200, show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--full", is_flag=True, help="Verify fully instead of quickly.")
@click.option("--json", "as_json", is_flag=True)
def main(models: int, seed: int, full: bool, as_json: bool) -> None:
    """Draw, export, verify, count."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    shares: dict[tuple[str, str], list[float]] = defaultdict(list)
    alarms, start = [], time.perf_counter()
    for index in track(range(models), console=Console(stderr=True)):
        data, precision = random_config(draw), ("fp32", "fp16")[index % 2]
        gain = draw.choice([0.5, 1.0, 1.0, 1.5])
        report = verify_one(data, precision, index, gain, "full" if full else "quick")  # type: ignore[arg-type]
        for check in report.checks:
            if check.limit > 0 and not check.at_least:
                shares[precision, check.name.split(": ")[-1]].append(check.value / check.limit)
        if not report.passed:
            failures = [f"{check.name} {check.value:.3g} > {check.limit:.3g}" for check in report.failures()]
            alarms.append({"model": index, "precision": precision, "gain": gain, "failures": failures, "config": data})
    rows = [
        (precision, figure, f"{np.median(values):.2f}", f"{np.quantile(values, 0.99):.2f}", f"{max(values):.2f}")
        for (precision, figure), values in sorted(shares.items())
    ]
    if as_json:
        print(json.dumps({"edgeformer": __version__, "models": models, "alarms": alarms, "shares": rows}, indent=1))
        return
    table = Table("precision", "figure", "median", "99 %", "largest", title="figure / limit, over all runs")
    for row in rows:
        table.add_row(*row)
    console = Console()
    console.print(table)
    for alarm in alarms:
        console.print(alarm)
    elapsed = time.perf_counter() - start
    console.print(f"{len(alarms)} of {models} right graphs failed ({len(alarms) / models:.1%}), in {elapsed:.0f} s")


if __name__ == "__main__":
    main()
