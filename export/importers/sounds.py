"""Compare what a bundle hears with transformers' own feature extractor and processor, before a model is exported.

The graph is verified from spectrograms on, so that a field of preprocessor_config.json that is read wrong would pass
every check. transformers' `from_pretrained` is the other reader of that file.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from edgeformer.checkpoints.source import ModelSource, text_only_instead
from edgeformer.config import SoundTextConfig, SoundTowerConfig
from edgeformer.contract.tensors import AUDIO_VALUES, FEATURE_MASK
from edgeformer.errors import ExportError, shown
from edgeformer.families.picture_text import load_seeing
from edgeformer.manifest.placeholders.placeholder import Placeholder
from edgeformer.runtime.media.pictures.placeholders import expand
from edgeformer.runtime.media.sound.audio import HOP, SAMPLE_RATE, Samples
from edgeformer.runtime.media.sound.recordings import windows_of
from edgeformer.runtime.text.tokenizer import Tokenizer

WINDOWS = (0.3, 1.0, 2.4)
"""Lengths of the recordings, in windows; a masked tower reads those that fit into one."""

LIMIT = 1e-4
"""Largest difference of values, which span 2: transformers transforms in float32, and loses some of what is silent."""

PROMPTS = ("{}{} Which of both is {}?", "Hear:\n{}\nand {}{}")
"""Prompts of three recordings that are compared: first, adjacent, between line breaks, last."""


def noises(tower: SoundTowerConfig) -> list[Samples]:
    """Return recordings of noise in front of silence, some of them louder at their ends."""
    lengths = [int(part * tower.frames * HOP) for part in WINDOWS if part <= 1 or not tower.masked]
    rng = np.random.default_rng(0)
    noise = [rng.standard_normal(length).astype(np.float32) for length in lengths]
    return [each * np.linspace(0.01, 0.3, len(each), dtype=np.float32) for each in noise]


def compare_sounds(source: ModelSource, placeholder: Placeholder, folder: Path | None) -> tuple[str, ...]:
    """Return why something was not compared, as warnings; nothing where spectrograms and ids of prompts agree.

    folder: of the tokenizer. Raises ExportError where they differ.
    """
    import transformers

    config = source.config
    assert isinstance(config, SoundTextConfig) and folder is not None
    recordings = noises(config.tower)
    try:
        extractor = transformers.WhisperFeatureExtractor.from_pretrained(source.folder, local_files_only=True)
        found = [their_windows(extractor, samples, config.tower) for samples in recordings]
    except Exception as error:  # of any class: what a feature extractor lacks shows anywhere in its constructor
        reason = shown(str(error), 200)
        return (f"transformers cannot run the feature extractor, so its spectrograms were not compared: {reason}.",)
    for samples, theirs in zip(recordings, found, strict=True):
        ours = windows_of(samples, config.tower)
        for name, expected in theirs.items():
            mine = np.concatenate([each[name] for each in ours])
            difference = np.abs(mine - expected).max() if mine.shape == expected.shape else np.inf
            if not difference <= LIMIT:
                raise ExportError(
                    f"edgeformer does not make of a recording what {type(extractor).__name__} of transformers makes of "
                    f"it by the same files: {name} {mine.shape} and {expected.shape} differ by {difference:.1e}, and "
                    f"{LIMIT:.0e} is allowed. Nothing was exported: please report it with the model's "
                    "preprocessor_config.json."
                )
    return _compare_prompts(source, config, placeholder, folder, (recordings * 3)[:3])


def their_windows(extractor: Any, samples: Samples, tower: SoundTowerConfig) -> dict[str, Any]:
    """Return what transformers' processors make of a recording: windows, and their mask where there is one."""
    size = tower.frames * HOP
    if tower.masked:
        found = extractor(
            samples, sampling_rate=SAMPLE_RATE, return_attention_mask=True, padding="max_length", return_tensors="np"
        )
        return {AUDIO_VALUES: found["input_features"], FEATURE_MASK: found["attention_mask"]}
    from transformers import VoxtralProcessor

    options = {**VoxtralProcessor.audio_kwargs, "pad_to_multiple_of": size}  # 30 seconds, in published models
    options.pop("max_source_positions")
    holder: Any = SimpleNamespace(feature_extractor=extractor)
    found = VoxtralProcessor._retrieve_input_features(holder, [samples], tower.frames, **options)
    return {AUDIO_VALUES: found.numpy()}


def _compare_prompts(
    source: ModelSource, config: SoundTextConfig, placeholder: Placeholder, folder: Path, sounds: list[Samples]
) -> tuple[str, ...]:
    """Compare the ids of prompts; return why not, as a warning."""
    import transformers

    family = load_seeing(source.hf_config)
    assert family is not None
    tokenizer = Tokenizer(folder)
    mark = family.marks(tokenizer.config).spelled
    prompts = [prompt.format(mark, mark, mark) for prompt in PROMPTS]
    grids = [config.tokens_of(len(samples), HOP) for samples in sounds]
    try:
        processor = transformers.AutoProcessor.from_pretrained(source.folder, local_files_only=True)
        found = [processor(text=[prompt], audio=sounds, sampling_rate=SAMPLE_RATE) for prompt in prompts]
        expected = [[int(id) for id in each["input_ids"][0]] for each in found]
    except (
        Exception
    ) as error:  # of any class, as above; Voxtral's takes no prompts, but conversations by mistral-common
        reason = shown(str(error), 200)
        return (f"transformers cannot run the processor, so the ids of its prompts were not compared: {reason}.",)
    for prompt, ids in zip(prompts, expected, strict=True):
        ours = expand(tokenizer.encode(prompt), placeholder, grids)
        if ours != ids:
            raise ExportError(
                f"edgeformer does not make of a prompt with recordings what {type(processor).__name__} of transformers "
                f"makes of it by the same files: {len(ours)} and {len(ids)} tokens. Nothing was exported: please "
                f"report it with the model's tokenizer.{text_only_instead(source.hf_config['model_type'])}"
            )
    return ()
