"""Fixtures shared by all tests: Hugging Face folders of seeded random models, and the bundles made from them."""

import gc
import importlib.abc
import importlib.machinery
import importlib.util
import itertools
import json
import logging
import operator
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import artifact_cache
import cached_traces
import pytest
from cached_bundles import copy_of_preset
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import Marker

# Tests that run side by side would wait for each other's threads: every process has a core of its own. One that takes
# the place of a process that died has a higher number, and any core.
WORKER = os.environ.get("PYTEST_XDIST_WORKER")
NUMBER = int(WORKER.removeprefix("gw")) if WORKER else 0
if WORKER and int(os.environ["PYTEST_XDIST_WORKER_COUNT"]) > NUMBER and hasattr(os, "sched_setaffinity"):
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[NUMBER % len(cores)]})

# A shell that starts the tests in the background ignores SIGINT for them, and programs that tests start inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The programs that tests start, and later runs, compile our sources and these tests once, whatever the shell says.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

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
OTHER_BUILDS = ("/test_arm.py", "/test_sanitizers.py")
DURATIONS = Path(__file__).with_name("durations.json")
"""Seconds that scopes took, those that took many: of the tests that run by default, and of the slow ones."""
LONG = 3


def scope_of(nodeid: str) -> str:
    """Return what the tests that share fixtures with this one are: a file, one family of models, or the kernels.

    All tests of the kernels but those that build others wait for one build.
    """
    file, _, test = nodeid.partition("::")
    if file.startswith(KERNELS) and not file.endswith(OTHER_BUILDS):
        return KERNELS
    family = test.partition("[")[2].partition("-")[0].strip("]")
    return f"{file}::{family}" if file.endswith("_parity.py") else file


class ByFixtures(LoadScopeScheduling):
    """Keep tests that share fixtures in one process."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)

    def remove_node(self, node: Any) -> str | None:
        """Return the test that a process died of. Its other tests go on elsewhere; run again, it would do the same."""
        units = self.assigned_work[node]
        died = next(((unit, test) for unit in units.values() for test, done in unit.items() if not done), None)
        if died is None:
            return super().remove_node(node)
        unit, test = died
        unit[test] = True
        self.assigned_work[node] = {scope: left for scope, left in units.items() if not all(left.values())}
        super().remove_node(node)
        return test


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFixtures:
    """Let pytest-xdist use it, in our order: by numbers of tests, files of few long tests would come last."""
    config.option.loadscopereorder = False
    return ByFixtures(config, log)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that records how long tests take."""
    parser.addoption("--record-durations", action="store_true", help=f"write {DURATIONS.name}, the order of later runs")


def which_tests(config: pytest.Config) -> str:
    """Return which table of the durations is that of a run."""
    return "slow" if config.option.markexpr == "slow" else "default"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with what takes longest: a long file at the end leaves the other processes nothing to do."""
    draw_no_constants_of_modules()
    seconds = json.loads(DURATIONS.read_text())[which_tests(config)]
    items.sort(key=lambda item: -seconds.get(scope_of(item.nodeid), 0))


def draw_no_constants_of_modules() -> None:
    """Let hypothesis draw none of the numbers and texts that stand in our sources.

    It would parse every module that is imported, for seconds in each process, and draw what depends on which these are.
    """
    providers = sys.modules.get("hypothesis.internal.conjecture.providers")
    if providers is not None:
        providers._get_local_constants = lambda: providers._local_constants  # type: ignore[attr-defined]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Let the garbage collector pass over ten thousand tests and all that they import: it would find them all alive.

    Traces leave much behind that counts references, and little in circles.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Record the durations, where that is asked for."""
    if not config.option.record_durations:
        return
    found: dict[str, float] = {}
    for report in itertools.chain(*terminalreporter.stats.values()):
        if isinstance(report, pytest.TestReport):
            found[scope_of(report.nodeid)] = found.get(scope_of(report.nodeid), 0) + report.duration
    rows = {scope: round(spent) for scope, spent in sorted(found.items(), key=lambda row: -row[1]) if spent >= LONG}
    tables = json.loads(DURATIONS.read_text()) | {which_tests(config): rows}
    DURATIONS.write_text(json.dumps(tables, indent=2) + "\n")


@pytest.hookimpl(optionalhook=True)
def pytest_testnodeready(node: Any) -> None:
    """Notice at once that a process of pytest-xdist died, and so replace it.

    xdist waits for the end of its pipe, which a program that a test started may have inherited and keep open for long.
    """

    def watch() -> None:
        node.gateway._io.popen.wait()
        time.sleep(3)  # xdist still reads what a process wrote before it ended as it should
        node.process_from_remote(Marker.END)

    threading.Thread(target=watch, daemon=True).start()


def pytest_sessionstart(session: pytest.Session) -> None:
    """Remove old entries of the cache, in the process that starts the others."""
    if WORKER is None:
        artifact_cache.prune()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let what a test and its fixtures draw not depend on what ran before in this process."""
    random.seed(0)
    for module, seed in (("numpy", "random.seed"), ("torch", "manual_seed")):
        if module in sys.modules:
            operator.attrgetter(seed)(sys.modules[module])(0)


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
    """The preset tiny-llama, with its tokenizer, as a verified fp32 bundle. Read-only."""
    return copy_of_preset("tiny-llama", tmp_path_factory.mktemp("bundles") / "tiny-llama")


@pytest.fixture(scope="session")
def tiny_llama_mtp_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The preset tiny-llama with the layer that drafts its tokens, as a verified fp32 bundle. Read-only."""
    return copy_of_preset("tiny-llama", tmp_path_factory.mktemp("bundles") / "tiny-llama-mtp", mtp=True)


@pytest.fixture(scope="session")
def tiny_translate_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The preset tiny-translate, with its tokenizer, as an fp32 bundle. Read-only."""
    return copy_of_preset("tiny-translate", tmp_path_factory.mktemp("bundles") / "tiny-translate", verify=None)


@pytest.fixture(scope="session")
def tiny_embed_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The preset tiny-embed, with its tokenizer, as an fp32 bundle. Read-only."""
    return copy_of_preset("tiny-embed", tmp_path_factory.mktemp("bundles") / "tiny-embed", verify=None)


@pytest.fixture(scope="session")
def int4_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The preset tiny-llama in int4. Read-only."""
    folder = tmp_path_factory.mktemp("bundles") / "int4"
    return copy_of_preset("tiny-llama", folder, precision="int4", verify=None)


@pytest.fixture(scope="session")
def smolvlm_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small SmolVLM of up to 3 × 3 tiles, each of 4 tokens, with a tokenizer and a chat template. Read-only."""
    return _with_tower("picture_text_rows", "smolvlm", tmp_path_factory, "smolvlm", "tiles")


@pytest.fixture(scope="session")
def modernvbert_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small ModernVBERT of up to 3 × 3 tiles, each of 4 tokens, with a tokenizer. Read-only."""
    return _with_tower("picture_encoder_rows", "modernvbert", tmp_path_factory, "states")


@pytest.fixture(scope="session")
def voxtral_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Voxtral of windows of two seconds, with a tokenizer and a chat template. Read-only."""
    return _with_tower("sound_text_rows", "voxtral", tmp_path_factory, "voxtral", "four")


@pytest.fixture(scope="session")
def trocr_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small TrOCR with a tower of ViT, with a tokenizer. Read-only."""
    return _with_tower("picture_to_text_rows", "trocr", tmp_path_factory, "vit")


def _with_tower(table: str, named: str, folders: pytest.TempPathFactory, *row: str) -> Path:
    """Export a model of a table in tests/families without verification. named: the bundle. row: of the table."""
    from edgeformer.export import export_model

    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parent / "families"))
        rows = importlib.import_module(table)
    folder = folders.mktemp(named) / "checkpoint"
    rows.save(*row, folder)
    return export_model(folder, folders.mktemp("bundles") / named, verify=None).path
