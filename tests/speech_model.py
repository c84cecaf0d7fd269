"""A tiny random Whisper that writes times, in transformers and as a bundle; it hears one second at a time."""

import json
from types import SimpleNamespace

import numpy as np
import tokenizers
import transformers

from edgeformer.export import export_model
from edgeformer.runtime import load
from edgeformer.runtime.media.sound.audio import SAMPLE_RATE

WORDS = 100
NAMES = [
    "endoftext", "startoftranscript", "en", "de", "fr", "translate", "transcribe", "startofprev", "nospeech",
    "notimestamps",
]  # fmt: skip
IDS = {name: WORDS + place for place, name in enumerate(NAMES)}
END, START, FIRST_TIME = IDS["endoftext"], IDS["startoftranscript"], IDS["notimestamps"] + 1
TIMES = 51
VOCABULARY = FIRST_TIME + TIMES
LAYERS = {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "num_mel_bins": 8,
    "max_source_positions": 50,
}  # fmt: skip
SIZES = LAYERS | {"vocab_size": VOCABULARY, "max_target_positions": 64}
TOKENS = {"decoder_start_token_id": START, "bos_token_id": END, "eos_token_id": END, "pad_token_id": END}
GENERATION = TOKENS | {
    "max_length": 64,
    "suppress_tokens": [1, 2, 7, 8, *range(START, FIRST_TIME - 1)],
    "begin_suppress_tokens": [5, END],
    "no_timestamps_token_id": FIRST_TIME - 1,
    "max_initial_timestamp_index": 20,
    "prev_sot_token_id": IDS["startofprev"],
    "is_multilingual": True,
    "lang_to_id": {f"<|{code}|>": IDS[code] for code in ("en", "de", "fr")},
    "task_to_id": {task: IDS[task] for task in ("translate", "transcribe")},
}
SAMPLE_OPTIONS = {"no_repeat_ngram_size": 2}
"""A random model would say one word forever."""


def write_tokenizer(folder, names=NAMES):
    """Write a tokenizer.json that has a word for each id, and no times, as Whisper's first ones."""
    special = {f"<|{name}|>": WORDS + place for place, name in enumerate(names)}
    vocabulary = {f"w{token}": token for token in range(WORDS)} | special
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, "w0"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens(list(special))
    backend.save(str(folder / "tokenizer.json"))


def tones(seed, seconds):
    """A few tones that come and go, unlike those of other seeds."""
    random = np.random.default_rng(seed)
    time = np.arange(round(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    waves = np.sin(random.uniform(100, 6000, (4, 1)) * 2 * np.pi * time)
    loudness = np.sin(random.uniform(1, 8, (4, 1)) * time + random.uniform(0, 6, (4, 1))) ** 2
    return (waves * loudness).mean(0).astype(np.float32)


def speech_model(make_model, folder, seed=11, **generation):
    """The same model as a bundle (`ours`) and in transformers (`theirs`)."""
    checkpoint = make_model("whisper", seed, auto="AutoModelForSpeechSeq2Seq", **SIZES, **TOKENS)
    (checkpoint / "generation_config.json").write_text(json.dumps(GENERATION | generation))
    write_tokenizer(checkpoint)
    bundle = export_model(checkpoint, folder / "whisper", verify=None).path
    theirs = transformers.WhisperForConditionalGeneration.from_pretrained(checkpoint)
    return SimpleNamespace(ours=load(bundle, "cpu", 1), theirs=theirs, path=bundle, checkpoint=checkpoint)
