"""Streamed text is the decoded text: nothing shown is taken back, and stop strings cut where a naive search does."""

import gc
import weakref

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeformer.runtime import load
from edgeformer.runtime.text.streaming import TextStream

UNKNOWN = 100_000
"""A token id beyond the vocabulary, as models with padded vocabularies can emit."""


def _pieces(tokenizer, tokens, stop=()):
    """What is shown after each token, and last what `flush` adds; stops feeding as the generation loop does."""
    stream = TextStream(tokenizer, stop)
    pieces = []
    for token in tokens:
        pieces.append(stream.push(token))
        if stream.stopped:
            break
    return [*pieces, stream.flush()], stream


def _ids(tokenizer, names):
    ids = [tokenizer.backend.token_to_id(name) for name in names]
    assert None not in ids
    return ids


def _draw_tokens(data, tokenizer, sentences):
    """Sentences, parts of them and any tokens at all, in any order."""
    ids = st.integers(0, tokenizer.backend.get_vocab_size() - 1)
    parts = st.sampled_from(sentences).map(lambda text: tokenizer.encode(text, add_special_tokens=False))
    cuts = st.tuples(parts, st.integers(0, 30), st.integers(0, 30)).map(lambda cut: cut[0][cut[1] : cut[1] + cut[2]])
    chunks = st.lists(st.one_of(cuts, st.lists(ids, max_size=3), st.just([UNKNOWN])), max_size=6)
    return [token for chunk in data.draw(chunks) for token in chunk]


@settings(max_examples=300, deadline=None, derandomize=True)
@given(data=st.data())
def test_pieces_join_to_the_text_and_none_is_taken_back(tokenizer, sentences, data):
    tokens = _draw_tokens(data, tokenizer, sentences)
    pieces, stream = _pieces(tokenizer, tokens)
    text = tokenizer.decode(tokens)
    shown = ""
    for piece in pieces:
        shown += piece
        # Half a character shown as U+FFFD would not be a prefix once its other half has come.
        assert text.startswith(shown)
    assert shown == text
    assert not stream.stopped


def test_a_text_that_is_read_at_its_end_is_decoded_once(byte_level, monkeypatch):
    tokens = byte_level.encode("The quick brown fox. Où êtes-vous?", add_special_tokens=False)
    stream, decoded = TextStream(byte_level).at_end(), []
    decode = byte_level.decode
    monkeypatch.setattr(byte_level, "decode", lambda ids: decoded.append(list(ids)) or decode(ids))
    assert [stream.push(token) for token in tokens] == [""] * len(tokens)
    assert stream.flush() == "The quick brown fox. Où êtes-vous?" and decoded == [tokens]
    watched = TextStream(byte_level, [" fox"])
    assert watched.at_end() is watched, "a stop string is looked for in every piece"


@settings(max_examples=300, deadline=None, derandomize=True)
@given(data=st.data())
def test_stop_strings_cut_the_text_as_soon_as_one_is_complete(tokenizer, sentences, data):
    tokens = _draw_tokens(data, tokenizer, sentences)
    text = tokenizer.decode(tokens)
    place = st.integers(0, max(0, len(text) - 1))
    inside = st.tuples(place, st.integers(1, 6)).map(lambda cut: text[cut[0] : cut[0] + cut[1]])
    stop = data.draw(st.lists(st.one_of(inside, st.sampled_from(["\n", "e", "The dog", "好,", "zz"])), max_size=3))
    stop = [string for string in stop if string and "\N{REPLACEMENT CHARACTER}" not in string]

    expected, taken, stopped = text, len(tokens), False
    for count in range(1, len(tokens) + 1):
        decoded = tokenizer.decode(tokens[:count])
        if found := [decoded.index(string) for string in stop if string in decoded]:
            expected, taken, stopped = decoded[: min(found)], count, True
            break

    pieces, stream = _pieces(tokenizer, tokens, stop)
    assert "".join(pieces) == expected
    assert stream.stopped == stopped
    assert len(pieces) == taken + 1, "it stops at the token that completes the stop string"
    shown = ""
    for piece in pieces:
        shown += piece
        assert expected.startswith(shown)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(data=st.data())
def test_a_stop_string_cuts_at_its_first_occurrence(tokenizer, sentences, data):
    tokens = tokenizer.encode(data.draw(st.sampled_from(sentences)), add_special_tokens=False)
    text = tokenizer.decode(tokens)
    start = data.draw(st.integers(0, len(text) - 1))
    stop = text[start : start + data.draw(st.integers(1, 8))]
    pieces, stream = _pieces(tokenizer, tokens, [stop])
    assert "".join(pieces) == text[: text.index(stop)]
    assert stream.stopped


def test_text_comes_as_soon_as_its_characters_are_whole(byte_level):
    tokens = [byte_level.backend.token_to_id(name) for name in ("a", *"ä½ł", "b")]  # a, the three bytes of 你, b
    assert byte_level.decode(tokens) == "a你b"
    assert _pieces(byte_level, tokens)[0] == ["a", "", "", "你", "b", ""]


def test_half_a_character_at_the_end_is_flushed(byte_level):
    tokens = _ids(byte_level, ["a", "ä", "½"])
    assert _pieces(byte_level, tokens)[0] == ["a", "", "", "\N{REPLACEMENT CHARACTER}"]


def test_a_run_of_byte_tokens_is_shown_when_it_has_ended(byte_fallback):
    # The decoder turns the whole run into U+FFFD where one byte is bad, so none of it is settled before its end.
    newline, bad, the = _ids(byte_fallback, ["<0x0A>", "<0xF0>", "▁The"])
    assert _pieces(byte_fallback, [the, newline, the])[0] == ["The", "", "\n The", ""]
    assert _pieces(byte_fallback, [the, newline, bad, the])[0] == ["The", "", "", "\ufffd\ufffd The", ""]
    assert _pieces(byte_fallback, [the, newline])[0] == ["The", "", "\n"]


def test_a_newline_that_is_a_byte_token_stops_at_once(byte_fallback):
    newline, the = _ids(byte_fallback, ["<0x0A>", "▁The"])
    pieces, stream = _pieces(byte_fallback, [the, newline, the], ["\n"])
    assert pieces == ["The", "", ""]
    assert stream.stopped


@pytest.mark.parametrize("between", ["</s>", None])
def test_tokens_without_text_leave_a_character_whole(byte_fallback, between):
    first, second, third, the = _ids(byte_fallback, ["<0xE4>", "<0xBB>", "<0x8A>", "▁The"])
    other = UNKNOWN if between is None else byte_fallback.backend.token_to_id(between)
    tokens = [the, first, other, second, other, third, other, the, other]
    assert "".join(_pieces(byte_fallback, tokens)[0]) == byte_fallback.decode(tokens) == "The今 The"


def test_special_tokens_are_not_shown(byte_level):
    tokens = _ids(byte_level, ["<|begin|>", "a", "<|end|>", "b"])
    assert _pieces(byte_level, tokens)[0] == ["", "a", "", "b", ""]


def test_the_first_space_is_dropped_and_later_ones_are_kept(byte_fallback, metaspace):
    for tokenizer in (byte_fallback, metaspace):
        tokens = _ids(tokenizer, ["▁The", "▁dog", "▁", "▁dog", "", "▁dog"])
        assert "".join(_pieces(tokenizer, tokens)[0]) == tokenizer.decode(tokens) == "The dog  dog dog"


@pytest.mark.parametrize(
    ("text", "stop", "pieces"),
    [
        ("xabc", ["abc"], ["x", "", "", "", ""]),  # split over tokens
        ("xabd", ["abc"], ["x", "", "", "abd", ""]),  # held back, then released
        ("xab", ["abc"], ["x", "", "", "ab"]),  # held back until the end
        ("xabcd", ["abcd", "abc"], ["x", "", "", "", ""]),  # the shorter one is complete first
        ("aaab", ["aab"], ["", "", "a", "", ""]),  # a beginning that fails holds the next one
        ("xabcd", ["abcx", "bcd"], ["x", "", "", "", "a", ""]),  # one begins inside another that does not come
        ("xabc", ["c", "abc"], ["x", "", "", "", ""]),  # both complete at once: the earlier beginning cuts
        ("xabcy", ["bc", "abcd"], ["x", "", "", "a", ""]),  # a complete one does not wait for a longer one
        ("abc", [""], ["a", "b", "c", ""]),  # an empty one never stops
        ("abc", ["a"], ["", ""]),  # nothing is left
    ],
)
def test_stop_strings_hold_back_only_what_may_still_begin_them(byte_level, text, stop, pieces):
    assert _pieces(byte_level, _ids(byte_level, text), stop)[0] == pieces


def test_nothing_is_shown_after_a_stop_string(byte_level):
    stream = TextStream(byte_level, ["b"])
    assert [stream.push(token) for token in _ids(byte_level, "abcd")] == ["a", "", "", ""]
    assert stream.flush() == ""


def test_a_stop_string_may_end_inside_a_token(byte_fallback):
    pieces, stream = _pieces(byte_fallback, _ids(byte_fallback, ["▁The", "▁dog", "▁The"]), [" d"])
    assert "".join(pieces) == "The"
    assert stream.stopped


def test_the_property_notices_token_by_token_decoding(byte_level):
    tokens = _ids(byte_level, "ä½ł")
    assert "".join(byte_level.decode([token]) for token in tokens) != byte_level.decode(tokens)


def test_a_stream_that_is_dropped_takes_its_cache_along(tiny_llama_bundle):
    model = load(tiny_llama_bundle)
    gc.disable()
    try:
        for take in (lambda stream: next(stream), lambda stream: stream.finish(), lambda stream: stream.cancel()):
            stream = model.stream("Once", max_new_tokens=8, prompt_lookup_num_tokens=2)
            decoder = weakref.ref(stream._scheduler._decoder)
            take(stream)
            assert decoder() is not None
            del stream
            assert decoder() is None, "a circle of references waits for the garbage collector"
    finally:
        gc.enable()
