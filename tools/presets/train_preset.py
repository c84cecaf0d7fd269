"""Train a preset on the CPU, from generated data, and write its folder.

    python tools/presets/train_preset.py tiny-llama

The seed determines data, order and initial weights. Ctrl-C writes a checkpoint, and the same command continues from it.
The folder is complete: config, weights in bfloat16, tokenizer, a model card with scores on held-out problems, and those
problems (evaluation.jsonl). A plot of the loss, in nats per token, stays in --work.
"""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import click
import torch
from tokenizers import Tokenizer

from edgeformer.cli._output import note, progress_bar
from edgeformer.errors import EdgeformerError

sys.path.insert(0, str(Path(__file__).parents[1]))  # the folders of tools/ are packages

from benchmarks.environment import environment

from presets.differentiable import differentiable_ops
from presets.folder import Training, write_folder
from presets.loss_plot import draw_loss
from presets.recipe import Recipe
from presets.tiny_embed import RECIPE as TINY_EMBED
from presets.tiny_llama import RECIPE as TINY_LLAMA
from presets.tiny_translate import RECIPE as TINY_TRANSLATE
from presets.tiny_vision import RECIPE as TINY_VISION
from presets.training import CHECKPOINT_EVERY, Loss, Options, Trainer, evaluation_module

RECIPES = {recipe.name: recipe for recipe in (TINY_LLAMA, TINY_TRANSLATE, TINY_EMBED, TINY_VISION)}


@contextmanager
def interrupts() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether Ctrl-C was pressed: a step that has begun is finished first."""
    pressed: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: pressed.append(number))
    try:
        yield lambda: bool(pressed)
    finally:
        signal.signal(signal.SIGINT, before)


def train(recipe: Recipe, options: Options, tokenizer: Tokenizer, work: Path) -> Trainer:
    """Train, or continue from a checkpoint in `work`. Raises EdgeformerError if that was made with other options."""
    _, config = recipe.model()
    loss = recipe.loss(tokenizer)
    first = recipe.first(tokenizer) if recipe.first is not None else loss
    return run_steps(Trainer(config, options), work, loss, first, recipe.first_steps)


def run_steps(trainer: Trainer, work: Path, loss_of: Loss, first: Loss, first_steps: int = 0) -> Trainer:
    """Do the steps of a training, or those behind a checkpoint in `work`; the first ones may have another loss.

    Raises EdgeformerError if the checkpoint was made with other options.
    """
    checkpoint, steps = work / "checkpoint.pt", trainer.options.steps
    if checkpoint.is_file():
        trainer.resume(checkpoint)
        note(f"going on at step {trainer.step} of {steps}")
    with interrupts() as interrupted, progress_bar() as show:
        while trainer.step < steps:
            begins = trainer.step < first_steps
            loss = trainer.train_step(first if begins else loss_of, of_all=not begins)
            show(f"step {trainer.step} of {steps}, loss {loss:.3f}", trainer.step / steps)
            if interrupted() or trainer.step % CHECKPOINT_EVERY == 0 or trainer.step == steps:
                trainer.save(checkpoint)
                note(f"step {trainer.step}: loss {loss:.3f}, {trainer.seconds / 60:.1f} minutes")
            if interrupted() and trainer.step < steps:
                raise EdgeformerError(f"stopped at step {trainer.step}; the same command continues from {checkpoint}.")
    return trainer


def make(recipe: Recipe, options: Options, folder: Path, work: Path, command: str) -> None:
    """Train a preset and write its folder; print its scores."""
    work.mkdir(parents=True, exist_ok=True)
    tokenizer = recipe.make_tokenizer(options.seed)
    trainer = train(recipe, options, tokenizer, work)
    draw_loss(trainer.losses, recipe.name, work / "loss.png")
    family, config = recipe.model()
    asked = recipe.questions(options.seed)
    with differentiable_ops(), torch.no_grad():
        right = recipe.score(evaluation_module(trainer.module, config), tokenizer, asked)
    training = Training(
        command=command,
        steps=options.steps,
        seed=options.seed,
        seconds=trainer.seconds,
        threads=torch.get_num_threads(),
        cpu=environment()["processor"],
    )
    write_folder(folder, recipe, family, trainer.module, tokenizer, asked, right, training)
    click.echo((folder / "README.md").read_text(encoding="utf-8").partition("## Scores\n\n")[2].rstrip())
    click.echo(f"wrote {folder}")


@click.command(help=(__doc__ or "").split("\n")[0])
@click.argument("preset", type=click.Choice(list(RECIPES)))
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder to write. [default: the preset's folder in the package]",
)
@click.option(
    "--work",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the checkpoint and the plot of the loss. [default: build/presets/PRESET]",
)
@click.option("--threads", type=click.IntRange(min=1), default=2, show_default=True)
@click.option(
    "--steps", type=click.IntRange(min=1), help="Steps of the optimiser. [default, here and below: the recipe's]"
)
@click.option("--seed", type=click.IntRange(min=0))
@click.option("--learning-rate", type=float)
@click.option("--warmup", type=click.IntRange(min=0), help="Steps until the full learning rate.")
@click.option("--weight-decay", type=float)
@click.option("--z-loss", type=float, help="Weight of the squared log-partition term; 0 for none.")
def main(preset: str, output: Path | None, work: Path | None, threads: int, **given: Any) -> None:
    """Train one preset."""
    torch.set_num_threads(threads)
    recipe = RECIPES[preset]
    changed = {name: value for name, value in given.items() if value is not None}
    assert changed.keys() <= {field.name for field in fields(Options)}
    options = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in changed.items())
    command = f"python tools/presets/train_preset.py {preset} {options}".rstrip()
    try:
        make(
            recipe,
            replace(recipe.options, **changed),
            output or recipe.folder,
            work or Path("build/presets") / preset,
            command,
        )
    except EdgeformerError as error:
        raise click.ClickException(str(error)) from None


if __name__ == "__main__":
    main()
