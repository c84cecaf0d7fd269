"""edgeformer info"""

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import click

from edgeformer.cli._options import Command, json_option, option
from edgeformer.cli._output import print_json, print_table
from edgeformer.config import (
    DecoderConfig,
    EncoderConfig,
    GridVisionConfig,
    ModelConfig,
    NaflexVisionConfig,
    PictureEncoderConfig,
    PictureTextConfig,
    PictureTower,
    SoundTextConfig,
    SoundTowerConfig,
    StackConfig,
    VisionConfig,
)
from edgeformer.config.heads import EncoderHead
from edgeformer.contract.tensors import CacheGeometry, ConvState, ElementBytes, KeyValueState
from edgeformer.errors import MissingDependencyError, RequestError
from edgeformer.manifest.accounting import ELEMENT_BYTES, account, cache_element_bytes
from edgeformer.manifest.graph_forms import EDGEFORMER
from edgeformer.manifest.manifest import FILE_NAME, Manifest
from edgeformer.manifest.parts import Arithmetic

if TYPE_CHECKING:
    from edgeformer.runtime.sessions.kernel_report import KernelReport

WIDTH = 80


@click.command("info", cls=Command)
@click.argument("model")
@option(
    "--precision",
    type=click.Choice(get_args(Arithmetic)),
    help="Count bytes in this precision, for a model that is not exported yet.",
)
@json_option
def info_command(model: str, precision: Arithmetic | None, as_json: bool) -> None:
    """Show the parameters, bytes and FLOPs of a model or bundle.

    MODEL is a bundle, or a model that `edgeformer export --model` takes. Of a bundle, it also says which kernels
    would run here. Reads no weights.
    """
    if os.path.isfile(Path(model) / FILE_NAME):
        manifest = Manifest.read(Path(model))
        manifest.check_sizes(Path(model))
        files = {name: entry.bytes for name, entry in manifest.files.items()}
        kernels = _kernels(Path(model), manifest)
        if manifest.model is None:
            _show_module(manifest, files, as_json, kernels)
        else:
            origin = manifest.provenance
            left_out = "".join(f", without {each}" for each in origin.left_out or ())
            _show_model(
                manifest.model, manifest.plan.arithmetic, origin.source + left_out, files, as_json, manifest, kernels
            )
        return
    from edgeformer.checkpoints.source import open_source

    opened = open_source(model)
    inside = "" if opened.text_model_of is None else f", text model of {opened.text_model_of}"
    _show_model(opened.config, precision or "fp32", opened.origin + inside, {}, as_json)


def _kernels(bundle: Path, manifest: Manifest) -> "KernelReport | None":
    """Return which kernels the runtime would run here; None without an onnxruntime or a GPU that it can use."""
    from edgeformer.runtime.sessions.kernel_report import report_kernels
    from edgeformer.runtime.sessions.kernels import choose_kernels
    from edgeformer.runtime.sessions.session import choose_provider

    try:
        return report_kernels(bundle, manifest, choose_kernels(choose_provider("auto", manifest)))
    except (MissingDependencyError, RequestError):  # CUDA that cannot start is an error of `load`, not of its files
        return None


def _show_module(manifest: Manifest, files: dict[str, int], as_json: bool, kernels: "KernelReport | None") -> None:
    """Show what the manifest of an exported module of the user's own holds, which has no model config.

    Its parameters and FLOPs are unknown.
    """
    cache = manifest.cache
    kept = dict.fromkeys(state for states in cache.layers for state in states if isinstance(state, KeyValueState))
    cache_bytes = cache.elements_per_token * cache_element_bytes(manifest).tokens
    weights = files[f"{manifest.graph}_data"]
    data: dict[str, Any] = {
        "source": manifest.provenance.source,
        "precision": manifest.plan.precision,
        "layers": cache.num_layers,
        **_one_or_all("num_kv_heads", [state.num_kv_heads for state in kept]),
        **_one_or_all("head_dim", [state.head_dim for state in kept]),
        "vocab_size": manifest.vocab_size,
        "context_length": manifest.context_length,
        "cache_bytes_per_token": cache_bytes,
        "total_bytes": weights,
        "files": files,
        "graphs": _graphs(manifest),
        "kernels": None if kernels is None else asdict(kernels),
    }
    if as_json:
        print_json(data)
        return
    heads = " or ".join(f"{state.num_kv_heads} kv heads of {state.head_dim}" for state in kept)
    parts = filter(None, (f"{cache.num_layers} layers", heads, f"vocabulary {manifest.vocab_size:,}"))
    _print_title(f"{manifest.provenance.source}: {', '.join(parts)}")
    print_table(
        [
            (f"bytes in {manifest.plan.precision}", f"{weights:,}"),
            *_cache_rows(cache, manifest.windows, manifest.context_length, cache_element_bytes(manifest)),
            *_file_rows(files),
        ]
    )
    _print_graphs(manifest)
    _print_kernels(kernels)


def _show_model(
    config: ModelConfig,
    arithmetic: Arithmetic,
    source: str,
    files: dict[str, int],
    as_json: bool,
    manifest: Manifest | None = None,
    kernels: "KernelReport | None" = None,
) -> None:
    numbers, precision = account(config, arithmetic), arithmetic if manifest is None else manifest.plan.precision
    stored = manifest is not None and manifest.plan.precision not in ELEMENT_BYTES
    size = ELEMENT_BYTES[arithmetic]
    element = ElementBytes(size, size) if manifest is None else cache_element_bytes(manifest)
    per_token = numbers.cache_bytes_per_token // size * element.tokens
    numbers = replace(numbers, cache_bytes_per_token=per_token)
    # With quantized weights, only the sizes of the files say how many bytes there are.
    total = sum(size for name, size in files.items() if name.endswith("_data")) if stored else numbers.total_bytes
    parts = {} if stored else numbers.bytes
    stack = config.output_stack
    others = {name: each for name, each in config.stacks.items() if each is not stack}
    if as_json:
        counted = {name: value for name, value in asdict(numbers).items() if value is not None}
        print_json(
            {
                "source": source,
                "precision": precision,
                "kind": config.kind,
                **_sizes(stack),
                **{name: _sizes(each) for name, each in others.items()},
                **counted,
                "bytes": parts,
                "total_bytes": total,
                **({"files": files} if files else {}),
                **({} if manifest is None else {"graphs": _graphs(manifest)}),
                **({} if manifest is None else {"kernels": None if kernels is None else asdict(kernels)}),
            }
        )
        return
    rows = [
        ("parameters", f"{numbers.parameters:,}"),
        (f"bytes in {precision}", f"{total:,}"),
        *((f"  {part}", f"{size:,}") for part, size in parts.items()),
    ]
    has_cache = stack.cache_geometry.num_layers > 0
    if has_cache:
        rows += _cache_rows(stack.cache_geometry, stack.cache_windows, stack.context_length, element)
    where = "cache" if has_cache else "picture" if config.reads == "picture" else "text"
    rows += [
        ("FLOPs per token", f"{numbers.flops_per_token:,}"),
        (
            f"  plus, per token in the {where}",
            f"{numbers.attention_flops_per_token:,}",
        ),
    ]
    if numbers.source is not None:
        rows += [
            ("  plus, per source token", f"{numbers.source.step_flops_per_token:,}"),
            ("cache bytes per source token", f"{numbers.source.cache_bytes_per_token:,}"),
            ("FLOPs per source token", f"{numbers.source.flops_per_token:,}"),
            ("  plus, per source token", f"{numbers.source.attention_flops_per_token:,}"),
        ]
    if config.reads == "picture":
        tokens = stack.context_length
        each = numbers.flops_per_token + tokens * numbers.attention_flops_per_token
        rows += [("tokens per picture", f"{tokens:,}"), ("FLOPs per picture", f"{tokens * each:,}")]
    rows += _file_rows(files)
    described = [f"{name} of {_described(each)}" if name else _described(each) for name, each in config.stacks.items()]
    _print_title(f"{source}: {'; '.join(described)}")
    print_table(rows)
    if manifest is not None:
        _print_graphs(manifest)
        _print_kernels(kernels)


def _graphs(manifest: Manifest) -> dict[str, dict[str, Any]]:
    """Return the graphs of a bundle by the names of their forms, and whether edgeformer's runtime opens them."""
    opened = manifest.graphs.read_by(EDGEFORMER)
    return {name: {"file": graph.file, "opened": name in opened} for name, graph in manifest.graphs.items()}


def _print_graphs(manifest: Manifest) -> None:
    """Print the graphs of a bundle, and which of them edgeformer's runtime does not open."""
    graphs = _graphs(manifest)
    others = [name for name, graph in graphs.items() if not graph["opened"]]
    _print_title(f"graphs: {', '.join(graphs)}" + (f"; for other clients: {', '.join(others)}" if others else ""))


def _print_kernels(kernels: "KernelReport | None") -> None:
    """Print what would run the functions of a bundle's graphs on this machine."""
    unknown = "not known without onnxruntime; install it with: pip install 'edgeformer[cpu]'"
    _print_title(f"kernels: {unknown if kernels is None else kernels.describe()}")


def _sizes(config: StackConfig) -> dict[str, Any]:
    sizes: dict[str, Any] = {"layers": len(config.blocks), "hidden_size": config.hidden_size}
    for name in ("num_heads", "num_kv_heads", "head_dim"):
        sizes |= _one_or_all(name, [getattr(attention, name) for attention in config.attentions])
    sizes |= {
        "vocab_size": config.vocab_size,
        "context_length": config.context_length,
    }
    return sizes | HEADS[type(config)].fields(config)


def _one_or_all(name: str, values: Sequence[int]) -> dict[str, Any]:
    """Return a size under its name; all different values where layers differ, and nothing where none has it."""
    distinct = list(dict.fromkeys(values))
    return {name: distinct[0] if len(distinct) == 1 else distinct} if distinct else {}


def _print_title(text: str) -> None:
    click.echo(fill(text, WIDTH, subsequent_indent="  ", break_on_hyphens=False))


class Head(NamedTuple):
    """The description of the head of a stack: fields of JSON, and words behind a comma."""

    fields: Callable[[Any], dict[str, Any]]
    words: Callable[[Any], str]


def _head_fields(head: EncoderHead) -> dict[str, Any]:
    gives = dict.fromkeys(output.gives for output in head.outputs)
    return {"head": head.kind, "gives": list(gives)}


def _vision_outputs(config: PictureTower) -> list[str]:
    """Return what a tower of pictures computes of its states, in words."""
    parts = {"pooled vector": config.pooler, "projection": config.projection, "classification head": config.classifier}
    return [name for name, part in parts.items() if part is not None]


HEADS: dict[type[StackConfig], Head] = {
    DecoderConfig: Head(
        fields=lambda config: {"tied_head": config.tied_head},
        words=lambda config: "head tied to the embedding" if config.tied_head else "",
    ),
    EncoderConfig: Head(
        fields=lambda config: {} if config.head is None else _head_fields(config.head),
        words=lambda config: "" if config.head is None else config.head.words,
    ),
    PictureEncoderConfig: Head(
        fields=lambda config: {
            **({} if config.head is None else _head_fields(config.head)),
            "tokens_per_picture": config.picture_tokens,
        },
        words=lambda config: ", ".join(
            [*([] if config.head is None else [config.head.words]), f"{config.picture_tokens} tokens a picture"]
        ),
    ),
    PictureTextConfig: Head(
        fields=lambda config: {"tied_head": config.tied_head, "tokens_per_picture": config.picture_tokens},
        words=lambda config: ", ".join(
            [
                *(["head tied to the embedding"] if config.tied_head else []),
                f"{config.picture_tokens or 'by its size'} tokens a picture",
            ]
        ),
    ),
    SoundTextConfig: Head(
        fields=lambda config: {"tied_head": config.tied_head, "tokens_per_window": config.picture_tokens},
        words=lambda config: ", ".join(
            [
                *(["head tied to the embedding"] if config.tied_head else []),
                f"{config.picture_tokens} tokens for {config.tower.frames} frames of sound",
            ]
        ),
    ),
    SoundTowerConfig: Head(
        fields=lambda config: {"mel_bins": config.mel_bins, "frames": config.frames},
        words=lambda config: f"spectrograms of {config.mel_bins} × {config.frames}",
    ),
    GridVisionConfig: Head(
        fields=lambda config: {"patch": [config.patches.side] * 2, "square": [config.square] * 2},
        words=lambda config: f"pictures of any size in squares of {config.square} × {config.square} patches",
    ),
    NaflexVisionConfig: Head(
        fields=lambda config: {"patch": [config.patches.side] * 2, "most_patches": config.context_length},
        words=lambda config: ", ".join(
            [f"pictures of any size in up to {config.context_length:,} patches", *_vision_outputs(config)]
        ),
    ),
    VisionConfig: Head(
        fields=lambda config: {
            "picture": [config.patches.height, config.patches.width],
            "patch": [config.patches.patch_height, config.patches.patch_width],
        },
        words=lambda config: ", ".join(
            [f"pictures of {config.patches.width} × {config.patches.height}", *_vision_outputs(config)]
        ),
    ),
}
"""The descriptions of heads, by the class of the stack."""


def _described(config: StackConfig) -> str:
    text = f"{len(config.blocks)} layers of {config.hidden_size}"
    shapes = dict.fromkeys((each.num_heads, each.num_kv_heads, each.head_dim) for each in config.attentions)
    for place, (num_heads, num_kv_heads, head_dim) in enumerate(shapes):
        text += f"{' or' if place else ','} {num_heads} heads of {head_dim}"
        if num_kv_heads != num_heads:
            text += f" ({num_kv_heads} kv heads)"
    recurrent = [block.recurrent for block in config.blocks if block.recurrent is not None]
    if recurrent:
        text += f", {len(recurrent)} recurrent layers"
    text += f", vocabulary {config.vocab_size:,}" if config.vocab_size else ""
    text += ", for spectrograms" if config.audio is not None else ""
    return ", ".join(filter(None, (text, HEADS[type(config)].words(config))))


def _cache_rows(
    geometry: CacheGeometry, windows: Sequence[int | None], context_length: int, element: ElementBytes
) -> list[tuple[str, str]]:
    rows = [("cache bytes per token", f"{geometry.elements_per_token * element.tokens:,}")]
    for state in dict.fromkeys(state for states in geometry.layers for state in states if None not in state.dims):
        layers = sum(states.count(state) for states in geometry.layers)
        dims = " × ".join(str(dim) for dim in state.dims)
        held = CacheGeometry(layers=((state,),) * layers).size_in_bytes(element, 1, 0)
        kind = "convolution" if isinstance(state, ConvState) else "recurrent"
        rows.append((f"  plus {kind} states, {dims} in {layers} layers", f"{held:,}"))
    if any(windows):
        distinct = sorted({window for window in windows if window})
        kept = geometry.size_in_bytes(element, 1, context_length, windows)
        layers = sum(window is not None for window in windows)
        what = f"{layers} of {len(windows)} layers keep {', '.join(map(str, distinct))} tokens"
        rows.append((f"  at the full context of {context_length:,}; {what}", f"{kept:,}"))
    else:
        full = geometry.size_in_bytes(element, 1, context_length)
        rows.append((f"  at the full context of {context_length:,}", f"{full:,}"))
    return rows


def _file_rows(files: dict[str, int]) -> list[tuple[str, str]]:
    return [(f"file {name}", f"{size:,}") for name, size in files.items()]
