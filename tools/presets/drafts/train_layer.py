"""Train a layer of multi-token prediction for tiny-llama on the CPU, and add it to the preset's folder.

    python tools/presets/drafts/train_layer.py

The preset's own weights stay as they are; the layer learns what they say of the next tokens, in texts of its recipe and
in stories that it writes itself: drafts are for these, since answers are a few tokens. The seed determines data, order
and initial weights. Ctrl-C writes a checkpoint, and the same command continues from it.
"""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import click
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional as F

from edgeformer.config import DecoderConfig
from edgeformer.errors import EdgeformerError
from edgeformer.families import Family, read_model_config
from edgeformer.families._mtp import with_mtp

sys.path.insert(0, str(Path(__file__).parents[2]))  # the folders of tools/ are packages

from presets.corpora.mixture import document, plain
from presets.corpora.problem import draw
from presets.corpora.stories import story
from presets.differentiable import differentiable_ops
from presets.drafts.layer import accepted, body, drafted, verified
from presets.drafts.own_texts import own_stories
from presets.packing import Rows, Tokens, encode, pack
from presets.tiny_llama import CONFIG, FILLED, LEARNED_AT_ONCE, RECIPE, ROW
from presets.train_preset import run_steps
from presets.training import Loss, Options, Trainer, evaluation_module, initial_module

PREFIX = "mtp."
"""Beginning of the names of the layer's tensors and parameters."""

FIELDS = {"mtp_num_hidden_layers": 1, "mtp_intermediate_size": 208}
"""Fields of config.json. With a feed-forward of this width the layer has 488,704 weights, under 1 MB in bfloat16."""

OPTIONS = Options(steps=1200, learning_rate=1e-3, z_loss=0.0)

DEPTH, WEIGHTS = 3, (1.0, 0.8, 0.6)
"""Tokens of a draft in training, and how much each counts: a draft is as long as its first wrong token."""

ROWS = 8
"""Rows in a batch."""

OWN, OWN_STORIES = 0.6, 1536
"""Fraction of the documents that are stories of the model's own, and how many it writes before the training."""

TOLD, JUDGED = 48, 4
"""Held-out stories that the layer is judged by, and tokens of a draft there."""

CARD = """\

## The layer that drafts

    {command}

A layer of multi-token prediction ({parameters} M parameters, in `mtp.*`) drafts tokens: `edgeformer export --mtp`.
It learned behind the finished model, for {steps:,} steps in {minutes:.0f} minutes on {threads} CPU thread{plural}, from
what that says of the next tokens. Over {told} held-out stories, of drafts of {judged} tokens behind every token,
{shares} % begin with 1 to {judged} tokens that the model itself would choose.
"""


def with_layer(folder: Path) -> tuple[Family, DecoderConfig]:
    """Return the family and the config of a preset's folder with the layer, whether it has one by now or not."""
    hf_config = json.loads((folder / "config.json").read_text(encoding="utf-8")) | FIELDS
    return with_mtp(hf_config, *read_model_config(hf_config))


def module_of(folder: Path, seed: int) -> nn.Module:
    """Return the preset's module, which is not trained, with a random layer."""
    family, config = with_layer(folder)
    module, stored = initial_module(config, seed), load_file(folder / "model.safetensors")
    ours = {name: each for name, each in module.named_parameters() if not name.startswith(PREFIX)}
    with torch.no_grad():
        for name, place in family.places(ours).items():
            ours[name].copy_(stored[place.tensor])
            ours[name].requires_grad_(False)
    return module


def loss(tokenizer: Tokenizer, own: Sequence[Tokens]) -> Loss:
    """Return the cross-entropy of drafts with what the model says behind the same tokens. own: its own stories."""

    def of_batch(module: Any, random: Random, options: Options) -> Tensor:
        rows = batch(tokenizer, own, random)
        with torch.no_grad():
            states, logits = body(module, rows)
        found, asked = drafted(module, rows, states, DEPTH), verified(rows, DEPTH)
        total = torch.zeros(())
        for number, weight in enumerate(WEIGHTS):
            places = asked[:, number].flatten().nonzero().squeeze(-1)
            filler = places.new_zeros(-len(places) % LEARNED_AT_ONCE)
            mine = module.logits_of(found[:, number].flatten(0, 1)[torch.cat((places, filler))])[: len(places)]
            theirs = logits.flatten(0, 1)[places + number + 1].float().softmax(-1)
            total = total + weight * F.cross_entropy(mine.float(), theirs)
        return total / sum(WEIGHTS)

    return of_batch


def batch(tokenizer: Tokenizer, own: Sequence[Tokens], random: Random) -> Rows:
    """Return about ROWS rows of documents."""
    documents: list[Tokens] = []
    while sum(len(each.ids) for each in documents) < FILLED * ROWS * ROW:
        told = random.random() < OWN
        documents.append(random.choice(own) if told else encode(tokenizer, document(random)))
    return pack(documents, ROW)


def judged(trainer: Trainer, config: DecoderConfig, tokenizer: Tokenizer, seed: int) -> list[float]:
    """Return which fraction of the drafts over held-out stories begins with 1, 2 … JUDGED right tokens."""
    random = Random(f"{seed}/stories")
    told = [encode(tokenizer, plain(draw(story, random, held_out=True))) for _ in range(TOLD)]
    with differentiable_ops(), torch.no_grad():
        counts = accepted(evaluation_module(trainer.module, config), pack(told, ROW), JUDGED)  # type: ignore[arg-type]
    return (counts[1:] / counts[0]).tolist()


def add_layer(folder: Path, family: Family, module: nn.Module, section: str) -> None:
    """Replace the layer in a preset's folder, and what its config and its card say of it."""
    parameters = {name: each.detach() for name, each in module.named_parameters() if name.startswith(PREFIX)}
    added = {place.tensor: parameters[name] for name, place in family.places(parameters).items()}
    stored = load_file(folder / "model.safetensors")
    kept = {name: each for name, each in stored.items() if not name.startswith(PREFIX)}
    config = json.loads((folder / "config.json").read_text(encoding="utf-8")) | FIELDS
    page = (folder / "README.md").read_text(encoding="utf-8").partition(section[: section.index("\n\n")])[0]
    partial = folder / "model.safetensors.partial"
    save_file({**kept, **added}, partial, metadata={"format": "pt"})
    os.replace(partial, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    (folder / "README.md").write_text(page + section, encoding="utf-8")


@click.command(help=(__doc__ or "").split("\n")[0])
@click.option(
    "--folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=RECIPE.folder,
    help="Folder of the preset. [default: that in the package]",
)
@click.option(
    "--work",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("build/presets/tiny-llama-drafts"),
    show_default=True,
    help="Folder of the checkpoint.",
)
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--steps", type=click.IntRange(min=1), default=OPTIONS.steps, show_default=True)
@click.option("--seed", type=click.IntRange(min=0), default=OPTIONS.seed, show_default=True)
def main(folder: Path, work: Path, threads: int, steps: int, seed: int) -> None:
    """Train the layer of one preset."""
    torch.set_num_threads(threads)
    work.mkdir(parents=True, exist_ok=True)
    given = {name: value for name, value in {"steps": steps, "seed": seed}.items() if value != getattr(OPTIONS, name)}
    command = " ".join(["python tools/presets/drafts/train_layer.py", *(f"--{name} {given[name]}" for name in given)])
    family, config = with_layer(folder)
    tokenizer, options = Tokenizer.from_file(str(folder / "tokenizer.json")), replace(OPTIONS, **given)
    trainer = Trainer(config, options, module_of(folder, seed))
    exact: Any = evaluation_module(trainer.module, config)
    own = own_stories(exact, tokenizer, CONFIG["eos_token_id"], ROW, OWN_STORIES, seed)
    loss_of = loss(tokenizer, own)
    try:
        run_steps(trainer, work, loss_of, loss_of)
    except EdgeformerError as error:
        raise click.ClickException(str(error)) from None
    shares = judged(trainer, config, tokenizer, seed)
    *most, last = (f"{100 * share:.0f}" for share in shares)
    section = CARD.format(
        command=command,
        parameters=f"{sum(each.numel() for each in trainer.module.parameters() if each.requires_grad) / 1e6:.2f}",
        steps=steps,
        minutes=trainer.seconds / 60,
        threads=threads,
        plural="s" * (threads > 1),
        told=TOLD,
        judged=JUDGED,
        shares=f"{', '.join(most)} and {last}",
    )
    add_layer(folder, family, trainer.module, section)
    click.echo(section.strip())


if __name__ == "__main__":
    main()
