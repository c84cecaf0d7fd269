"""Prefixes are found by their tokens, hold what those tokens left in the cache, and stay within their bytes."""

from types import SimpleNamespace

import numpy as np
import pytest

from edgeformer.contract.tensors import CacheGeometry, ConvState, KeyValueState
from edgeformer.errors import RequestError
from edgeformer.runtime.caches.cache_types import CacheTypes
from edgeformer.runtime.caches.dynamic_cache import DynamicCache
from edgeformer.runtime.caches.static_cache import StaticCache
from edgeformer.runtime.prefixes.prefix_cache import SHORTEST, PrefixCache
from edgeformer.runtime.steps.decode_graph import DecodeGraph

CAPACITY = 64
ATTENTION = KeyValueState(num_kv_heads=2, head_dim=3)
GEOMETRIES = {
    "full": ([(ATTENTION,)] * 2, ()),
    "windows": ([(ATTENTION,)] * 2, (5, None)),
    "states": ([(ATTENTION,), (ConvState(channels=3, width=2),)], ()),
    "states only": ([(ConvState(channels=3, width=2),)], ()),
}


PICTURE = 1000
"""Tokens from this number on are states of pictures."""


class WithoutBlocks:
    """A decode graph whose prompts may be divided at any token."""

    def prefix_end(self, tokens, length):
        return length

    media_end = DecodeGraph.media_end
    manifest = SimpleNamespace(vocab_size=PICTURE)


class Rows:
    """A decoder whose cache holds, for each token, the sum of the tokens up to it: any misplaced one is seen."""

    def __init__(self, layers, windows=(), dtype=np.float32, kind=StaticCache):
        types = CacheTypes(dtype, np.float32)
        options = {"windows": windows} if windows else {}
        self.cache = kind(CacheGeometry(layers=tuple(layers)), types, 2, CAPACITY, **options)
        self.lengths = np.zeros(2, np.int64)
        self.graph = WithoutBlocks()

    def load_row(self, row, length, pieces, states):
        self.cache.write_row(row, pieces, states)
        self.lengths[row] = length

    def run(self, row, tokens):
        """Put into a row what these tokens leave there."""
        sums = np.cumsum(tokens).astype(np.float32)
        contents, states = [], []
        for tensor in self.cache._tensors:
            window = getattr(self.cache, "_windows", [None] * 9)[tensor.layer]
            kept = np.broadcast_to(sums[-(window or len(sums)) :, None], (2, min(window or 99, len(sums)), 3))
            if not tensor.per_token:
                contents.append(None), states.append(np.full((3, 2), sums[-1], np.float32))
            elif window:
                contents.append(None), states.append(kept)
            else:
                contents.append(kept), states.append(None)
        self.load_row(row, len(tokens), [contents], states)

    def content(self, row):
        length = int(self.lengths[row])
        arrays = [*self.cache.read_tokens(row, 0, length), *self.cache.read_states(row, length)]
        return [array for array in arrays if array is not None]


def held(prefixes):
    """Return the bytes of all arrays that are kept, each counted once, and check that none is a view of another."""
    snapshots = [node.snapshot for node in prefixes._nodes if node.snapshot]
    found = [array for node in prefixes._nodes for array in (node.tokens, *node.tensors)]
    found += [array for snapshot in snapshots for array in (*snapshot.states, snapshot.logits)]
    arrays = [array for array in found if array is not None]
    assert all(array.base is None for array in arrays)
    return sum(array.nbytes for array in arrays)


@pytest.mark.parametrize("kind", GEOMETRIES)
def test_a_random_history_restores_what_the_tokens_left(kind):
    rows, generator = Rows(*GEOMETRIES[kind]), np.random.default_rng(0)
    prefixes, texts, lengths = PrefixCache(40_000), [], []
    for _ in range(400):
        # Texts begin like earlier ones, or like none.
        recent = texts[-9:] if generator.random() < 0.9 else []
        begin = recent[generator.integers(len(recent))] if recent else np.empty(0, np.int64)
        begin = begin[: generator.integers(len(begin) // 2, len(begin) + 1)]
        text = np.concatenate([begin, generator.integers(0, 3, generator.integers(1, 25))])[:CAPACITY]
        rows.cache.fill(np.nan)
        prefix = prefixes.restore(rows, 0, text)
        lengths.append(prefix.length)
        if prefix.length:
            assert prefix.length >= SHORTEST and rows.lengths[0] == prefix.length
            assert prefix.length < len(text) or prefix.logits[0] == text.sum()
            found = rows.content(0)
            rows.run(1, text[: prefix.length])
            for mine, expected in zip(found, rows.content(1), strict=True):
                np.testing.assert_array_equal(mine, expected)
        for branch in prefix.branches:
            rows.run(1, text[:branch])
            prefixes.keep(rows, 1, text[:branch])
        rows.run(1, text)
        prefixes.keep(rows, 1, text, np.array([text.sum()]))
        rows.cache.fill(-1)  # were memory shared, later texts would find this
        assert prefixes.bytes == held(prefixes) <= 40_000
        texts.append(text)
    assert np.count_nonzero(lengths) > 80 and max(lengths) > 30, np.count_nonzero(lengths)
    assert len({int(length) for length in lengths}) > 15


def test_a_prefix_ends_at_any_token_and_leaves_one_to_run():
    rows, prefixes = Rows(*GEOMETRIES["full"]), PrefixCache(10**6)
    text = list(range(40))
    rows.run(0, text)
    prefixes.keep(rows, 0, text)
    found = [prefixes.restore(rows, 1, prompt).length for prompt in (text, text[:20], [*text[:33], 7, 7], [7, *text])]
    assert found == [39, 19, 33, 0]
    assert prefixes.restore(rows, 1, [*text[: SHORTEST - 1], 99, 99]).length == 0
    assert prefixes.restore(rows, 1, [*text, 5], kind="other").length == 0


def test_states_are_found_where_kept_and_where_texts_part():
    rows, prefixes = Rows(*GEOMETRIES["states"]), PrefixCache(10**6)
    first, second, third = ([*range(20), *rest] for rest in ([50] * 9, [51] * 9, [52] * 9))
    rows.run(0, first)
    prefixes.keep(rows, 0, first, np.zeros(4))
    assert prefixes.restore(rows, 1, first).length == 29  # whole, since the logits are known
    found = prefixes.restore(rows, 1, second)
    assert (found.length, found.branches) == (0, (20,))
    rows.run(0, second[:20])
    prefixes.keep(rows, 0, second[:20])
    found = prefixes.restore(rows, 1, third)
    assert (found.length, found.branches) == (20, ())


def test_a_text_that_begins_like_a_long_one_takes_its_room():
    rows, text, other = Rows(*GEOMETRIES["full"]), [*range(60)], [*range(4), *range(100, 156)]
    prefixes = PrefixCache(80 * (rows.cache.bytes_per_token + 8))
    for each in (text, other):
        rows.run(0, each)
        prefixes.keep(rows, 0, each)
    assert prefixes.restore(rows, 1, [*other, 7]).length == 60
    assert prefixes.restore(rows, 1, [*text, 7]).length == 0, "four tokens are too few, and the rest is gone"
    assert prefixes.bytes == held(prefixes) <= prefixes.max_bytes


def test_states_are_kept_behind_the_last_picture_of_a_prompt():
    rows, prefixes = Rows(*GEOMETRIES["states"]), PrefixCache(10**6)
    picture = [*range(5), *range(PICTURE, PICTURE + 20), 7]
    first, second, other = [*picture, 50, 51], [*picture, 60, 61], [*picture[:20], 70, 71]
    assert prefixes.restore(rows, 0, first).branches == (25,)
    assert prefixes.restore(rows, 0, first[:25]).branches == (), "nothing is asked about it"
    rows.run(0, first[:25])
    prefixes.keep(rows, 0, first[:25])
    found = prefixes.restore(rows, 1, second)
    assert (found.length, found.branches) == (25, ())
    assert prefixes.restore(rows, 1, other).branches == (20,), "where it leaves the first one"


def test_common_beginnings_are_kept_once_and_the_oldest_goes():
    rows = Rows(*GEOMETRIES["full"])
    per_token = rows.cache.bytes_per_token + 8
    prefixes = PrefixCache(70 * per_token)
    texts = [[*range(20), *[50 + each] * 20] for each in range(4)]
    for text in texts[:2]:
        rows.run(0, text)
        prefixes.keep(rows, 0, text)
    assert prefixes.bytes == 60 * per_token
    assert prefixes.restore(rows, 1, texts[0]).length == 39  # used last now
    rows.run(0, texts[2])
    prefixes.keep(rows, 0, texts[2])
    assert [prefixes.restore(rows, 1, text).length for text in texts[:3]] == [39, 20, 39]
    assert prefixes.latest().tokens.tolist() == texts[2]
    long = list(range(100, 164))
    rows.run(0, long)
    PrefixCache(0).keep(rows, 0, long)
    small = PrefixCache(30 * per_token + 5)
    small.keep(rows, 0, long)
    assert small.restore(rows, 1, long).length == 30  # what fits


@pytest.mark.parametrize("kind", ["full", "states"])
def test_a_dynamic_cache_gives_and_takes_rows(kind):
    layers, _ = GEOMETRIES[kind]
    rows, prefixes, text = Rows(layers, kind=DynamicCache), PrefixCache(10**6), list(range(30))
    rows.run(0, text)
    before = rows.content(0)
    prefixes.keep(rows, 0, text)
    assert prefixes.restore(rows, 1, [*text, 1]).length == 30
    for mine, expected in zip(rows.content(1), before, strict=True):
        np.testing.assert_array_equal(mine, expected)


def test_integers_are_kept_as_they_are():
    rows, prefixes = Rows(*GEOMETRIES["full"], dtype=np.int8), PrefixCache(10**6)
    rows.run(0, [1] * 20)
    prefixes.keep(rows, 0, [1] * 20)
    assert prefixes.bytes == 20 * (4 * 6 + 8)
    prefixes.restore(rows, 1, [1] * 30)
    assert [array.dtype for array in rows.content(1)] == [np.int8] * 4


def test_a_wrong_number_of_bytes_is_refused():
    with pytest.raises(RequestError, match="prefix_cache_bytes is -1; it must be at least 0"):
        PrefixCache(-1)
