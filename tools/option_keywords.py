"""Write the keywords of `generate` and of `export_model`, for type checkers, from the options that are declared.

    python tools/option_keywords.py

A type checker can derive no TypedDict from a dataclass, so that the types of keywords have to stand in the source; a
test holds the files to be what this writes. A TypedDict has a comment that says of which groups its keywords are:
those named, all but those named, or all.
"""

import ast
import re
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "edgeformer" / "options"
FILES = (FOLDER / "generation.py", FOLDER / "export.py")
GENERATED = re.compile(
    r"(    # Written by tools/option_keywords\.py(?P<but> but for)?(?: of)?(?P<groups> [\w, ]+)?:\n)(?:    \w+: .*\n)*"
)


def with_keywords(source: str) -> str:
    """Return the source of a module of options with the keywords that follow from its groups."""
    groups = {
        group.name: [
            f"    {ast.unparse(field.target)}: {ast.get_source_segment(source, field.annotation)}\n"
            for field in group.body
            if isinstance(field, ast.AnnAssign) and "ClassVar" not in ast.unparse(field.annotation)
        ]
        for group in ast.parse(source).body
        if isinstance(group, ast.ClassDef) and group.decorator_list
    }

    def keywords(comment: re.Match[str]) -> str:
        named = [name.strip() for name in (comment["groups"] or "").split(",") if name.strip()]
        assert set(named) <= groups.keys(), f"no group is named {set(named) - groups.keys()}"
        chosen = [name for name in groups if not named or (name in named) is (comment["but"] is None)]
        return comment[1] + "".join(line for name in chosen for line in groups[name])

    return GENERATED.sub(keywords, source)


if __name__ == "__main__":
    for file in FILES:
        file.write_text(with_keywords(file.read_text(encoding="utf-8")), encoding="utf-8")
