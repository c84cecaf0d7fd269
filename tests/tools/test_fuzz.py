"""The fuzzer finds faults that are there, and none in edgeformer."""

import faulthandler
import os
import random
import time
import warnings
from pathlib import Path

import pytest
from reliability import fuzz as fuzzing
from reliability import mutations
from reliability.table import table
from reliability.targets import TARGETS, Target
from reliability.watched import FAULTS, Limits, run_cases

from edgeformer.errors import BundleError

SECRET = Path("/etc/hostname")


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    """Bundles of two presets, unverified: they are read, not trusted."""
    from edgeformer.export import export_model

    folder = tmp_path_factory.mktemp("fuzzed")
    for preset in ("tiny-llama", "tiny-embed"):
        export_model(preset, folder / preset, verify=None)
    return folder


@pytest.mark.parametrize("name", TARGETS)
def test_wrong_files_end_in_one_sentence(bundles, name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = fuzzing.fuzz(TARGETS[name], bundles, range(16), Limits(seconds=120))
    assert not result["faults"]
    assert result["counts"].keys() <= {"ok", "error"}
    assert result["counts"]["error"] > 0, "the files were wrong"


def _raise(error):
    raise error


def _compute_for_ever():
    while True:
        pass


OUTCOMES = {
    "ok": lambda: None,
    "error": lambda: _raise(BundleError("the bundle is damaged.")),
    "raw": lambda: _raise(KeyError("name")),
    "hang": lambda: _compute_for_ever(),
    "memory": lambda: bytearray(700 << 20),
    "crash": lambda: os.abort(),
    "escape": lambda: SECRET.exists() and SECRET.open().close(),
}


@pytest.mark.skipif(not SECRET.is_file(), reason="2026-11-24: this system has no /etc/hostname to read")
def test_every_kind_of_fault_is_found_and_the_run_goes_on(tmp_path):
    kinds = ["ok", *OUTCOMES, "ok"]

    def task(case):
        return tmp_path, OUTCOMES[kinds[case]]

    found = list(run_cases(range(len(kinds)), task, Limits(seconds=2, address_space=4 << 30, peak=500 << 20)))
    assert [verdict.kind for verdict in found] == kinds
    assert [verdict.case for verdict in found] == list(range(len(kinds)))
    assert set(FAULTS) - {"long"} == set(OUTCOMES) - {"ok", "error"}
    raw = next(verdict for verdict in found if verdict.kind == "raw")
    assert "KeyError at tests/tools/test_fuzz.py" in raw.detail


@pytest.mark.skipif(not SECRET.is_file(), reason="2026-11-25: this system has no /etc/hostname to read")
@pytest.mark.parametrize(("named", "kind"), [([SECRET], "ok"), ([SECRET.parent], "ok"), (["/"], "escape")])
def test_a_path_that_the_user_names_is_no_escape(tmp_path, named, kind):
    def read():
        SECRET.open().close()

    read.named = list(map(str, named))
    [found] = run_cases([0], lambda case: (tmp_path, read))
    assert found.kind == kind


def test_a_module_that_a_case_imports_first_is_no_escape(tmp_path, monkeypatch):
    """Python would write its bytecode beside it, outside of the case's folder."""
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "not_yet_compiled.py").write_text("found = 1\n")
    monkeypatch.syspath_prepend(tmp_path / "library")
    monkeypatch.setattr("sys.dont_write_bytecode", False)
    (tmp_path / "case").mkdir()
    [found] = run_cases([0], lambda case: (tmp_path / "case", lambda: __import__("not_yet_compiled")))
    assert (found.kind, found.detail) == ("ok", "")


def test_a_crash_prints_no_stack_into_the_run(tmp_path):
    """pytest's faulthandler would, to its own copy of the error output."""
    (verdict,) = run_cases([0], lambda case: (tmp_path, lambda: _raise(KeyError(faulthandler.is_enabled()))))
    assert verdict.detail.endswith("'False'")


def test_time_that_a_case_waits_is_not_time_that_it_computes(tmp_path):
    """A busy machine makes every case wait; one that waits for ever hangs all the same."""

    def verdict(asleep, waiting):
        (found,) = run_cases([0], lambda case: (tmp_path, lambda: time.sleep(asleep)), Limits(1, waiting))
        return found.kind, found.detail

    assert verdict(asleep=2.5, waiting=600) == ("ok", "")
    assert verdict(asleep=600, waiting=2) == ("hang", "over 2 s")


def test_an_error_that_cites_a_file_is_no_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr("edgeformer.errors.LONGEST", 10**9)
    (verdict,) = run_cases([0], lambda case: (tmp_path, lambda: _raise(BundleError("a" * 5000))))
    assert (verdict.kind, verdict.detail[:30]) == ("long", "BundleError of 5000 characters")


def test_a_number_is_always_the_same_case(bundles, tmp_path):
    def spoilt(name):
        TARGETS["config"].prepare(bundles, tmp_path / name, random.Random("config/7"))
        return (tmp_path / name / "config.json").read_bytes()

    assert spoilt("a") == spoilt("b")


def test_faulty_documents_have_no_circles():
    before = repr(mutations.ODD)
    for case in range(3000):
        mutations.mutate_json({"a": [1, {"b": {}}], "c": {"d": [[]]}}, random.Random(case))
    assert repr(mutations.ODD) == before


def test_a_case_that_cannot_be_made_ends_its_process(tmp_path):
    (verdict,) = run_cases([0], lambda case: _raise(ValueError("the tool is wrong")), Limits(seconds=20))
    assert (verdict.kind, verdict.detail) == ("crash", "ended with 0")


def test_results_add_up(tmp_path):
    target = Target("mixed", lambda bundles, folder, draw: OUTCOMES[draw.choice(("ok", "raw"))])
    whole, parts = fuzzing.fuzz(target, tmp_path, range(20)), None
    for cases in (range(12), range(12, 20)):
        part = fuzzing.fuzz(target, tmp_path, cases)
        parts = part if parts is None else fuzzing.merged(parts, part)
    assert parts["counts"] == whole["counts"]
    assert parts["next"] == 20
    assert {key: entry["count"] for key, entry in parts["faults"].items()} == {
        key: entry["count"] for key, entry in whole["faults"].items()
    }


def test_the_table_has_every_kind_of_figures():
    fuzz = {"config": {"counts": {"ok": 2, "error": 5, "raw": 1}, "peak_bytes": 3 << 20}}
    signals = {"counts": {"ended": 9, "raw": 1}}
    faults = {"counts": {"export killed": 4, "export half": 1}}
    text = table(fuzz, signals, None, faults)
    assert "| config.json | 8 | 2 | 5 | 1 | 0 | 0 | 0 | 0 | 0 | 3 |" in text
    assert "- SIGINT or SIGTERM at a random moment: 10 cases, 1 faults (9 ended, 1 raw)." in text
    assert "| `export` | 5 | 4 | 0 | 0 | 1 |" in text
