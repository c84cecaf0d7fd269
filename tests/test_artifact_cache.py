"""The cache of the tests: entries are made once, whole, and stay as they are; traces come back as they were."""

import os
import subprocess
import sys

import artifact_cache
import pytest
import torch
from artifact_cache import cached, check_untouched, hash_of, prune
from cached_traces import planted, read, write
from slow_rows import slow_unless

from edgeformer.checkpoints.found_model import preset_names
from edgeformer.checkpoints.source import open_source
from edgeformer.export import export_model
from edgeformer.export.capture import trace
from edgeformer.layers.feed_forward import FeedForward
from edgeformer.models.model_spec import model_spec_of


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv(artifact_cache.SWITCH, str(tmp_path / "cache"))
    monkeypatch.setattr(artifact_cache, "_used", set())


def files(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != artifact_cache.STAMP
    }


def test_an_entry_is_made_once():
    made = []

    def make(folder):
        made.append(folder)
        (folder / "text").write_text("one")

    first, second = cached("kind", "key", make), cached("kind", "key", make)
    assert first == second and files(first) == {"text": b"one"} and len(made) == 1
    check_untouched()


def test_an_entry_that_fails_leaves_nothing(tmp_path):
    def fail(folder):
        (folder / "text").write_text("half")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        cached("kind", "key", fail)
    assert [path.name for path in (tmp_path / "cache" / "kind").iterdir()] == ["key.lock"]


def test_a_changed_entry_is_an_error_and_made_again():
    entry = cached("kind", "key", lambda folder: (folder / "text").write_text("one"))
    (entry / "text").write_text("other")
    with pytest.raises(AssertionError, match="were changed"):
        check_untouched()
    assert files(cached("kind", "key", lambda folder: (folder / "text").write_text("two"))) == {"text": b"two"}


def test_old_and_too_many_entries_are_removed(monkeypatch):
    names = ["old", "large", "new"]
    for age, name in zip((10**9, 100, 0), names, strict=True):
        entry = cached("kind", name, lambda folder: (folder / "text").write_bytes(bytes(60)))
        os.utime(entry / artifact_cache.STAMP, (1_700_000_000 - age,) * 2)
    monkeypatch.setattr(artifact_cache.time, "time", lambda: 1_700_000_000)
    prune()
    assert [name for name in names if (entry.parent / name).exists()] == ["large", "new"]
    monkeypatch.setattr(artifact_cache, "MAX_BYTES", 100)
    prune()
    assert [name for name in names if (entry.parent / name).exists()] == ["new"]


def test_parts_of_a_key_are_told_apart():
    assert len({hash_of(["ab", "c"]), hash_of(["a", "bc"]), hash_of(["abc"])}) == 3


TRACED = [(preset, dtype) for preset in preset_names() for dtype in (torch.float32, torch.float16)]
FAST = [("tiny-llama", torch.float16), ("tiny-embed", torch.float32)]


@pytest.mark.parametrize(("preset", "dtype"), slow_unless(FAST, TRACED))
def test_a_trace_comes_back_as_it_was(tmp_path, preset, dtype):
    model_spec = model_spec_of(open_source(preset).config)
    for spec in model_spec.graphs:
        fresh = trace._trace(spec, model_spec, dtype)
        write(fresh, tmp_path / "one.onnx")
        again = read(tmp_path / "one.onnx")
        write(again, tmp_path / "two.onnx")
        for suffix in (".onnx", ".floats.json"):
            assert (tmp_path / f"one{suffix}").read_bytes() == (tmp_path / f"two{suffix}").read_bytes()
        assert list(again.graph.initializers) == list(fresh.graph.initializers)
        assert [value.name for value in again.graph.outputs] == [value.name for value in fresh.graph.outputs]
        assert [dict(node.metadata_props) for node in again.graph] == [dict(n.metadata_props) for n in fresh.graph]


def test_bundles_are_the_same_from_a_trace_of_the_cache(tmp_path):
    bundles = []
    for name in ("made", "cached"):
        trace._trace_once.cache_clear()
        bundles.append(export_model("tiny-llama", tmp_path / name, precision="int4", verify=None).path)
    assert len(list((tmp_path / "cache" / "traces").glob("*/graph.onnx"))) == 1
    assert files(bundles[0]) == files(bundles[1])


def test_traces_with_a_planted_fault_are_not_kept(tmp_path, monkeypatch):
    """Others would read them, in this process and in those after it."""
    model_spec = model_spec_of(open_source("tiny-embed").config)
    spec, entries = model_spec.graphs[0], tmp_path / "cache" / "traces"

    def ops():
        return [node.op_type for node in trace._trace_once(spec, model_spec, torch.float32).graph]

    trace._trace_once.cache_clear()
    forward = FeedForward.forward
    with monkeypatch.context() as patch:
        patch.setattr(FeedForward, "forward", lambda self, x: forward(self, x).exp())
        assert list(planted()) == ["edgeformer.layers.feed_forward.FeedForward.forward"]
        wrong = ops()
        assert not entries.exists()
    assert not list(planted())
    right = ops()
    assert wrong.count("Exp") > right.count("Exp")
    with monkeypatch.context() as patch:
        patch.setattr(FeedForward, "forward", lambda self, x: forward(self, x).exp())
        assert ops() == wrong, "what was kept is not what the fault makes"
    assert ops() == right and len(list(entries.glob("*/graph.onnx"))) == 1


def test_a_run_without_torch_stays_without_torch():
    code = "import sys, artifact_cache, cached_traces; artifact_cache.versions(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | {"PYTHONPATH": os.path.dirname(__file__)})
