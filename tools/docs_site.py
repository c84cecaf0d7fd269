"""Hooks of the documentation site (mkdocs.yml): parts of pages that come from code, and links into the repository.

A page holds the comment `<!-- generated: NAME -->` where the output of `GENERATED[NAME]` belongs. A relative link that
leaves docs/ is right on GitHub; the site gets it as a URL of the repository. What is wrong is a warning, and
`mkdocs build --strict` fails on those.
"""

import ast
import functools
import inspect
import json
import logging
import os
import posixpath
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import click

from edgeformer.documents.option import Option, options_of

sys.path.insert(0, str(Path(__file__).parent))  # mkdocs loads this file by its path, and takes its own path back
from fields_of_servers import FIELDS_OF_SERVERS, SOURCES

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "build" / "docs-source"
PACKAGES = {"edgeformer": "edgeformer", "export": "edgeformer/export", "runtime": "edgeformer/runtime"}
"""Folders of the repository, and where an installation has them."""

warn = logging.getLogger("mkdocs.hooks.docs_site").warning
GENERATED_COMMENT = re.compile(r"^<!-- generated: (\w+) -->$", re.MULTILINE)
LINK = re.compile(r"(\]\()((?:\.\./)[^)\s#]*)(#[^)\s]*)?(\))")


def on_startup(*, command: str, dirty: bool) -> None:
    """Copy the Python files to where mkdocstrings reads them: as one package, as they are installed."""
    shutil.rmtree(SOURCE, ignore_errors=True)
    for folder, package in PACKAGES.items():
        for file in (ROOT / folder).rglob("*.py"):
            target = SOURCE / package / file.relative_to(ROOT / folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Return the page with its generated parts, and with links out of docs/ as URLs."""

    def generated(match: re.Match[str]) -> str:
        if match[1] not in GENERATED:
            warn(f"{page.file.src_uri}: nothing generates {match[1]}")
            return ""
        return GENERATED[match[1]]()

    def url(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page.file.src_uri), match[2]))
        if path.startswith("docs/"):
            return match[0]
        if not (ROOT / path).exists():
            warn(f"{page.file.src_uri}: the link to {match[2]} leads to no file of the repository")
        kind = "tree" if (ROOT / path).is_dir() else "blob"
        return f"{match[1]}{config.repo_url}/{kind}/main/{path}{match[3] or ''}{match[4]}"

    return LINK.sub(url, GENERATED_COMMENT.sub(generated, markdown))


def command_line() -> str:
    """Return the reference of the command line: one section for each command, with its options in their groups."""
    from edgeformer.cli.main import cli

    context = click.Context(cli, info_name="edgeformer")
    parts = [_usage(cli, context), *_options(cli, context)]
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None
        if command.hidden:
            continue
        inner = click.Context(command, info_name=name, parent=context)
        parts += [f"## edgeformer {name} {{#{name}}}", _text(command.help), _usage(command, inner)]
        parts += _options(command, inner)
    return "\n\n".join(parts)


def families() -> str:
    """Return a table of the model families."""
    from edgeformer.families import family_names, load_family

    rows = [f"| `{name}` | {load_family(name).summary} |" for name in family_names()]
    return "\n".join(["| `model_type` | what it reads |", "|---|---|", *rows])


def seeing() -> str:
    """Return a table of the families that read pictures and text."""
    from edgeformer.families.picture_text import family_named, seeing_names

    rows = [f"| `{name}` | {family_named(name).summary} |" for name in seeing_names()]
    return "\n".join(["| model_type | models |", "|---|---|", *rows])


def wrappers() -> str:
    """Return a table of the models whose text model is read, and the families of these text models."""
    from edgeformer.families._wrappers import SAME_ON_TEXT, WRAPPERS

    rows = [
        f"| `{name}` | `{wrapper.place}` | `{SAME_ON_TEXT.get(wrapper.text, wrapper.text)}` |"
        for name, wrapper in WRAPPERS.items()
    ]
    head = "| `model_type` | where its text model's config is | family, where that config names no other |"
    return "\n".join([head, "|---|---|---|", *rows])


def generation_options() -> str:
    """Return a table for each group of options of generation: what each does, and where else it can be given."""
    from edgeformer.options.generation import GROUPS

    head = f"| option | default | range | what it does | command line | server | in the file |\n{'|---' * 7}|"
    parts = []
    for group in GROUPS:
        rows = "\n".join(map(_option_row, options_of(group)))
        parts += [f"## {group.TITLE}", inspect.cleandoc(group.__doc__ or ""), f"{head}\n{rows}"]
    return "\n\n".join(parts)


def _option_row(option: Option) -> str:
    from edgeformer.cli._declared import flag_of

    cells = (
        f"`{option.name}`",
        f"`{option.default!r}`",
        str(option.range) if option.range else "",
        f"{option.help} {option.more}".rstrip(),
        f"`{flag_of(option)}`" if option.cli else "",
        f"`{option.api}`" if option.api else "",
        "yes" if option.in_file else "",
    )
    return _row(cells)


def export_options() -> str:
    """Return a table for each group of options of export: what each does, and its name on the command line."""
    from edgeformer.manifest.quantization import QuantizationOverrides
    from edgeformer.options.export import GROUPS

    head = f"| option | default | values | what it does | command line |\n{'|---' * 5}|"
    parts = []
    for title, group in [*((group.TITLE, group) for group in GROUPS), ("QuantizationOverrides", QuantizationOverrides)]:
        rows = "\n".join(map(_export_row, options_of(group)))
        about = inspect.cleandoc(group.__doc__ or "").split("\n\n")[0]
        parts += [f"## {title}", about, f"{head}\n{rows}"]
    return "\n\n".join(parts)


def _export_row(option: Option) -> str:
    from edgeformer.cli._declared import flag_of

    values = ", ".join(f"`{value}`" for value in option.choices) or (str(option.range) if option.range else "")
    flags = [flag for flag, _, _ in option.flags] or [flag_of(option)] * option.cli
    cells = (
        f"`{option.name}`", option.unset or f"`{option.default!r}`", values, f"{option.help} {option.more}".rstrip(),
        ", ".join(f"`{flag}`" for flag in flags),
    )  # fmt: skip
    return _row(cells)


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def server_routes() -> str:
    """Return a table of the server's routes."""
    from edgeformer.server.http.app import ROUTES

    rows = []
    for route in ROUTES:
        method = "POST" if route.methods and "POST" in route.methods else "GET"
        summary = (route.endpoint.__doc__ or "").splitlines()[0].rstrip(".")
        rows.append(f"| {method} | `{route.path}` | {summary} |")
    return "\n".join(["| | | |", "|---|---|---|", *rows])


def server_bodies() -> str:
    """Return a table of the fields that each route takes."""
    from edgeformer.server.schema import bodies
    from edgeformer.server.schema.message_bodies import MessagesBody
    from edgeformer.server.schema.response_bodies import ResponseBody

    kinds = {
        "/v1/chat/completions": bodies.ChatBody,
        "/v1/completions": bodies.CompletionBody,
        "/v1/responses": ResponseBody,
        "/v1/messages": MessagesBody,
        "/infill": bodies.InfillBody,
        "/v1/embeddings": bodies.EmbeddingBody,
        "/v1/rerank": bodies.RerankBody,
        "/tokenize": bodies.TokenizeBody,
        "/detokenize": bodies.DetokenizeBody,
    }
    rows = [f"| `{path}` | {', '.join(f'`{name}`' for name in kind.model_fields)} |" for path, kind in kinds.items()]
    return "\n".join(["| route | fields |", "|---|---|", *rows])


def server_fields() -> str:
    """Return a table of all fields of requests, beside those of other servers: what is done with each, and why."""

    from edgeformer.server.schema.fields import FIELDS, MESSAGE_FIELDS, PARTS, SERVERS

    def routes(server: str, name: str) -> str:
        """Return the routes that have a field, without `/v1/` and what follows the first word."""
        had = [route for route, fields in FIELDS_OF_SERVERS.get(server, {}).items() if name in fields]
        return ", ".join(route.removeprefix("/v1/").strip("/").split("/")[0] for route in had)

    def other(letter: str, name: str, field: Any) -> str:
        """Return what another server has: routes, where its source was read, else whether it has or had the field."""
        server = SERVERS[letter]
        return routes(server, name) or ("" if letter not in field.servers else "older" if server in SOURCES else "yes")

    tables = {"": FIELDS | MESSAGE_FIELDS} | {f"{part}: ": fields for part, fields in PARTS.items() if fields}
    head = f"| field | here | {' | '.join(SERVERS.values())} | note |\n{'|---' * (len(SERVERS) + 3)}|"
    rows = []
    for place, fields in tables.items():
        for name, field in fields.items():
            part = place != ""
            cells = ["yes" if part and letter in field.servers else "" if part else other(letter, name, field)
                     for letter in SERVERS]  # fmt: skip
            values = ", ".join(f"`{json.dumps(value)}`" for value in field.neutral)
            note = field.note + (f" (passes: {values})" if values else "")
            rows.append(f"| {place}`{name}` | {field.status} | {' | '.join(cells)} | {note} |")
    read = "\n".join(f"- {server}: {source}" for server, source in SOURCES.items())
    about = (
        "Routes of llama-server and vLLM are as their sources had them (*older*: of earlier versions, or of others):"
    )
    return "\n".join([about, "", read, "", head, *rows])


def server_tool_formats() -> str:
    """Return a table of the formats of tool calls."""
    from edgeformer.server.tool_calls.table import FORMATS

    rows = []
    for format in FORMATS.values():
        example = "<br>".join(f"`{line.replace('|', chr(92) + '|')}`" for line in format.example.split(chr(10)))
        rows.append(f"| `{format.name}` | {format.models} | {example} |")
    return "\n".join(["| format | models | a call |", "|---|---|---|", *rows])


def thinking_formats() -> str:
    """Return a table of the marks of what models think."""
    from edgeformer.runtime.text.thinking.formats import FORMATS

    def shown(mark: str) -> str:
        return f"`{mark.strip().replace('|', chr(92) + '|')}`"

    rows = [
        f"| {format.models} | {shown(format.opening)} … {shown(format.closing)} | "
        f"{' … '.join(map(shown, format.answer or ()))} |"
        for format in FORMATS
    ]
    return "\n".join(["| models | thinking | left out around the answer |", "|---|---|---|", *rows])


def public_names(package: str) -> str:
    """Return mkdocstrings' directives for every name in `__all__` of a package: functions first, then classes."""
    facade = ast.parse((SOURCE / package.replace(".", "/") / "__init__.py").read_text(encoding="utf-8"))
    names: list[str] = []
    modules: dict[str, str] = {}
    for node in ast.walk(facade):
        if isinstance(node, ast.ImportFrom) and node.module:
            modules.update({alias.asname or alias.name: node.module for alias in node.names})
        elif isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            names = ast.literal_eval(node.value)

    def path(name: str) -> str:
        """A function whose name is a module's, too, is found by the module that defines it."""
        module = modules.get(name, package)
        if (SOURCE / module.replace(".", "/") / f"{name}.py").exists():
            return f"{module}.{name}.{name}"
        same = (SOURCE / package.replace(".", "/") / f"{name}.py").exists()
        return f"{module}.{name}" if same else f"{package}.{name}"

    return "\n\n".join(f"::: {path(name)}" for name in sorted(names, key=lambda name: (name[0].isupper(), name)))


FACADES = (
    "edgeformer.export",
    "edgeformer.runtime",
    "edgeformer.runtime.measure.evaluation",
    "edgeformer.check",
    "edgeformer.ops",
    "edgeformer.config",
    "edgeformer.server",
)
GENERATED: dict[str, Callable[[], str]] = {
    "command_line": command_line,
    "export_options": export_options,
    "families": families,
    "generation_options": generation_options,
    "seeing": seeing,
    "wrappers": wrappers,
    "server_bodies": server_bodies,
    "server_fields": server_fields,
    "server_routes": server_routes,
    "server_tool_formats": server_tool_formats,
    "thinking_formats": thinking_formats,
    **{name.replace(".", "_"): functools.partial(public_names, name) for name in FACADES},
}


def _usage(command: click.Command, context: click.Context) -> str:
    pieces = " ".join(command.collect_usage_pieces(context))
    return f"```text\n{context.command_path} {pieces}\n```"


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    """Yield one table for each topic of options, in the order of `--help`."""
    from edgeformer.cli._options import OUTPUT

    groups: dict[str, list[click.Parameter]] = {}
    for parameter in command.get_params(context):
        if isinstance(parameter, click.Option) and not parameter.hidden:
            groups.setdefault(getattr(parameter, "topic", OUTPUT), []).append(parameter)
    groups[OUTPUT] = groups.pop(OUTPUT)
    for topic, parameters in groups.items():
        title = topic if len(groups) > 1 else "Options"
        rows = [f"| {_names(option)} | {_meaning(option, context)} |" for option in parameters]
        yield "\n".join([f"**{title}**", "", "| option | meaning |", "|---|---|", *rows])


def _names(option: click.Parameter) -> str:
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    if getattr(option, "is_flag", False) or isinstance(option.type, click.Choice):
        return names
    return f"{names} *{option.metavar or option.type.name.upper()}*"


def _meaning(option: click.Parameter, context: click.Context) -> str:
    record = option.get_help_record(context) if isinstance(option, click.Option) else None
    meaning = re.sub(r"([|\[\]<>])", r"\\\1", _text(record[1])) if record else ""
    if isinstance(option.type, click.Choice):
        meaning = f"{meaning} One of {', '.join(f'`{choice}`' for choice in option.type.choices)}."
    return meaning


def _text(text: str | None) -> str:
    """Return a help text as Markdown: `\\b` and line breaks inside a paragraph mean nothing here."""
    paragraphs = (text or "").replace("\b", "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


if __name__ == "__main__":
    os.chdir(ROOT)
    click.echo(command_line())
