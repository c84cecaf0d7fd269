"""A griffe extension for the documentation site: arguments that a docstring explains in a paragraph become a list.

    model: a preset, or a hub id. output: by default the model's name.      →      - `model`: a preset, or a hub id.
                                                                                   - `output`: by default …
    query       [B, S, H·D]                                                 →      - `query`: [B, S, H·D]
    key, value  [B, H, T, D]                                                       - `key`, `value`: [B, H, T, D]

In the first form only names of the function's parameters, or of the class's fields, start an item.
"""

import re
from typing import Any

import griffe

NAMES = r"\w+(?:, \w+)*"
COLUMN = r"[\w/]+(?:, [\w/]+)*"


class ArgumentLists(griffe.Extension):
    """Rewrites the docstrings of functions and classes."""

    def on_function(self, *, func: griffe.Function, **kwargs: Any) -> None:
        """Rewrite the docstring of a function."""
        _rewrite(func, {parameter.name for parameter in func.parameters})

    def on_class(self, *, cls: griffe.Class, **kwargs: Any) -> None:
        """Rewrite the docstring of a class."""
        constructor = cls.members.get("__init__")
        parameters = constructor.parameters if isinstance(constructor, griffe.Function) else ()
        _rewrite(cls, {*cls.members, *(parameter.name for parameter in parameters)})


def _rewrite(described: griffe.Object, names: set[str]) -> None:
    if described.docstring is not None:
        paragraphs = described.docstring.value.split("\n\n")
        described.docstring.value = "\n\n".join(as_list(paragraph, names) for paragraph in paragraphs)


def as_list(paragraph: str, names: set[str]) -> str:
    """Return a paragraph as a list of arguments, or as it is if it does not begin with a name."""
    return _columns(paragraph) or _sentences(paragraph, names) or paragraph


def _columns(paragraph: str) -> str | None:
    """Return a list of a paragraph whose lines have a name and its meaning in columns, or None of another one."""
    lines = paragraph.split("\n")
    first = re.match(rf"({COLUMN})\s{{2,}}(?=\S)", lines[0])
    if first is None:
        return None
    items: list[str] = []
    for line in lines:
        name, meaning = line[: first.end()].strip(), line[first.end() :].strip()
        if not name and items:
            items[-1] += f" {meaning}"
        elif re.fullmatch(COLUMN, name):
            items.append(f"- {_code(name)}: {meaning}")
        else:
            return None
    return "\n".join(items)


def _sentences(paragraph: str, names: set[str]) -> str | None:
    """Return a list of a paragraph of `name: meaning.` sentences, or None of another one."""
    text = " ".join(paragraph.split())
    starts = [
        match
        for match in re.finditer(rf"(?:^|(?<=[.;)]) )({NAMES}): ", text)
        if set(match[1].split(", ")) <= names  # a word before a colon need not be an argument
    ]
    if not starts or starts[0].start() > 0:
        return None
    ends = [match.start() for match in starts[1:]] + [len(text)]
    items = [f"- {_code(match[1])}: {text[match.end() : end].strip()}" for match, end in zip(starts, ends, strict=True)]
    return "\n".join(items)


def _code(names: str) -> str:
    return ", ".join(f"`{name}`" for name in names.split(", "))
