"""Use one loaded model as careless programs do: from threads, after a fork, after Ctrl-C, and loaded again and again.

    python tools/reliability/one_model.py BUNDLES --rounds 100 [--output one_model.json]

BUNDLES is a folder with the bundles tiny-llama, tiny-embed and tiny-translate; those that are absent are made there.
Each kind of model is asked, and a decoder by an `Engine`, too:

- threads: 8 threads ask one model at once. Every answer must be what the model gives alone.
- forks: a process that loaded a model forks. The copy answers as the parent, or raises RequestError; it never waits.
- interrupts: SIGINT comes in the middle of an answer. The model then gives the answers that it gave before.
- loads: a model is loaded, asked and dropped; memory must not grow by more than its noise.

Exits with 1 if an answer was wrong, a process hung, or memory grew.
"""

import ctypes
import gc
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Barrier
from typing import Any, cast

import click

from edgeformer.errors import RequestError
from edgeformer.runtime import CausalLM, Encoder, Engine, Seq2SeqLM, load
from edgeformer.runtime.sessions import session

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))  # the folders of tools/ are packages

from reliability.soaking.leak import Growth, growth  # noqa: E402

KINDS = {"decoder": "tiny-llama", "encoder": "tiny-embed", "seq2seq": "tiny-translate", "engine": "tiny-llama"}
"""The bundle of each kind of model."""

QUESTIONS = {
    "encoder": [
        "The cat sleeps.",
        "A dog barks in the garden. " * 9,
        "Birds sing.",
        "The fish swims in the sea. " * 60,
    ],
    "seq2seq": [
        f"translate English to French: {text}"
        for text in ("three hundred and five", "The girl sees the dog.", "five past two", "The cat does not sleep.")
    ],
    "decoder": ["Once upon a time", "12 + 30 = ", "The old bear walked to the river. " * 8, "a"],
}
"""Four questions for each kind of model."""

THREADS = 8

LONGEST = 120.0
"""Seconds until a process counts as hung."""

LOADS, LEAST_LOADS, LEAST_BYTES = 85, 50, 32_768.0
"""Loads at least: the allocator's heap grows in the first 30, which are left out (`leak.WARM_UP`), and 50 are counted.

From LEAST_LOADS counted ones growth is told. LEAST_BYTES a load are no leak: over 50 loads an encoder-decoder grew by
5,000 a load, once freed memory was given back, and by 370 over 250 (measured). A session left behind takes megabytes.
"""

CALLED = "import sys; sys.path.insert(0, {tools!r}); from reliability import one_model; one_model.{name}(*sys.argv[1:])"
"""A program that calls a function of this file in a process of its own."""


def make_bundles(folder: Path) -> None:
    """Export the bundles that a folder lacks."""
    from edgeformer.export import export_model

    for name in sorted(set(KINDS.values())):
        if not (folder / name).exists():
            export_model(name, folder / name, verify=None)


@contextmanager
def opened(kind: str, bundles: Path, threads: int | None = None) -> Iterator[Any]:
    """Load a model, or an engine of one."""
    model = load(bundles / KINDS[kind], "cpu", threads)
    if kind != "engine":
        yield model
        return
    with Engine(cast(CausalLM, model)) as engine:
        yield engine


def ask(model: Any, question: int) -> object:
    """Return the answer of a model to one of four questions."""
    match model:
        case Encoder():
            return model.embed(QUESTIONS["encoder"][question]).tobytes()
        case Seq2SeqLM():
            return model.generate(QUESTIONS["seq2seq"][question], max_new_tokens=16).token_ids
        case CausalLM():
            prompt = QUESTIONS["decoder"][question]
            answer = model.generate(prompt, max_new_tokens=8).token_ids
            chat = model.chat([{"role": "user", "content": prompt}], max_new_tokens=8, ignore_eos=True)
            return [*answer, *chat.finish().token_ids]
        case _:
            return model.submit(QUESTIONS["decoder"][question], max_new_tokens=16).finish(LONGEST).token_ids


def ask_all(model: Any) -> list[object]:
    """Return the answers to all questions."""
    return [ask(model, question) for question in range(4)]


def wrong_in_threads(kind: str, bundles: Path, rounds: int) -> int:
    """Return how many answers that threads got at once are not what the model gives alone."""
    with opened(kind, bundles, 1) as model:
        expected = ask_all(model)
        together = Barrier(THREADS)

        def run(thread: int) -> int:
            together.wait(LONGEST)
            questions = [(thread + step) % 4 for step in range(rounds)]
            return sum(ask(model, question) != expected[question] for question in questions)

        with ThreadPoolExecutor(THREADS) as pool:
            return sum(pool.map(run, range(THREADS)))


def fork(kind: str, bundles: str, threads: str) -> None:
    """Load a model, fork, and print how the copy ends: `equal`, `different`, or a RequestError's message."""
    session.usable_cores = lambda: 2  # so that two threads are allowed on any machine
    with opened(kind, Path(bundles), int(threads)) as model:
        before = ask_all(model)
        child = os.fork()
        if child == 0:
            try:
                print("equal" if ask_all(model) == before else "different", flush=True)
            except RequestError as error:
                print(error, flush=True)
            os._exit(0)
        os.waitpid(child, 0)
        if ask_all(model) != before:
            print("the parent answers otherwise")


def _call(name: str, *arguments: object) -> str:
    """Return what a function of this file prints in a process of its own; `hung` if it does not end."""
    code = CALLED.format(tools=str(ROOT / "tools"), name=name)
    line = [sys.executable, "-c", code, *map(str, arguments)]
    with subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            stdout, stderr = process.communicate(timeout=LONGEST)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # its copies, too
            return "hung"
    return stdout.strip() if process.returncode == 0 else f"exit {process.returncode}: {stderr[-2000:]}"


def ending_of_fork(kind: str, bundles: Path, threads: int) -> str:
    """Return what `fork` printed in a process of its own; `hung` if it did not end."""
    return _call("fork", kind, bundles, threads)


def wrong_after_interrupts(kind: str, bundles: Path, rounds: int) -> int:
    """Return how many answers differ that follow on a SIGINT in the middle of another one.

    The signal comes while a graph runs, and is raised where that run ends: the first of an answer, the second, …
    """
    with opened(kind, bundles, 1) as model:
        expected = ask_all(model)
        return sum(
            _interrupted(kind, model, after=step % 3, question=step % 4) and ask_all(model) != expected
            for step in range(rounds)
        )


def _interrupted(kind: str, model: Any, after: int, question: int) -> bool:
    """Ask a model, with a SIGINT behind a run of its graph; return True once it was raised."""
    if kind == "engine":  # its runs are in a thread of its own, so the caller is interrupted between two pieces
        stream = model.submit(QUESTIONS["decoder"][question], max_new_tokens=64, ignore_eos=True)
        return _raises(lambda: [signal.raise_signal(signal.SIGINT) for index, _ in enumerate(stream) if index == after])
    method = "run" if kind == "encoder" else "run_with_iobinding"
    original = getattr(type(model.session), method)
    left = 0 if kind == "encoder" else after

    def run(self: Any, *arguments: Any) -> Any:
        nonlocal left
        result = original(self, *arguments)
        if left == 0:
            signal.raise_signal(signal.SIGINT)
        left -= 1
        return result

    setattr(type(model.session), method, run)
    try:
        return _raises(lambda: ask(model, question))
    finally:
        setattr(type(model.session), method, original)


def _raises(call: Callable[[], object]) -> bool:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        signal.signal(signal.SIGINT, before)
    raise AssertionError("the answer ended before the signal")


def load_again(kind: str, bundles: str, loads: str) -> None:
    """Load a model, ask it and drop it, again and again; print the memory in bytes after each as JSON."""
    page, trim, samples = os.sysconf("SC_PAGE_SIZE"), ctypes.CDLL(None).malloc_trim, []
    for number in range(int(loads)):
        with opened(kind, Path(bundles), 1) as model:
            ask(model, 0)
        del model
        gc.collect()
        trim(0)  # without it, freed memory that glibc keeps for later is up to 60,000 bytes a load (measured)
        samples.append((number, int(Path("/proc/self/statm").read_text().split()[1]) * page))
    print(json.dumps(samples))


def growth_of_loads(kind: str, bundles: Path, loads: int) -> Growth:
    """Return how the memory of a process of its own grows with each load. Takes Linux with glibc, and `LOADS`."""
    samples = [(number, memory) for number, memory in json.loads(_call("load_again", kind, bundles, loads))]
    found = growth(samples, least=LEAST_LOADS, limit=LEAST_BYTES)
    assert found is not None, f"{loads} loads are too few"
    return found


@click.command()
@click.argument("bundles", type=click.Path(path_type=Path))
@click.option("--rounds", default=25, show_default=True, help="Questions of each thread, and interrupts.")
@click.option("--output", type=click.Path(path_type=Path), help="JSON file for the figures.")
def main(bundles: Path, rounds: int, output: Path | None) -> None:
    """Ask each kind of model from threads, after forks and interrupts, and load it again and again."""
    make_bundles(bundles)
    result: dict[str, dict[str, Any]] = {}
    for kind in KINDS:
        loads = max(LOADS, rounds)
        memory = growth_of_loads(kind, bundles, loads)
        result[kind] = {
            "asked": THREADS * rounds,
            "wrong": wrong_in_threads(kind, bundles, rounds),
            "interrupts": rounds,
            "wrong_after": wrong_after_interrupts(kind, bundles, rounds),
            "forks": {str(threads): ending_of_fork(kind, bundles, threads) for threads in (1, 2)},
            "loads": loads,
            "bytes_a_load": [round(memory.slope), round(memory.error)],
            "leaks": memory.leaks,
        }
        click.echo(f"{kind}: {json.dumps(result[kind])}")
        if output:
            output.write_text(json.dumps(result, indent=1) + "\n")
    forks = [text for found in result.values() for text in found["forks"].values()]
    good = all(text == "equal" or "before this process was forked" in text for text in forks)
    if not good or any(found["wrong"] or found["wrong_after"] or found["leaks"] for found in result.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
