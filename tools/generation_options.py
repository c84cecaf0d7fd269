"""Write `GenerationOptions`, the keywords of `generate` for type checkers, from the options that are declared.

    python tools/generation_options.py

A type checker can derive no TypedDict from a dataclass, so that the types of keywords have to stand in the source; a
test holds the file to be what this writes.
"""

import ast
from pathlib import Path

FILE = Path(__file__).parent.parent / "edgeformer" / "options" / "generation.py"
GENERATED = "    # Written by tools/generation_options.py"


def with_keywords(source: str) -> str:
    """Return the source of `edgeformer.options.generation` with the keywords of all options at its end."""
    keywords = [
        f"    {ast.unparse(field.target)}: {ast.get_source_segment(source, field.annotation)}"
        for group in ast.parse(source).body
        if isinstance(group, ast.ClassDef) and group.decorator_list
        for field in group.body
        if isinstance(field, ast.AnnAssign) and "ClassVar" not in ast.unparse(field.annotation)
    ]
    lines = source.splitlines()
    end = next(number for number, line in enumerate(lines, 1) if line.startswith(GENERATED))
    return "\n".join([*lines[:end], *keywords, ""])


if __name__ == "__main__":
    FILE.write_text(with_keywords(FILE.read_text(encoding="utf-8")), encoding="utf-8")
