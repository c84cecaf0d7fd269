"""edgeformer info"""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

import click

from edgeformer.accounting import ELEMENT_BYTES, account
from edgeformer.cli._output import json_option, print_json, print_table
from edgeformer.config import DecoderConfig
from edgeformer.contract import CacheGeometry
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
        files = {name: entry.bytes for name, entry in manifest.files.items()}
        if manifest.model is None:
            _show_module(manifest, files, as_json)
        else:
            _show_model(manifest.model, manifest.precision, manifest.source, files, as_json)
        return
    from edgeformer.source import open_source

    opened = open_source(model)
    _show_model(opened.config, precision or "fp32", opened.origin, {}, as_json)


def _show_module(manifest: Manifest, files: dict[str, int], as_json: bool) -> None:
    """What the manifest knows of a module that is not ours; its parameters and arithmetic only its code tells."""
    cache = manifest.cache
    cache_bytes = cache.elements(1, 1) * ELEMENT_BYTES[manifest.precision]
    weights = files[f"{manifest.graph}_data"]
    data: dict[str, Any] = {
        "source": manifest.source,
        "precision": manifest.precision,
        "layers": cache.num_layers,
        "num_kv_heads": cache.num_kv_heads,
        "head_dim": cache.head_dim,
        "vocab_size": manifest.vocab_size,
        "context_length": manifest.context_length,
        "cache_bytes_per_token": cache_bytes,
        "total_bytes": weights,
        "files": files,
    }
    if as_json:
        print_json(data)
        return
    click.echo(
        f"{manifest.source}: {cache.num_layers} layers, {cache.num_kv_heads} heads of {cache.head_dim} for keys and "
        f"values, vocabulary {manifest.vocab_size:,}"
    )
    print_table(
        [
            (f"bytes in {manifest.precision}", f"{weights:,}"),
            *_cache_rows(cache, manifest.windows, manifest.context_length, ELEMENT_BYTES[manifest.precision]),
            *_file_rows(files),
        ]
    )


def _show_model(config: DecoderConfig, precision: Precision, source: str, files: dict[str, int], as_json: bool) -> None:
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
    rows = [
        ("parameters", f"{numbers.parameters:,}"),
        (f"bytes in {precision}", f"{numbers.total_bytes:,}"),
        *((f"  {part}", f"{size:,}") for part, size in numbers.bytes.items()),
        *_cache_rows(config.cache_geometry, config.windows, config.context_length, ELEMENT_BYTES[precision]),
        ("FLOPs a token", f"{numbers.flops_per_token:,}"),
        ("  and for each token in the cache", f"{numbers.attention_flops_per_token:,}"),
        *_file_rows(files),
    ]
    click.echo(
        f"{source}: {len(config.blocks)} layers of {config.hidden_size}, {attention.num_heads} heads of "
        f"{attention.head_dim} ({attention.num_kv_heads} for keys and values), vocabulary {config.vocab_size:,}"
        + (", head tied to the embedding" if config.tied_head else "")
    )
    print_table(rows)


def _cache_rows(
    geometry: CacheGeometry, windows: Sequence[int | None], context_length: int, size: int
) -> list[tuple[str, str]]:
    rows = [("cache bytes a token", f"{geometry.elements(1, 1) * size:,}")]
    if any(windows):
        distinct = sorted({window for window in windows if window})
        kept = geometry.elements(1, context_length, windows) * size
        layers = sum(window is not None for window in windows)
        what = f"{layers} of {len(windows)} layers keep {', '.join(map(str, distinct))} tokens"
        rows.append((f"  at the full context of {context_length:,}; {what}", f"{kept:,}"))
    else:
        full = geometry.elements(1, context_length) * size
        rows.append((f"  at the full context of {context_length:,}", f"{full:,}"))
    return rows


def _file_rows(files: dict[str, int]) -> list[tuple[str, str]]:
    return [(f"file {name}", f"{size:,}") for name, size in files.items()]
