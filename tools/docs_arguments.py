"""A griffe extension for the documentation site: arguments that a docstring explains in a paragraph become a list.

    model: a preset, or a hub id. output: by default the model's name.      →      - `model`: a preset, or a hub id.
                                                                                   - `output`: by default …

Only names of the function's parameters, or of the class's fields, start an item.
"""

import re
from typing import Any

import griffe

NAMES = r"\w+(?:, \w+)*"


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
    text = " ".join(paragraph.split())
    starts = [
        match
        for match in re.finditer(rf"(?:^|(?<=[.;)]) )({NAMES}): ", text)
        if set(match[1].split(", ")) <= names  # a word before a colon need not be an argument
    ]
    if not starts or starts[0].start() > 0:
        return paragraph
    ends = [match.start() for match in starts[1:]] + [len(text)]
    items = []
    for match, end in zip(starts, ends, strict=True):
        named = ", ".join(f"`{name}`" for name in match[1].split(", "))
        items.append(f"- {named}: {text[match.end() : end].strip()}")
    return "\n".join(items)
