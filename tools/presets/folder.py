"""Write a trained preset as a Hugging Face folder with a model card and the problems that it is scored on."""

import json
import os
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor, nn

from edgeformer.families import Family
from edgeformer.families._bart import LOGITS_BIAS
from presets.recipe import Question, Recipe

SEEING = ("tower.", "projector.")
"""Beginnings of the names of parameters that are not those of a text model."""

CARD = """\
# {name}

{summary}

{use}

## How it was made

    {command}

{data}

One problem in twenty is held out of training by a hash of what it asks, however it is worded. Trained for {steps:,}
steps from seed {seed} in {minutes:.0f} minutes on {threads} CPU thread{plural} ({cpu}).

## Scores

{scored}

| skill | right | of | |
|---|---:|---:|---:|
{rows}
"""


@dataclass(frozen=True)
class Training:
    """The facts of a training run for the model card. seconds: in the loop. command: the line that repeats it."""

    command: str
    steps: int
    seed: int
    seconds: float
    threads: int
    cpu: str


def write_folder(
    folder: Path,
    recipe: Recipe,
    family: Family,
    module: nn.Module,
    tokenizer: Tokenizer,
    questions: Sequence[Question],
    right: Sequence[bool],
    training: Training,
) -> None:
    """Write the preset, replacing the folder's content; an interrupted run leaves the old content intact."""
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    tokenizer.save(str(partial / "tokenizer.json"))
    save_file(checkpoint(module, family), partial / "model.safetensors", metadata={"format": "pt"})
    size = sum(parameter.numel() for parameter in module.parameters())
    summary = recipe.summary.format(parameters=f"{size / 1e6:.1f} M")
    texts: dict[str, Any] = {
        "config.json": recipe.hf_config,
        "preset.json": {"description": summary},
        "evaluation.jsonl": "".join(f"{line}\n" for line in problems(partial, questions)),
        "README.md": card(recipe, summary, questions, right, training),
        **recipe.files,
    }
    for name, content in texts.items():
        text = content if isinstance(content, str) else json.dumps(content, indent=2) + "\n"
        (partial / name).parent.mkdir(exist_ok=True)
        (partial / name).write_text(text, encoding="utf-8")
    if folder.exists():
        shutil.rmtree(folder)
    os.replace(partial, folder)


def problems(folder: Path, questions: Sequence[Question]) -> list[str]:
    """Return the questions as lines of JSON; their pictures are written into the folder, each once."""
    lines, files = [], dict[int, str]()
    for question in questions:
        data = {name: getattr(question, name) for name in ("skill", "prompt", "answer")}
        if question.image is not None:
            assert isinstance(question.image, Image.Image)
            name = files.setdefault(id(question.image), f"pictures/{len(files):03}.png")
            (folder / name).parent.mkdir(exist_ok=True)
            question.image.save(folder / name, optimize=True)
            data["image"] = name
        lines.append(json.dumps(data, ensure_ascii=False))
    return lines


def checkpoint(module: nn.Module, family: Family) -> dict[str, Tensor]:
    """Return the parameters, each once, under the names of the family's checkpoints."""
    parameters = {name: parameter.detach().contiguous() for name, parameter in module.named_parameters()}
    places = family.places(parameters)
    tensors = {
        _inside(name, place.tensor) if family.sees else place.tensor: parameters[name] for name, place in places.items()
    }
    if LOGITS_BIAS in tensors:
        tensors[LOGITS_BIAS] = tensors[LOGITS_BIAS][None]  # transformers has [1, V]
    return tensors


def _inside(name: str, tensor: str) -> str:
    """Return the name of a tensor in a checkpoint of Idefics3, of a parameter and the tensor's name in its part."""
    return f"model.{tensor}" if name.startswith(SEEING) else f"model.text_model.{tensor.removeprefix('model.')}"


def card(recipe: Recipe, summary: str, questions: Sequence[Question], right: Sequence[bool], training: Training) -> str:
    """Return the text of the model card."""
    total = Counter(question.skill for question in questions)
    scores = Counter(question.skill for question, correct in zip(questions, right, strict=True) if correct)
    rows = [
        f"| {skill} | {scores[skill]} | {many} | {100 * scores[skill] / many:.1f} % |" for skill, many in total.items()
    ]
    return CARD.format(
        name=recipe.name,
        summary=f"{summary[0].upper()}{summary[1:]}.",
        use=recipe.use.strip("\n"),
        data=recipe.data.strip(),
        command=training.command,
        steps=training.steps,
        seed=training.seed,
        minutes=training.seconds / 60,
        threads=training.threads,
        plural="s" * (training.threads > 1),
        cpu=training.cpu,
        scored=recipe.scored.format(total=len(questions)),
        rows="\n".join(rows),
    )
