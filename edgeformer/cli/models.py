"""edgeformer models"""

import json

import click

from edgeformer.cli._output import json_option, print_json, print_table


@click.command("models")
@json_option
def models_command(as_json: bool) -> None:
    """List the presets that come with edgeformer and the model families that it reads, with what each supports."""
    from edgeformer.families import family_names, load_family
    from edgeformer.source import PRESETS, preset_names

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
    click.echo("other decoders of transformers: edgeformer export --backend transformers")
    click.echo("your own module, from Python: edgeformer.export.export_module")
