"""Long texts are encoded as far as they can matter, by what other threads need not wait for, to the same tokens."""

import random
import threading
import time

import pytest
from slow_rows import slow_unless

from edgeformer.checkpoints.found_model import PRESETS
from edgeformer.errors import PromptLengthError
from edgeformer.runtime.text import long_texts
from edgeformer.runtime.text.tokenizer import Tokenizer

CONTEXT = 64


@pytest.fixture(scope="module", params=["tiny-llama", "tiny-embed", "tiny-translate"])
def tokenizer(request):
    return Tokenizer(PRESETS / request.param)


def words(count: int) -> str:
    generator = random.Random(0)
    return " ".join("".join(generator.choices("abcdeé世 ", k=generator.randint(1, 9))) for _ in range(count))


def spy(monkeypatch) -> list[int]:
    """Keep the length of every text that is encoded."""
    lengths: list[int] = []
    for name in ("encode", "encode_ids"):
        original = getattr(long_texts, name)

        def encode(backend, text, *rest, original=original, **options):
            lengths.append(len(text))
            return original(backend, text, *rest, **options)

        monkeypatch.setattr(long_texts, name, encode)
    return lengths


def test_other_threads_run_while_a_long_text_is_encoded(tokenizer):
    order: list[str] = []
    text = "hello world dog " * 100_000

    def encode():
        order.append("begin")
        tokenizer.encode(text)
        order.append("end")

    thread = threading.Thread(target=encode)
    thread.start()
    while not order:
        time.sleep(0.001)
    time.sleep(0.005)
    order.append("another thread")
    thread.join()
    assert order == ["begin", "another thread", "end"]


def test_a_text_far_beyond_the_limit_is_refused_by_its_beginning(tokenizer, monkeypatch):
    lengths = spy(monkeypatch)
    with pytest.raises(PromptLengthError, match=r"the question has 4,000,000 characters, which are more than"):
        tokenizer.encode("abc " * 1_000_000, most_tokens=CONTEXT, what="question")
    assert sum(lengths) <= 2 * long_texts.LONG


@pytest.mark.parametrize("text", ["", "a", "dog " * 60, words(3000), " " * 50_000, "\N{SNOWMAN}" * 20_000])
def test_what_is_not_refused_has_the_tokens_that_it_had(tokenizer, text):
    whole = tokenizer.backend.encode(text).ids
    assert tokenizer.encode(text) == tokenizer.encoding(text).ids == whole
    try:
        assert tokenizer.encode(text, most_tokens=CONTEXT) == whole
    except PromptLengthError:
        assert len(whole) > CONTEXT


CUT = [
    (side, texts)
    for texts in (
        ("dog " * 40,), (words(4000),), (words(4000), "cat"), ("cat", words(4000)), (words(700), words(900)),
        (" " * 9000 + "dog", "cat"),
    )
    for side in ("left", "right")
]  # fmt: skip
"""Every text from either side; by default each from one."""


@pytest.mark.parametrize(("side", "texts"), slow_unless([*CUT[::3], CUT[4], CUT[11]], CUT))
def test_texts_are_cut_to_the_same_tokens(tokenizer, monkeypatch, side, texts):
    monkeypatch.setitem(tokenizer.config, "truncation_side", side)
    tokenizer._truncating = None
    backend = tokenizer._copy()
    backend.enable_truncation(CONTEXT, strategy="longest_first", direction=side)
    whole = backend.encode(*texts)
    lengths = spy(monkeypatch)
    assert tokenizer.encode_truncated(texts, CONTEXT) == (whole.ids, whole.type_ids)
    assert sum(lengths) < 100_000
    tokenizer._truncating = None


def test_special_tokens_cost_time_in_proportion():
    tokenizer = Tokenizer(PRESETS / "tiny-llama")
    with pytest.raises(PromptLengthError, match="the conversation has 1,000,0"):
        tokenizer.encode_chat([{"role": "user", "content": "<|im_end|>" * 100_000}], most_tokens=1024)
    ids = tokenizer.encode_chat([{"role": "user", "content": "<|im_end|>" * 10_000}])
    assert len(ids) > 50_000 and ids.count(tokenizer.backend.token_to_id("<|im_end|>")) == 1
