"""One loaded model in threads, after forks and interrupts, and loaded again and again."""

import sys
import threading

import pytest
from reliability import one_model
from slow_rows import slow_after

from edgeformer.runtime import CausalLM
from edgeformer.runtime.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one-model")
    one_model.make_bundles(folder)
    return folder


KINDS = pytest.mark.parametrize("kind", list(one_model.KINDS))


@KINDS
def test_answers_in_threads_are_those_that_a_model_gives_alone(bundles, kind):
    assert one_model.wrong_in_threads(kind, bundles, rounds=3) == 0


@KINDS
def test_answers_after_interrupts_are_those_before(bundles, kind):
    assert one_model.wrong_after_interrupts(kind, bundles, rounds=4) == 0


FORKS = [("decoder", 1), ("decoder", 2), ("engine", 2), ("encoder", 1), ("encoder", 2), ("seq2seq", 1), ("seq2seq", 2)]


@pytest.mark.parametrize(
    ("kind", "threads"),
    slow_after(3, FORKS),
)
def test_a_fork_after_a_load_works_or_says_why_not(bundles, kind, threads):
    ending = one_model.ending_of_fork(kind, bundles, threads)
    if threads == 1 and kind != "engine":
        assert ending == "equal"
    else:
        what = "the engine was made" if kind == "engine" else "onnx was loaded"
        assert f"{what} before this process was forked, and a fork has none of its threads" in ending


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is read from /proc (2026-11-25)")
@pytest.mark.parametrize("kind", [pytest.param(kind, marks=pytest.mark.slow) for kind in one_model.KINDS])
def test_memory_does_not_grow_with_loads(bundles, kind):
    growth = one_model.growth_of_loads(kind, bundles, one_model.LOADS)
    assert not growth.leaks, growth


def test_wrong_answers_are_counted(bundles, monkeypatch):
    """The negative control: threads that get the answer to another question than theirs."""

    def generate(self, prompt, **options):
        alone = threading.current_thread() is threading.main_thread()
        return original(self, prompt if alone else one_model.QUESTIONS["decoder"][0], **options)

    original = CausalLM.generate
    monkeypatch.setattr(CausalLM, "generate", generate)
    assert one_model.wrong_in_threads("decoder", bundles, rounds=4) == one_model.THREADS * 3


def test_texts_are_cut_to_the_length_of_their_own_call(bundles):
    """A thread that asks for another length in between does not change what this one gets."""

    class Interrupted(Tokenizer):
        @property
        def _truncating(self):
            return self.__dict__.get("shared")

        @_truncating.setter
        def _truncating(self, copy):
            self.__dict__["shared"] = copy
            if copy is not None and threading.current_thread() is threading.main_thread():
                other = threading.Thread(target=self.encode_truncated, args=([text], 9))
                other.start()
                other.join()

    text = "a b c d e f g h i j k l m n o p"
    ids, _ = Interrupted(bundles / "tiny-embed").encode_truncated([text], 5)
    assert ids == Tokenizer(bundles / "tiny-embed").encode_truncated([text], 5)[0]
