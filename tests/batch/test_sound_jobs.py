"""Jobs over rows with recordings beside texts: a column, and messages with parts."""

import base64
import io
import json
import wave

import numpy as np
import pytest
from rows_of_jobs import read_parquet, run

from edgeformer.errors import RequestError
from edgeformer.runtime import load

OPTIONS = {"generation": {"max_new_tokens": 5, "ignore_eos": True}}
AUDIO, TEXT = {"type": "audio"}, {"type": "text", "text": "What is said?"}


def wav(salt):
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(16_000)
        out.writeframes(np.random.default_rng(salt).integers(-3000, 3000, 6000).astype("<i2").tobytes())
    return file.getvalue()


SOUNDS = [wav(0), wav(1)]


def test_rows_with_recordings_are_answered(voxtral_bundle, tmp_path):
    model = load(voxtral_bundle, "cpu", 1)
    (tmp_path / "a.wav").write_bytes(SOUNDS[0])
    data = base64.b64encode(SOUNDS[1]).decode()
    part = {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
    rows = [
        {"messages": "What is said?", "audio": "a.wav"},
        {"messages": [{"role": "user", "content": [part, TEXT]}]},
        {"messages": [{"role": "user", "content": [AUDIO, TEXT]}], "audio": "a.wav"},
        {"messages": [{"role": "user", "content": [TEXT]}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]},
        {"messages": "What is said?", "audio": "none.wav"},
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    job, commits = run(voxtral_bundle, tmp_path / "rows.jsonl", tmp_path / "out", verb="chat", **OPTIONS)
    assert (job.media, job.medium, commits[0].errors) == ("audio", "recording", 2)
    found = read_parquet(tmp_path / "out")
    for row, (content, sounds) in zip(
        found, [([AUDIO, TEXT], SOUNDS[:1]), ([AUDIO, TEXT], SOUNDS[1:]), ([AUDIO, TEXT], SOUNDS[:1]), ([TEXT], [])],
        strict=False,
    ):  # fmt: skip
        messages = [{"role": "user", "content": content}]
        wanted = model.chat(messages, sounds=sounds, max_new_tokens=5, ignore_eos=True).finish()
        assert (row["output"], row["prompt_tokens"]) == (wanted.text, wanted.prompt_tokens)
    assert "a part of a message is a picture, and this bundle reads none" in found[4]["error"]
    assert "the recording" in found[5]["error"] and "none.wav cannot be read" in found[5]["error"]
    (tmp_path / "texts.jsonl").write_text(json.dumps({"prompt": "[AUDIO] a", "heard": "a.wav"}))
    run(voxtral_bundle, tmp_path / "texts.jsonl", tmp_path / "texts", sounds="heard", **OPTIONS)
    wanted = model.generate("[AUDIO] a", sounds=SOUNDS[0], max_new_tokens=5, ignore_eos=True).text
    assert read_parquet(tmp_path / "texts")[0]["output"] == wanted
    with pytest.raises(RequestError, match="images names a column of pictures, and this bundle reads none"):
        run(voxtral_bundle, tmp_path / "texts.jsonl", tmp_path / "no", images="heard", **OPTIONS)
