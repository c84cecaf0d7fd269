"""edgeformer eval"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgeformer.cli._options import (
    COUNT,
    EXECUTION,
    OUTPUT,
    Command,
    cache_option,
    execution_options,
    json_option,
    option,
)
from edgeformer.cli._output import note, print_json, print_table, progress_bar
from edgeformer.errors import RequestError

if TYPE_CHECKING:
    from edgeformer.manifest.manifest import Manifest
    from edgeformer.runtime.measure.evaluation.perplexity import TextScore
    from edgeformer.runtime.measure.evaluation.scores import Answer, Evaluation, SkillScore

PROBLEMS = "Problems"
TEXT = "Text"

COLUMNS = 4
"""Bundles per table: as many columns as fit 80 characters."""


@dataclass(frozen=True)
class Scored:
    """The scores of one bundle."""

    path: Path
    manifest: "Manifest"
    evaluation: "Evaluation | None"
    text: "TextScore | None"


@click.command("eval", cls=Command)
@click.argument("bundles", metavar="BUNDLE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@option(
    "--problems", type=click.Path(path_type=Path), metavar="FILE",
    help="Lines of JSON with skill, prompt and answer. [default: the held-out problems of the bundle's preset]",
)  # fmt: skip
@option(
    "--text", type=click.Path(path_type=Path), metavar="FILE",
    help="Score the perplexity of this text instead (with --problems: both).",
)  # fmt: skip
@option("--limit", **COUNT, topic=PROBLEMS, help="Problems of each skill, drawn by --seed. [default: all]")
@option("--seed", type=int, metavar="N", topic=PROBLEMS, help="Seed of the draw of --limit. [default: 0]")
@option("--stop", multiple=True, topic=PROBLEMS, help="End answers before this text; may be given several times.")
@option(
    "--window", type=int, metavar="N", topic=TEXT,
    help="Tokens of the text per call. [default: the context, 2048 at most]",
)  # fmt: skip
@option("--batch-size", **COUNT, topic=EXECUTION, help="Answers generated per call. [default: 32]")
@execution_options
@cache_option
@option("--show-wrong", **COUNT, topic=OUTPUT, help="Show N wrong answers of each skill.")
@json_option
def eval_command(
    bundles: tuple[Path, ...],
    problems: Path | None,
    text: Path | None,
    window: int | None,
    show_wrong: int | None,
    provider: Any,
    threads: int | None,
    cache_precision: Any,
    as_json: bool,
    **options: Any,
) -> None:
    """Score the answers of BUNDLE, or its perplexity of a text.

    Problems have one right answer each, and an answer has to match it exactly.

    Several bundles, such as exports of one model in several precisions, are shown in one table.
    """
    from edgeformer.runtime import load
    from edgeformer.runtime.measure.evaluation.exact_match import evaluate
    from edgeformer.runtime.measure.evaluation.perplexity import score_text
    from edgeformer.runtime.measure.evaluation.questions import read_questions, read_text

    # Defaults are those of the runtime: pass only the options that were given.
    options = {name: value for name, value in options.items() if value not in (None, ())}
    if text is not None and problems is None:
        _refuse([*options, *(["show_wrong"] if show_wrong else [])], "problems, and with --text they need --problems")
    if text is None:
        _refuse(["window"] if window else [], "a text: give --text FILE")
        problems = problems or _own_problems(bundles)
    questions = None if problems is None else read_questions(problems)
    content = None if text is None else read_text(text)
    scored = []
    with progress_bar() as progress:
        for number, path in enumerate(bundles):

            def show(part: float, done: int = number, name: str = path.name) -> None:
                progress(name, (done + part) / len(bundles))

            model = load(path, provider, threads, cache_precision=cache_precision)
            if model.manifest.provenance.random_weights is not None:
                note(f"note: the weights of {path} are random, not trained.")
            evaluation = None if questions is None else evaluate(model, questions, progress=show, **options)
            score = None if content is None else score_text(model, content, window, show)
            scored.append(Scored(path, model.manifest, evaluation, score))
    if as_json:
        given = {"problems": str(problems) if problems else None, "text": str(text) if text else None}
        print_json(given | {"bundles": [_data(each, show_wrong) for each in scored]})
        return
    _show(scored)
    if show_wrong:
        for each in scored:
            _show_wrong(each, show_wrong)


def _refuse(given: Sequence[str], needed: str) -> None:
    """Raise click.UsageError for options that would have no effect."""
    if given:
        raise click.UsageError(f"{', '.join('--' + name.replace('_', '-') for name in given)}: only with {needed}.")


def _own_problems(bundles: Sequence[Path]) -> Path:
    """Return the problems of the preset that all bundles were made from."""
    from edgeformer.manifest.manifest import Manifest
    from edgeformer.runtime.measure.evaluation.questions import preset_questions

    files = {preset_questions(Manifest.read(bundle)): bundle for bundle in bundles}
    if len(files) > 1:
        first, second, *_ = files.values()
        raise RequestError(
            f"{first} and {second} were made from different presets, whose problems differ. Evaluate them one by one, "
            "or on the same --problems FILE."
        )
    return next(iter(files))


def _show(scored: Sequence[Scored]) -> None:
    names = _names(scored)
    for each in scored:
        click.echo(f"{each.path}: {each.manifest.plan.precision}, {each.manifest.written_in}")
    if len(scored) == 1:
        _show_one(scored[0])
    evaluations = [each.evaluation for each in scored if each.evaluation]
    if len(evaluations) > 1:
        click.echo("\nexact match, % (95 % interval)")
        _print_columns(names, evaluations, _exact)
        if evaluations[0].total.perplexity is not None:
            click.echo("\nperplexity of the right answers")
            _print_columns(names, evaluations, _perplexity)
        click.echo()
        for name, other in zip(names[1:], evaluations[1:], strict=True):
            lost, won = evaluations[0].changes(other)
            click.echo(f"{name}: wrong where {names[0]} is right {lost:,} times, right where it is wrong {won:,} times")
    texts = [each.text for each in scored if each.text]
    if texts:
        click.echo(f"\ntext of {texts[0].bytes:,} bytes")
        rows = [
            (name, f"{text.tokens:,}", f"{text.window:,}", _number(text.perplexity), f"{text.bits_per_byte:.4f}")
            for name, text in zip(names, texts, strict=True)
        ]
        print_table(rows, "", "tokens", "window", "perplexity", "bits per byte")


def _names(scored: Sequence[Scored]) -> list[str]:
    """Return names of the bundles for a table: precisions, folders or paths, the first of these that differ."""
    precisions = [each.manifest.plan.precision for each in scored]
    folders = [each.path.resolve().name for each in scored]
    paths = [str(each.path) for each in scored]
    return list(next((names for names in (precisions, folders) if len(set(names)) == len(scored)), paths))


def _show_one(scored: Scored) -> None:
    if scored.evaluation is None:
        return
    rows = []
    for score in (*scored.evaluation.skills, scored.evaluation.total):
        low, high = score.interval
        row = [score.skill, f"{score.problems:,}", f"{100 * score.exact:.1f}", f"{100 * low:.1f}–{100 * high:.1f}"]
        rows.append((*row, *([] if score.perplexity is None else [_number(score.perplexity)])))
    header = ("skill", "problems", "exact, %", "95 % interval", "perplexity")
    click.echo()
    print_table(rows, *header[: len(rows[0])])


def _print_columns(
    names: Sequence[str], evaluations: Sequence["Evaluation"], cell: Callable[["SkillScore"], str]
) -> None:
    """Print tables with one row per skill and one column per bundle, of at most `COLUMNS` bundles each."""
    for start in range(0, len(names), COLUMNS):
        shown = evaluations[start : start + COLUMNS]
        scores = [[*each.skills, each.total] for each in shown]
        rows = [
            (of_skill[0].skill, f"{of_skill[0].problems:,}", *map(cell, of_skill))
            for of_skill in zip(*scores, strict=True)
        ]
        print_table(rows, "skill", "problems", *names[start : start + COLUMNS])


def _perplexity(score: "SkillScore") -> str:
    assert score.perplexity is not None
    return _number(score.perplexity)


def _exact(score: "SkillScore") -> str:
    low, high = (f"{100 * value:.0f}" for value in score.interval)
    share = "100" if score.exact == 1 else f"{100 * score.exact:.1f}"
    return f"{share} ({low}–{high})"


def _number(value: float) -> str:
    """Format a number with five significant digits, or all digits before the point if those are more."""
    return f"{value:.4f}" if value < 10 else f"{value:,.2f}" if value < 1000 else f"{value:,.0f}"


def _wrong(evaluation: "Evaluation", count: int) -> Iterator["Answer"]:
    """Yield the first `count` wrong answers of each skill."""
    shown: Counter[str] = Counter()
    for answer in evaluation.answers:
        skill = answer.question.skill
        if not answer.right and shown[skill] < count:
            shown[skill] += 1
            yield answer


def _show_wrong(scored: Scored, count: int) -> None:
    assert scored.evaluation is not None
    click.echo(f"\nwrong answers of {scored.path}")
    for answer in _wrong(scored.evaluation, count):
        question = answer.question
        click.echo(f"{question.skill}")
        for name, text in (("prompt", question.prompt), ("expected", question.answer), ("got", answer.text)):
            click.echo(f"  {name:<10}{json.dumps(text, ensure_ascii=False)}")


def _data(scored: Scored, wrong: int | None) -> dict[str, Any]:
    """Return the scores of one bundle for --json."""
    manifest, evaluation, text = scored.manifest, scored.evaluation, scored.text
    data: dict[str, Any] = {"bundle": str(scored.path), "precision": manifest.plan.precision, "ops": manifest.plan.ops}
    if evaluation is not None:
        data |= {"skills": [_figures(each) for each in evaluation.skills], "all": _figures(evaluation.total)}
        if wrong:
            data["wrong"] = [asdict(each.question) | {"got": each.text} for each in _wrong(evaluation, wrong)]
    if text is not None:
        data["text"] = asdict(text) | {"perplexity": text.perplexity, "bits_per_byte": text.bits_per_byte}
    return data


def _figures(score: "SkillScore") -> dict[str, Any]:
    return asdict(score) | {"exact": score.exact, "interval": score.interval, "perplexity": score.perplexity}
