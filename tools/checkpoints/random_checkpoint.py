"""Write a Hugging Face checkpoint of a well-known geometry with seeded random weights, without a download.

    python tools/checkpoints/random_checkpoint.py smollm2-135m --output /tmp/smollm2-135m
    python tools/checkpoints/random_checkpoint.py path/to/config.json --output /tmp/model

The result is a checkpoint that transformers, edgeformer and other exporters read alike. Tensors
are created and written shard by shard, so that memory holds one shard instead of the model. A model whose checkpoints
store several parameters interleaved in one tensor is made and written by transformers, as a whole. Prints the number of
parameters and the size in MB.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from edgeformer.checkpoints.weights import RandomWeights, Shapes, parameter_shapes
from edgeformer.families import Family, read_model_config

SHARD_BYTES = 1_000_000_000

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "attention_bias": False,
    "mlp_bias": False, "rms_norm_eps": 1e-5, "initializer_range": 0.02, "use_cache": True,
}  # fmt: skip

GRANITE_HYBRID = {
    "architectures": ["GraniteMoeHybridForCausalLM"], "model_type": "granitemoehybrid", "hidden_act": "silu",
    "attention_bias": False, "position_embedding_type": "nope", "rms_norm_eps": 1e-5, "tie_word_embeddings": True,
    "vocab_size": 100352, "max_position_embeddings": 32768, "bos_token_id": 100257, "eos_token_id": 100257,
    "pad_token_id": 100256, "num_attention_heads": 12, "num_key_value_heads": 4, "num_local_experts": 0,
    "num_experts_per_tok": 0, "mamba_n_heads": 48, "mamba_d_state": 128, "mamba_n_groups": 1, "mamba_d_conv": 4,
    "mamba_expand": 2, "mamba_chunk_size": 256, "mamba_conv_bias": True, "mamba_proj_bias": False,
    "initializer_range": 0.1, "logits_scaling": 6, "embedding_multiplier": 12, "residual_multiplier": 0.22,
    "attention_multiplier": 0.015625, "use_cache": True,
}  # fmt: skip


def with_attention_at(layers: int, *places: int) -> list[str]:
    """Return the kinds of a hybrid's layers: attention at some places, Mamba-2 elsewhere."""
    return ["attention" if layer in places else "mamba" for layer in range(layers)]


GEOMETRIES: dict[str, dict[str, Any]] = {
    "smollm2-135m": LLAMA | {
        "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
        "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64, "tie_word_embeddings": True,
        "rope_theta": 100000.0, "max_position_embeddings": 8192, "bos_token_id": 0, "eos_token_id": 0,
    },
    "tinyllama-1.1b": LLAMA | {
        "vocab_size": 32000, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22,
        "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 64, "tie_word_embeddings": False,
        "rope_theta": 10000.0, "max_position_embeddings": 2048, "bos_token_id": 1, "eos_token_id": 2,
    },
    "llama-3.1-8b": LLAMA | {
        "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": False,
        "rope_theta": 500000.0, "max_position_embeddings": 8192, "bos_token_id": 128000, "eos_token_id": 128001,
    },
    "olmoe-1b-7b": {
        "architectures": ["OlmoeForCausalLM"], "model_type": "olmoe", "hidden_act": "silu", "attention_bias": False,
        "vocab_size": 50304, "hidden_size": 2048, "intermediate_size": 1024, "num_hidden_layers": 16,
        "num_attention_heads": 16, "num_key_value_heads": 16, "num_experts": 64, "num_experts_per_tok": 8,
        "norm_topk_prob": False, "tie_word_embeddings": False, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "max_position_embeddings": 4096, "bos_token_id": None, "eos_token_id": 50279,
    },
    # Sizes by the model cards, which do not say where the four attentions stand: at places like those of Granite 4.0 H.
    "granite-4.0-h-350m": GRANITE_HYBRID | {
        "hidden_size": 768, "num_hidden_layers": 32, "layer_types": with_attention_at(32, 5, 13, 21, 29),
        "intermediate_size": 2048, "shared_intermediate_size": 2048, "mamba_d_head": 32,
    },
    "granite-4.0-h-1b": GRANITE_HYBRID | {
        "hidden_size": 1536, "num_hidden_layers": 40, "layer_types": with_attention_at(40, 5, 15, 25, 35),
        "intermediate_size": 4096, "shared_intermediate_size": 4096, "mamba_d_head": 64,
    },
    # About 100,000 parameters, for tests.
    "tiny": LLAMA | {
        "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "tie_word_embeddings": True,
        "rope_theta": 10000.0, "max_position_embeddings": 1024, "bos_token_id": 1, "eos_token_id": 2,
    },
}  # fmt: skip


def write_checkpoint(
    geometry: str | Path, folder: Path, *, dtype: str = "fp32", seed: int = 0, tokenizer: Path | None = None
) -> int:
    """Write the checkpoint into a new folder and return its number of parameters.

    geometry: a key of GEOMETRIES, or a config.json. dtype: a key of DTYPES. tokenizer: a folder to copy the tokenizer
    from. config.json is written last, so that an interrupted run does not look like a checkpoint. Raises ClickException
    if the folder exists or if the tokenizer does not fit.
    """
    known = GEOMETRIES.get(str(geometry)) or json.loads(Path(geometry).read_text(encoding="utf-8"))
    hf_config = known | {"dtype": str(DTYPES[dtype]).removeprefix("torch.")}
    if tokenizer is not None:
        check_tokenizer(tokenizer, hf_config["vocab_size"])
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise click.ClickException(f"{folder} exists; give --output a new folder.") from None
    family, config = read_model_config(hf_config)
    shapes = parameter_shapes(config)
    if is_writable(family, shapes):
        write_tensors(folder, family, shapes, RandomWeights(config, seed), DTYPES[dtype])
    else:
        hf_config = write_with_transformers(folder, hf_config, DTYPES[dtype], seed)
    if tokenizer is not None:
        for name in TOKENIZER_FILES:
            if (tokenizer / name).is_file():
                shutil.copyfile(tokenizer / name, folder / name)
    special = {name: hf_config.get(name) for name in ("bos_token_id", "eos_token_id")}
    write_json(folder / "generation_config.json", special)
    write_json(folder / "config.json", hf_config)
    return sum(map(elements, shapes.values()))


def check_tokenizer(folder: Path, vocab_size: int) -> None:
    """Raise ClickException unless the folder has a tokenizer and the model has embeddings for all of its ids."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise click.ClickException(f"{folder} has no tokenizer.json; --tokenizer takes a model folder that has one.")
    tokens = Tokenizer.from_file(str(path)).get_vocab_size()
    if tokens > vocab_size:
        raise click.ClickException(f"{path} has {tokens} tokens, and this geometry has embeddings for {vocab_size}.")


def is_writable(family: Family, shapes: Shapes) -> bool:
    """Return whether every stored tensor is one parameter, or the rows of several one after another."""
    places = family.places(shapes).values()
    return not any(place.transposed or (place.packed and place.packed.layout != "rows") for place in places)


def write_with_transformers(folder: Path, hf_config: dict[str, Any], dtype: torch.dtype, seed: int) -> dict[str, Any]:
    """Write the tensors of transformers' own causal LM with its initial weights; return that model's config.json."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(seed)
    options = {name: value for name, value in hf_config.items() if name != "transformers_version"}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**options), dtype=dtype)
    model.save_pretrained(folder, max_shard_size=SHARD_BYTES)
    saved: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return saved


def write_tensors(folder: Path, family: Family, shapes: Shapes, weights: RandomWeights, dtype: torch.dtype) -> None:
    """Write the safetensors under the family's names, and an index if there is more than one shard."""
    shards = list(split(shapes, dtype.itemsize))
    stored_in = family.places(shapes)
    members: dict[str, list[str]] = {}
    for name, place in stored_in.items():
        members.setdefault(place.tensor, []).append(name)
    places: dict[str, str] = {}
    for number, names in enumerate(shards, 1):
        file = "model.safetensors" if len(shards) == 1 else f"model-{number:05}-of-{len(shards):05}.safetensors"
        tensors = {}
        for theirs in dict.fromkeys(stored_in[name].tensor for name in names):
            # A tensor of several parameters stands in the shard of the first.
            if members[theirs][0] in names:
                tensors |= dict(stored_as(members[theirs], theirs, weights, dtype))
        if not tensors:
            continue
        save_file(tensors, folder / file, metadata={"format": "pt"})
        places |= dict.fromkeys(tensors, file)
    if len(shards) > 1:
        total = sum(map(elements, shapes.values())) * dtype.itemsize
        index = {"metadata": {"total_size": total}, "weight_map": places}
        write_json(folder / "model.safetensors.index.json", index)


def stored_as(
    names: list[str], theirs: str, weights: RandomWeights, dtype: torch.dtype
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of the parameters that a checkpoint stores as `theirs`, by the checkpoint's names.

    It is one tensor of all rows, or one per expert where `#` is in `theirs`.
    """
    name = names[0]
    if "#" not in theirs:
        tensor = torch.cat([weights[each] for each in names])
        # transformers stores a depthwise convolution [C, K] as [C, 1, K].
        yield theirs, (tensor.unsqueeze(1) if name.endswith("conv_weight") else tensor).to(dtype)
        return
    for expert in range(weights.shapes[name][0]):
        yield theirs.replace("#", str(expert)), weights.read_expert(name, expert).to(dtype)


def split(shapes: Shapes, itemsize: int) -> Iterator[list[str]]:
    """Yield the tensor names of each shard in order: as many as fit into SHARD_BYTES, and at least one."""
    shard: list[str] = []
    size = 0
    for name, shape in shapes.items():
        needed = elements(shape) * itemsize
        if shard and size + needed > SHARD_BYTES:
            yield shard
            shard, size = [], 0
        shard.append(name)
        size += needed
    yield shard


def elements(shape: tuple[int, ...]) -> int:
    """Return the number of elements of a tensor."""
    return torch.Size(shape).numel()


def write_json(path: Path, data: dict[str, Any]) -> None:
    """Write JSON in transformers' layout."""
    path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")


def known_geometry(context: click.Context, parameter: click.Parameter, value: str) -> str:
    """Return a key of GEOMETRIES or the path of a file. Raises BadParameter for anything else."""
    if value in GEOMETRIES or Path(value).is_file():
        return value
    raise click.BadParameter(f"{value} is neither a file nor one of {', '.join(GEOMETRIES)}.")


@click.command(help=(__doc__ or "").split("\n")[0])
@click.argument("geometry", callback=known_geometry)
@click.option("--output", type=click.Path(path_type=Path), required=True, help="Folder to create.")
@click.option(
    "--dtype", type=click.Choice(list(DTYPES)), default="fp32", show_default=True, help="Type of the tensors."
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the random weights.")
@click.option(
    "--tokenizer",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder to copy a tokenizer from.",
)
def main(geometry: str, output: Path, dtype: str, seed: int, tokenizer: Path | None) -> None:
    """Write one checkpoint."""
    parameters = write_checkpoint(geometry, output, dtype=dtype, seed=seed, tokenizer=tokenizer)
    size = sum(path.stat().st_size for path in output.iterdir())
    click.echo(f"{output}: {geometry}, {parameters:,} parameters, {size / 1e6:,.1f} MB of {dtype}")


if __name__ == "__main__":
    main()
