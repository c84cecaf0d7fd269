"""Write the table of figures of docs/reference/reliability.md from what the tools of this folder wrote.

python tools/reliability/table.py fuzz*.json --signals signals.json --kills kills.json --faults faults.json [--write P]
"""

import json
from pathlib import Path
from typing import Any

import click

BEGIN, END = "<!-- figures: reliability -->\n", "<!-- end -->\n"

WORDS = {
    "manifest": "manifests",
    "config": "config.json",
    "generation": "generation_config.json",
    "weights": "safetensors headers and their index",
    "tokenizer": "tokenizer files",
    "graph": "graphs",
    "template": "chat templates",
    "modules": "files of sentence-transformers",
    "check": "folders for `check`",
    "picture": "files of pictures",
    "cli": "odd command lines",
}
"""Names of the targets of fuzz.py for readers: what each spoils."""

NONE = ("raw", "long", "hang", "memory", "crash", "escape")


def rows_of_fuzz(results: dict[str, Any]) -> list[str]:
    """Return a row for each target of fuzz.py."""
    rows = []
    for name, result in results.items():
        counts = result["counts"]
        figures = [sum(counts.values()), counts.get("ok", 0), counts.get("error", 0)]
        figures += [counts.get(kind, 0) for kind in NONE]
        rows.append(
            f"| {WORDS[name]} | " + " | ".join(f"{each:,}" for each in (*figures, result["peak_bytes"] >> 20)) + " |"
        )
    return rows


def rows_of_faults(result: dict[str, Any]) -> list[str]:
    """Return a row for each command of faults.py."""
    lines = ["", "| SIGKILL at any moment, or a disk full at any byte | cases | killed | refused | done | faults |"]
    lines.append("|---|" + "---:|" * 5)
    counts = {tuple(name.split()): count for name, count in result["counts"].items()}
    for command in sorted({name for name, _ in counts}):
        every = {kind: count for (name, kind), count in counts.items() if name == command}
        ends = [every.get(kind, 0) for kind in ("killed", "refused", "done")]
        figures = [sum(every.values()), *ends, sum(every.values()) - sum(ends)]
        lines.append(f"| `{command}` | " + " | ".join(map(str, figures)) + " |")
    return lines


def table(
    fuzz: dict[str, Any],
    signals: dict[str, Any] | None,
    kills: dict[str, Any] | None,
    faults: dict[str, Any] | None = None,
) -> str:
    """Return the tables in Markdown."""
    head = "| files with seeded faults | cases | worked | one sentence | tracebacks | longer than a sentence | hangs | "
    lines = [head + "too much memory | crashes | escapes | peak MiB |", "|---|" + "---:|" * 10, *rows_of_fuzz(fuzz), ""]
    for title, result in (("SIGINT or SIGTERM", signals), ("SIGKILL while writing", kills)):
        if result is not None:
            wrong = sum(result["counts"].get(kind, 0) for kind in ("raw", "code", "half", "hang"))
            counts = ", ".join(f"{count} {kind}" for kind, count in sorted(result["counts"].items()))
            lines.append(
                f"- {title} at a random moment: {sum(result['counts'].values())} cases, {wrong} faults ({counts})."
            )
    lines += [] if faults is None else rows_of_faults(faults)
    return "\n".join(lines) + "\n"


@click.command()
@click.argument("fuzz", nargs=-1, type=click.Path(path_type=Path))
@click.option("--signals", type=click.Path(path_type=Path), help="What signals.py wrote.")
@click.option("--kills", type=click.Path(path_type=Path), help="What signals.py --kill wrote.")
@click.option("--faults", type=click.Path(path_type=Path), help="What faults.py wrote.")
@click.option("--write", "page", type=click.Path(path_type=Path), help="Page whose table is replaced. [default: print]")
def main(
    fuzz: tuple[Path, ...], signals: Path | None, kills: Path | None, faults: Path | None, page: Path | None
) -> None:
    """Write the table of figures."""
    results: dict[str, Any] = {}
    for file in fuzz:
        results |= json.loads(file.read_text())
    more = [None if file is None else json.loads(file.read_text()) for file in (signals, kills, faults)]
    text = table({name: results[name] for name in WORDS if name in results}, *more)
    if page is None:
        click.echo(text)
        return
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    page.write_text(before + BEGIN + "\n" + text + "\n" + END + rest.partition(END)[2], encoding="utf-8")


if __name__ == "__main__":
    main()
