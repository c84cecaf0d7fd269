"""edgeformer info"""

from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

import click

from edgeformer.accounting import account
from edgeformer.cli._output import json_option, print_json, print_table
from edgeformer.manifest import FILE_NAME, Manifest, Precision


@click.command("info")
@click.argument("model")
@click.option("--precision", type=click.Choice(get_args(Precision)), help="Of a model that is not exported yet.")
@json_option
def info_command(model: str, precision: Precision | None, as_json: bool) -> None:
    """Show what MODEL (a bundle, or whatever `export` takes) costs. Reads no weights."""
    if (Path(model) / FILE_NAME).is_file():
        manifest = Manifest.read(Path(model))
        manifest.check_sizes(Path(model))
        config, precision, source = manifest.model, manifest.precision, manifest.source
        files = {name: entry.bytes for name, entry in manifest.files.items()}
    else:
        from edgeformer.source import open_source

        opened = open_source(model)
        config, precision, source, files = opened.config, precision or "fp32", opened.origin, {}
    numbers = account(config, precision)
    attention = config.blocks[0].attention
    data: dict[str, Any] = {
        "source": source,
        "precision": precision,
        "layers": len(config.blocks),
        "hidden_size": config.hidden_size,
        "num_heads": attention.num_heads,
        "num_kv_heads": attention.num_kv_heads,
        "head_dim": attention.head_dim,
        "vocab_size": config.vocab_size,
        "context_length": config.context_length,
        "tied_head": config.tied_head,
        **asdict(numbers),
        "total_bytes": numbers.total_bytes,
        **({"files": files} if files else {}),
    }
    if as_json:
        print_json(data)
        return
    full_cache = numbers.cache_bytes_per_token * config.context_length
    rows = [
        ("parameters", f"{numbers.parameters:,}"),
        (f"bytes in {precision}", f"{numbers.total_bytes:,}"),
        *((f"  {part}", f"{size:,}") for part, size in numbers.bytes.items()),
        ("cache bytes a token", f"{numbers.cache_bytes_per_token:,}"),
        (f"  at the full context of {config.context_length:,}", f"{full_cache:,}"),
        ("FLOPs a token", f"{numbers.flops_per_token:,}"),
        ("  and for each token in the cache", f"{numbers.attention_flops_per_token:,}"),
        *((f"file {name}", f"{size:,}") for name, size in files.items()),
    ]
    click.echo(
        f"{source}: {len(config.blocks)} layers of {config.hidden_size}, {attention.num_heads} heads of "
        f"{attention.head_dim} ({attention.num_kv_heads} for keys and values), vocabulary {config.vocab_size:,}"
        + (", head tied to the embedding" if config.tied_head else "")
    )
    print_table(rows)
