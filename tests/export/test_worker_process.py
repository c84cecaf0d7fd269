"""The command line compares with transformers in a process of its own: the same outcome, and nothing left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from exported_twice import export_twice
from slow_rows import slow_after
from worker_functions import be_killed, fail, noisy, refuse, take_long

from edgeformer.checkpoints.found_model import PRESETS
from edgeformer.cli.main import cli
from edgeformer.errors import ConfigError, ExportError
from edgeformer.export import ExportOptions, api, export_model
from edgeformer.export.progress import no_progress
from edgeformer.export.worker_process import WorkerProcess, sharing_cores


@pytest.fixture(autouse=True)
def two_cores(monkeypatch):
    monkeypatch.setattr("edgeformer.runtime.sessions.session.usable_cores", lambda: 2)


def wait_for(path):
    deadline = time.monotonic() + 60
    while not path.is_file() or not path.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return json.loads(path.read_text())


def lives(pid):
    """Return whether a process runs, and is more than an entry that its parent has not read."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_function_returns_and_what_it_prints_is_printed(capsys):
    with WorkerProcess("a test", noisy, 7) as process:
        with pytest.warns(UserWarning, match="^odd$"):
            value, pid = process.result()
        assert process.result() == (value, pid), "once more, without a second call"
    assert value == 7 and pid != os.getpid() and not lives(pid)
    out, errors = capsys.readouterr()
    assert out == "" and sorted(errors.split()) == ["printed", "written"]


def test_an_error_is_raised_as_if_it_were_from_here():
    with pytest.raises(ConfigError, match="^no such thing"), WorkerProcess("a test", refuse) as process:
        process.result()
    with pytest.raises(RuntimeError, match="KeyError: 'a fault'"), WorkerProcess("a test", fail) as process:
        process.result()


def test_the_error_of_the_function_is_raised_first():
    """As in one process, where the function is called before what fails here."""
    with pytest.raises(ConfigError, match="^no such thing"), WorkerProcess("a test", refuse):
        raise ExportError("another")
    with pytest.raises(ExportError, match="^another$"), WorkerProcess("a test", os.getpid):
        raise ExportError("another")


def test_a_failure_is_seen_before_it_is_awaited(tmp_path):
    with pytest.raises(ConfigError, match="no such thing"), WorkerProcess("a test", refuse) as process:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            process.raise_failure()
    with WorkerProcess("a test", take_long, tmp_path) as process:
        process.raise_failure()


def test_what_a_killed_process_did_is_done_again():
    said = r"the process for a test ended early \(code -9\), perhaps for lack of memory"
    with pytest.warns(UserWarning, match=said), WorkerProcess("a test", be_killed, os.getpid(), 5) as process:
        assert process.result() == 5


def test_a_process_is_gone_with_its_files_at_the_end(tmp_path):
    with pytest.raises(KeyboardInterrupt), WorkerProcess("a test", take_long, tmp_path):
        pid, temporary = wait_for(tmp_path / "started.json")
        assert lives(pid) and Path(temporary).is_dir()
        raise KeyboardInterrupt
    assert not lives(pid) and not Path(temporary).parent.exists()


def test_a_process_ends_with_a_parent_that_was_killed(tmp_path):
    program = (
        "import sys; from pathlib import Path; from worker_functions import take_long\n"
        "from edgeformer.export.worker_process import WorkerProcess\n"
        "with WorkerProcess('a test', take_long, Path(sys.argv[1])) as process: process.result()"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program, tmp_path], env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    )
    pid, temporary = wait_for(tmp_path / "started.json")
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 60
    while lives(pid):
        assert time.monotonic() < deadline, "the process goes on without its parent"
        time.sleep(0.01)
    assert not Path(temporary).parent.exists()


def test_cores_are_shared_for_a_while():
    before = torch.get_num_threads()
    torch.set_num_threads(6)
    try:
        with sharing_cores():
            assert torch.get_num_threads() == 3
        assert torch.get_num_threads() == 6
    finally:
        torch.set_num_threads(before)


def test_a_model_is_compared_the_same_in_both_ways(llama_folder, tmp_path):
    here, apart = export_twice(llama_folder, tmp_path, precision="int4")
    assert here == apart
    assert apart[0].difference < 1e-6 and apart[-1]


@pytest.fixture
def warned_folder(tmp_path):
    """A checkpoint with a warning that needs no transformers, and one that does."""
    folder = tmp_path / "model"
    folder.mkdir()
    for path in (PRESETS / "tiny-llama").iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"tokenizer_class": "Qwen2Tokenizer"}))
    (folder / "generation_config.json").write_text(json.dumps({"do_sample": True, "eos_token_id": [1, 9999]}))
    return folder


def test_warnings_have_one_order_in_both_ways(warned_folder, tmp_path):
    here, apart = export_twice(warned_folder, tmp_path)
    assert here == apart
    assert len(apart[1]) > 1 and apart[1][-1].startswith("Qwen2Tokenizer of transformers gives")


compare = api._compare


def compare_other_norms(model, options):
    """Compare a module with other norms, which a config that is read wrong would have."""
    open_base = api._open_base

    def opened(found, options):
        source = open_base(found, options)
        blocks = tuple(replace(block, norm=replace(block.norm, eps=1e-2)) for block in source.config.blocks)
        return replace(source, config=replace(source.config, blocks=blocks))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api, "_open_base", opened)
        return compare(model, options)


def test_a_model_that_differs_is_not_published(llama_folder, tmp_path, monkeypatch):
    with pytest.raises(ExportError) as expected:
        compare_other_norms(llama_folder, ExportOptions())
    assert "does not compute what transformers" in str(expected.value)
    monkeypatch.setattr(api, "_compare", compare_other_norms)
    with pytest.raises(ExportError) as found:
        api.export_comparing_apart(llama_folder, tmp_path / "bundle", ExportOptions(), no_progress)
    assert str(found.value) == str(expected.value)
    assert list(tmp_path.iterdir()) == []


def compare_unless_killed(parent, model, options):
    be_killed(parent, None)
    return compare(model, options)


def test_an_export_whose_comparison_is_killed_compares(llama_folder, tmp_path, monkeypatch):
    expected = export_model(llama_folder, tmp_path / "here")
    monkeypatch.setattr(api, "_compare", partial(compare_unless_killed, os.getpid()))
    with pytest.warns(UserWarning, match="the process for the comparison with transformers ended early"):
        result = api.export_comparing_apart(llama_folder, tmp_path / "bundle", ExportOptions(), no_progress)
    assert result.report.comparison == expected.report.comparison and result.warnings == expected.warnings


ALONE = {
    "nothing is verified": ({"verify": None}, {}),
    "one core": ({}, {"edgeformer.runtime.sessions.session.usable_cores": lambda: 1}),
    "a large model": ({}, {"edgeformer.export.api.LARGEST_APART": 1000}),
    "no transformers": ({}, {"edgeformer.export.api.find_spec": lambda name: None}),
}


@pytest.mark.parametrize("case", ALONE)
def test_no_process_is_started_for(case, llama_folder, monkeypatch):
    options, patches = ALONE[case]
    for name, value in patches.items():
        monkeypatch.setattr(name, value)
    asked = ExportOptions(**options)
    base = api._open_base(api.find_model(llama_folder), asked)
    with api._start_comparison(llama_folder, base, asked) as process:
        assert process is None


def test_one_is_started_for_a_checkpoint_only():
    base = api._open_base(api.find_model("tiny-llama"), ExportOptions())
    with api._start_comparison("tiny-llama", base, ExportOptions()) as process:
        assert process is not None
    with api._start_comparison("tiny-llama", replace(base, random_weights=1), ExportOptions()) as process:
        assert process is None


def test_a_model_of_the_hub_is_downloaded_before(llama_folder, monkeypatch):
    """The other process finds it in the cache, and asks for nothing."""
    happened = []
    monkeypatch.setattr("edgeformer.checkpoints.found_model._download", lambda *asked: happened.append(asked))
    monkeypatch.setattr(api, "WorkerProcess", lambda *_, environment: happened.append(environment))
    base = replace(api._open_base(api.find_model(llama_folder), ExportOptions()), hub_id="some/llama")
    api._start_comparison("some/llama", base, ExportOptions())
    assert happened == [("some/llama", ["*.safetensors"]), {"HF_HUB_OFFLINE": "1"}]


def test_a_program_that_calls_the_command_line_has_none(llama_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(api, "WorkerProcess", None)
    done = CliRunner().invoke(cli, ["export", "--model", str(llama_folder), "-o", str(tmp_path / "bundle")])
    assert done.exit_code == 0, done.output


def children(pid):
    """Return the processes that a process has started."""
    return [
        int(each) for task in Path(f"/proc/{pid}/task").iterdir() for each in (task / "children").read_text().split()
    ]


def use_all_cores():
    """Leave the core that a worker of the suite has to itself."""
    os.sched_setaffinity(0, range(os.cpu_count()))


@pytest.mark.skipif(sys.platform != "linux", reason="2026-11: processes are listed by /proc")
@pytest.mark.parametrize(("number", "code"), slow_after(1, [(signal.SIGINT, 130), (signal.SIGTERM, 143)]))
def test_a_signal_ends_both_processes_of_the_command(number, code, llama_folder, tmp_path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    command = subprocess.Popen(
        [sys.executable, "-m", "edgeformer", "export", "--model", llama_folder, "-o", tmp_path / "bundle"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ | {"TMPDIR": str(scratch)},
        preexec_fn=use_all_cores,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not (found := children(command.pid)):
        assert command.poll() is None and time.monotonic() < deadline, "no process was started"
        time.sleep(0.01)
    time.sleep(0.5)
    command.send_signal(number)
    out, errors = command.communicate(timeout=60)
    assert (command.returncode, out, errors.replace(b"\nAborted!\n", b"")) == (code, b"", b"")
    assert not any(map(lives, found))
    assert list(scratch.iterdir()) == [] and [path.name for path in tmp_path.iterdir()] == ["scratch"]
