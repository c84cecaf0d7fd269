"""Write the defaults of text models inside bigger ones, edgeformer/families/text_defaults.json, from transformers.

    python tools/verification/text_defaults.py --write

transformers leaves out of the config of a text model inside a bigger one what its class has as a default. The file has
these values for every family and for every text model in the table of wrappers that the installed transformers has.
"""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from edgeformer import families
from edgeformer.families import family_names
from edgeformer.families._nested import TIED
from edgeformer.families._neutral import WITHOUT_EFFECT
from edgeformer.families._wrappers import SAME_ON_TEXT, WRAPPERS

FILE = Path(families.__file__).with_name("text_defaults.json")
ROPE, PLAIN_BASE = "rope_theta", 10000.0
"""The field of the base of rotary embeddings, and its value in every class that says nothing."""
PAIRS = {"is_decoder", "is_encoder_decoder"}
"""Fields of classes that may also be encoders or encoder-decoders."""


def kinds() -> list[str]:
    """Return the types of text models that the file has: those that transformers generates text with, and encoders
    inside bigger models.
    """
    wanted = {*family_names(), *SAME_ON_TEXT, *(wrapper.text for wrapper in WRAPPERS.values())} - WRAPPERS.keys()
    generates = transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    encoders = {wrapper.text for wrapper in WRAPPERS.values() if wrapper.heads is not None}
    known = generates.keys() | encoders
    found = (kind for kind in wanted & set(CONFIG_MAPPING) if kind in known or kind.endswith("_text"))
    return sorted(
        kind
        for kind in found
        if not (values := plain_values(kind)).get("is_encoder_decoder") and "is_decoder" not in values
    )


def plain_values(kind: str) -> dict[str, Any]:
    """Return the fields of the config class of a model_type that have a plain value as a default."""
    found = {field.name: field.default for field in fields(CONFIG_MAPPING[kind]) if field.init}
    return {name: value for name, value in found.items() if isinstance(value, bool | int | float | str)}


def defaults(kind: str) -> dict[str, Any]:
    """Return the defaults of the config class of a model_type: fields with an effect and a plain value."""
    found = plain_values(kind)
    base = getattr(CONFIG_MAPPING[kind], "default_theta", None)
    if isinstance(base, float) and base != PLAIN_BASE:
        found[ROPE] = base
    ignored = WITHOUT_EFFECT.keys() | PAIRS | {TIED}
    return {name: value for name, value in sorted(found.items()) if name not in ignored}


def content() -> str:
    """Return the content of the file, a line for each model_type."""
    lines = (f"  {json.dumps(kind)}: {json.dumps(defaults(kind))}" for kind in kinds())
    return "{\n" + ",\n".join(lines) + "\n}\n"


@click.command(help=(__doc__ or "").split("\n")[0])
@click.option("--write", is_flag=True, help="Write the file instead of printing it.")
def main(write: bool) -> None:
    """Print the file, or write it."""
    if write:
        FILE.write_text(content(), encoding="utf-8")
    else:
        click.echo(content(), nl=False)


if __name__ == "__main__":
    main()
