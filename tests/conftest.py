"""Fixtures shared by all tests: Hugging Face folders of seeded random models, and the bundles made from them."""

import importlib.abc
import importlib.machinery
import importlib.util
import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import artifact_cache
import cached_traces
import pytest
from xdist.scheduler import LoadScopeScheduling

# Tests that run side by side would wait for each other's threads: every process has a core of its own.
WORKER = os.environ.get("PYTEST_XDIST_WORKER")
if WORKER and hasattr(os, "sched_setaffinity"):
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[int(WORKER.removeprefix("gw")) % len(cores)]})

# A shell that starts the tests in the background ignores SIGINT for them, and programs that tests start inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Before anything imports transformers or huggingface_hub: no test may reach a real hub.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
# Tests mean onnxruntime's kernels, whether or not ours are installed; tests/kernels turns them on.
os.environ["EDGEFORMER_KERNELS"] = "0"
logging.getLogger("transformers").setLevel(logging.ERROR)


TRACE = "edgeformer.export.capture.trace"


class TracesFromTheCache(importlib.abc.MetaPathFinder):
    """Lets the module that traces look into the cache, once somebody imports it: most tests import no torch."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of that module, whose loader also installs the cache."""
        if name != TRACE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.loader is not None
        execute = spec.loader.exec_module

        def and_install(module: Any) -> None:
            execute(module)
            cached_traces.install(module)

        spec.loader.exec_module = and_install  # type: ignore[method-assign]
        return spec


assert TRACE not in sys.modules
sys.meta_path.insert(0, TracesFromTheCache())

KERNELS = "tests/kernels/"


class ByFixtures(LoadScopeScheduling):
    """Keep tests that share fixtures in one process: those of a file, of one family of models, or of the kernels.

    All tests of the kernels but those that build others wait for one build.
    """

    def _split_scope(self, nodeid: str) -> str:
        file, _, test = nodeid.partition("::")
        if file.startswith(KERNELS) and not file.endswith("/test_sanitizers.py"):
            return KERNELS
        family = test.partition("[")[2].partition("-")[0].strip("]")
        return f"{file}::{family}" if file.endswith("_parity.py") else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFixtures:
    """Let pytest-xdist use it, file by file: by numbers of tests, files of few long tests would come last."""
    config.option.loadscopereorder = False
    return ByFixtures(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the kernels: one process is busy with them for minutes, and another would wait for it at the end."""
    items.sort(key=lambda item: not item.nodeid.startswith(KERNELS))


def pytest_sessionstart(session: pytest.Session) -> None:
    """Remove old entries of the cache, in the process that starts the others."""
    if WORKER is None:
        artifact_cache.prune()


@pytest.fixture(scope="module", autouse=True)
def entries_of_the_cache_stay_as_they_are():
    """Fail a file whose tests change what the cache gave them."""
    yield
    artifact_cache.check_untouched()


@pytest.fixture(scope="session", autouse=True)
def nothing_is_synced():
    """Leave fsync out, which waits for the disk, in this process; test_durability.py looks at another one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def cache_of_the_user(tmp_path_factory: pytest.TempPathFactory):
    """Keep what edgeformer remembers for a user out of the home of whoever runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGEFORMER_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


MakeModel = Callable[..., Path]

LEARNED_OTHERWISE = ("e_score_correction_bias", "expert_bias")
"""Ends of names of numbers that training learns, but not by gradients."""


@pytest.fixture(scope="session")
def make_model(tmp_path_factory: pytest.TempPathFactory) -> MakeModel:
    """Return a function that saves a seeded random model of transformers and returns its folder.

    auto: the class that makes it, by default that of causal LMs.
    """
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()

    def make(
        model_type: str,
        seed: int = 0,
        *,
        auto: str = "AutoModelForCausalLM",
        shard_size: str = "5GB",
        dtype: torch.dtype = torch.float32,
        **options: object,
    ) -> Path:
        config = transformers.CONFIG_MAPPING[model_type](**options)
        torch.manual_seed(seed)
        model = getattr(transformers, auto).from_config(config)
        with torch.no_grad():
            # transformers starts with flat attention, norms of one and biases of zero, which would hide many faults.
            for name, parameter in model.named_parameters():
                if not parameter.requires_grad and model_type != "whisper" and not name.endswith(LEARNED_OTHERWISE):
                    continue  # sinusoids, which nothing trains; Whisper's are what the checkpoint says
                noise = torch.randn_like(parameter)
                if name.endswith("linear_attn.A_log"):
                    # transformers starts with heads that forget all at once, which would hide faults of their states.
                    parameter.copy_(noise - 3)
                elif parameter.dim() == 1 or "norm" in name:
                    parameter.add_(0.2 * noise)
                else:
                    # Nothing scales the scores of T5; its queries are small from the start.
                    scale = config.d_kv if name.endswith(".q.weight") and hasattr(config, "d_kv") else 1
                    parameter.copy_(noise / (scale * parameter.shape[-1]) ** 0.5)
            for module in model.modules():
                # Nothing scales the scores of Gemma 3n and 4 either; the norms of trained queries are small.
                if getattr(module, "scaling", None) == 1.0 and hasattr(module, "q_norm"):
                    module.q_norm.weight.mul_(module.head_dim**-0.5)
            for name, buffer in model.named_buffers():
                if name == "final_logits_bias":
                    buffer.normal_()
                elif name.endswith(LEARNED_OTHERWISE):
                    buffer.normal_(std=0.2)
                if name.endswith("layer_scalar"):
                    buffer.add_(0.2 * torch.randn_like(buffer))
        folder = tmp_path_factory.mktemp(model_type)
        if dtype != torch.float32:  # `to` would make complex buffers of a vision tower real
            model.to(dtype)
        model.save_pretrained(folder, max_shard_size=shard_size)
        return folder

    return make


@pytest.fixture(scope="session")
def make_llama(make_model: MakeModel) -> MakeModel:
    """The same for a Llama of small sizes."""
    sizes = {
        "vocab_size": 131, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    return lambda seed=0, **options: make_model("llama", seed, **(sizes | options))


@pytest.fixture(scope="session")
def llama_folder(make_llama: MakeModel) -> Path:
    """A small Llama with grouped heads."""
    return make_llama()


@pytest.fixture(scope="session")
def llama_bundle(llama_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small Llama as an fp32 bundle. Read-only: copy it before changing it."""
    from edgeformer.export import export_model

    return export_model(llama_folder, tmp_path_factory.mktemp("bundles") / "llama").path


@pytest.fixture(scope="session")
def tiny_llama_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The preset tiny-llama, with its tokenizer, as an fp32 bundle. Read-only."""
    from edgeformer.export import export_model

    return export_model("tiny-llama", tmp_path_factory.mktemp("bundles") / "tiny-llama").path
