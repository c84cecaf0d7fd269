"""Move the weights of a checkpoint off the grid of blocks that they were stored in.

    python tools/benchmarks/quality/dither.py CHECKPOINT FOLDER

Weights that were dequantized from a Q4_1 file lie on 16 values of each block. A format that finds this grid again loses
next to nothing of them, which says nothing about weights as they are trained. So each weight of a matrix moves by up to
half a step of its block of 32, at random and always in the same way: the nearest of the 16 values is still the one that
was stored. Tables of tokens and heads stay as they are.
"""

import shutil
from pathlib import Path

import click
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

BLOCK, STEPS = 32, 15
"""Weights of a block of Q4_1, and the steps between its least and its greatest."""
KEPT = ("embed", "lm_head")
"""Parts of the names of matrices that stay."""


def dithered(matrix: Tensor, generator: torch.Generator) -> Tensor:
    """Return a matrix [N, K] float32 whose weights have moved by up to half a step of their block."""
    blocks = matrix.unflatten(1, (-1, BLOCK))
    steps = (blocks.amax(-1, True) - blocks.amin(-1, True)) / STEPS
    return (blocks + (torch.rand(blocks.shape, generator=generator) - 0.5) * steps).flatten(1).contiguous()


@click.command()
@click.argument("checkpoint", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("folder", type=click.Path(path_type=Path))
def main(checkpoint: Path, folder: Path) -> None:
    """Write the weights of CHECKPOINT in float32, with its config and its tokenizer, into a new FOLDER."""
    if folder.exists():
        raise click.ClickException(f"{folder} exists. Name a new folder, or remove it.")
    if not any(checkpoint.glob("*.safetensors")):
        raise click.ClickException(f"{checkpoint} has no weights in safetensors. Name a checkpoint's folder.")
    shutil.copytree(checkpoint, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    generator = torch.Generator().manual_seed(0)
    for file in sorted(checkpoint.glob("*.safetensors")):
        tensors = {name: tensor.float() for name, tensor in sorted(load_file(file).items())}
        for name, tensor in tensors.items():
            if tensor.dim() == 2 and not any(part in name for part in KEPT):
                tensors[name] = dithered(tensor, generator)
        save_file(tensors, folder / file.name, metadata={"format": "pt"})


if __name__ == "__main__":
    main()
