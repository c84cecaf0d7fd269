"""edgeformer models"""

import json

import click

from edgeformer.cli._options import Command, json_option
from edgeformer.cli._output import print_json, print_table


@click.command("models", cls=Command)
@json_option
def models_command(as_json: bool) -> None:
    """List the presets and the model families that can be exported."""
    from edgeformer.checkpoints.found_model import PRESETS, preset_names
    from edgeformer.families import family_names, load_family

    presets = {
        name: json.loads((PRESETS / name / "preset.json").read_text(encoding="utf-8"))["description"]
        for name in preset_names()
    }
    families = {name: load_family(name).summary for name in family_names()}
    if as_json:
        print_json({"presets": presets, "families": families})
        return
    print_table(list(presets.items()), "preset", "")
    click.echo()
    print_table(list(families.items()), "family (model_type)", "reads")
    click.echo()
    click.echo("other decoders of transformers, where it is installed: edgeformer export")
    click.echo("your own module, from Python: edgeformer.export.export_module")
