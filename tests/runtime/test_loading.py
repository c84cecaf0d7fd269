"""A loader of one task opens bundles of that task alone; the facades offer what users need."""

import subprocess
import sys

import pytest

import edgeformer
from edgeformer import runtime
from edgeformer.errors import BundleError, EdgeformerError
from edgeformer.runtime import CausalLM, Manifest, load, load_causal_lm, load_encoder, load_seq2seq


def test_a_loader_opens_bundles_of_its_task(tiny_llama_bundle):
    assert type(load_causal_lm(tiny_llama_bundle)) is CausalLM is type(load(tiny_llama_bundle))


@pytest.mark.parametrize(("loader", "task"), [(load_seq2seq, "seq2seq-lm"), (load_encoder, "encoder")])
def test_a_loader_refuses_bundles_of_another_task(tiny_llama_bundle, loader, task):
    message = f"holds a model for the task causal-lm, not {task}; open it with load_causal_lm, or with load.$"
    with pytest.raises(BundleError, match=message):
        loader(tiny_llama_bundle)


def test_the_facades_offer_one_object_under_each_name(tiny_llama_bundle):
    from edgeformer.check import check
    from edgeformer.manifest.quantization import Quantization
    from edgeformer.runtime.measure.benchmarking import benchmark
    from edgeformer.runtime.measure.prepack import optimize

    assert (runtime.benchmark, runtime.optimize) == (benchmark, optimize)
    assert edgeformer.Manifest is runtime.Manifest is Manifest
    assert edgeformer.EdgeformerError is runtime.EdgeformerError is EdgeformerError
    assert edgeformer.Quantization is Quantization
    assert callable(check)
    assert runtime.Manifest.read(tiny_llama_bundle).task == "causal-lm"
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = runtime.nothing
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = edgeformer.nothing


def test_the_top_facade_imports_nothing_before_it_is_asked():
    code = "import sys, edgeformer; print(sorted(name for name in sys.modules if name.startswith('edgeformer')))"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stdout.strip()
    assert "edgeformer.manifest.manifest" not in loaded and "edgeformer.errors" not in loaded
