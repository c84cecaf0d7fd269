"""The rules of times, and how tokens are divided at them, are those of Whisper in transformers."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers.generation.logits_process import WhisperTimeStampLogitsProcessor
from transformers.models.whisper.generation_whisper import WhisperGenerationMixin

from edgeformer.runtime.tasks.speech import Segment, subtitles
from edgeformer.runtime.tasks.speech.timestamps import TimestampRules, divide

FIRST, END, VOCABULARY = 40, 30, 90
PROMPT = [31, 32, 33]


def texts(count=300):
    """Token ids as the rules allow them, and as they do not: words, and times that never decrease."""
    for seed in range(count):
        random = np.random.default_rng(seed)
        time, tokens = FIRST, []
        for _ in range(random.integers(0, 9)):
            if random.random() < 0.6:
                time = min(time + int(random.integers(0, 12)), VOCABULARY - 1)
                tokens.append(time)
            else:
                tokens.append(int(random.integers(0, END)))
        yield random, tokens


def ruled_by_transformers(tokens, logits, latest):
    config = SimpleNamespace(
        no_timestamps_token_id=FIRST - 1, eos_token_id=END, bos_token_id=END, max_initial_timestamp_index=latest
    )
    rules = WhisperTimeStampLogitsProcessor(config, begin_index=len(PROMPT))
    return rules(torch.tensor([PROMPT + tokens]), torch.from_numpy(logits)[None])[0].numpy()


@pytest.mark.parametrize("latest", [None, 5])
def test_the_tokens_that_may_come_are_those_of_transformers(latest):
    allowed = set()
    for random, tokens in texts():
        logits = random.normal(size=VOCABULARY).astype(np.float32) * 3
        if random.random() < 0.5:
            logits[FIRST:] -= 5  # so that words win, too
        expected = ruled_by_transformers(tokens, logits, latest)
        ids = np.array(PROMPT + tokens, np.int64)
        found = TimestampRules(FIRST, END, len(PROMPT), latest)(ids, logits.copy())
        np.testing.assert_array_equal(found, expected)
        allowed.add(tuple(np.isfinite(expected)))
    assert len(allowed) > 50


@pytest.mark.parametrize("change", [{"first_time": FIRST + 1}, {"end": END + 1}, {"prompt_length": 4}, {"latest": 6}])
def test_other_rules_are_noticed(change):
    # Negative control.
    arguments = {"first_time": FIRST, "end": END, "prompt_length": len(PROMPT), "latest": 5} | change
    different = 0
    for random, tokens in texts(100):
        logits = random.normal(size=VOCABULARY).astype(np.float32)
        found = TimestampRules(*arguments.values())(np.array(PROMPT + tokens, np.int64), logits.copy())
        different += not np.array_equal(found, ruled_by_transformers(tokens, logits, 5))
    assert different


def divided_by_transformers(tokens, frames):
    pieces, moved = WhisperGenerationMixin._retrieve_segment(
        seek_sequence=torch.tensor(tokens, dtype=torch.long),
        seek_outputs=[{}],
        time_offset=torch.zeros(1, dtype=torch.float64),
        timestamp_begin=FIRST,
        seek_num_frames=torch.tensor([frames]),
        time_precision=0.02,
        time_precision_features=0.01,
        input_stride=2,
        prev_idx=0,
        idx=0,
        return_token_timestamps=False,
        decoder_input_ids=torch.zeros(1, 3),
    )
    ends = [(round(float(each["start"]), 6), round(float(each["end"]), 6), each["tokens"].tolist()) for each in pieces]
    return ends, int(moved)


@pytest.mark.parametrize("frames", [100, 33, 1])
def test_segments_are_those_of_transformers(frames):
    counts = set()
    for _, tokens in texts():
        pieces, moved = divide(tokens, FIRST, frames)
        found = [(round(piece.start * 0.02, 6), round(piece.end * 0.02, 6), piece.tokens) for piece in pieces]
        assert (found, moved) == divided_by_transformers(tokens, frames), tokens
        counts.add(len(pieces))
    assert counts >= {1, 2, 3}


def test_subtitles_are_numbered_and_timed():
    def said(start, end, text):
        figures = {"temperature": 0.0, "avg_logprob": -0.5, "compression_ratio": 1.0, "no_speech_prob": None, "seek": 0}
        return Segment(start=start, end=end, text=text, token_ids=[], **figures)

    segments = [said(0, 1.5, "Who is there?"), said(3661.04, 3662, "<b> & --> c")]
    assert subtitles(segments, "srt") == (
        "1\n00:00:00,000 --> 00:00:01,500\nWho is there?\n\n2\n01:01:01,040 --> 01:01:02,000\n<b> & -> c\n"
    )
    assert subtitles(segments, "vtt") == (
        "WEBVTT\n\n00:00:00.000 --> 00:00:01.500\nWho is there?\n\n01:01:01.040 --> 01:01:02.000\n&lt;b> &amp; -> c\n"
    )
    assert (subtitles([], "srt"), subtitles([], "vtt")) == ("", "WEBVTT\n")
