"""Run the graphs of an encoder-decoder: the encoder once per request, the decoder over its outputs."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeformer.config import Seq2SeqConfig
from edgeformer.errors import RequestError
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.pictures.fixed_size import FixedSizeProcessor
from edgeformer.runtime.caches.encoder_outputs import EncoderOutputs, check_length, pad_right
from edgeformer.runtime.media.pictures.picture_files import Picture
from edgeformer.runtime.media.pictures.processors.fixed_size import FixedSize
from edgeformer.runtime.media.sound.audio import Spectrogram, log_mel
from edgeformer.runtime.media.sound.sound_files import load_audio
from edgeformer.runtime.request_values import naming_entry
from edgeformer.runtime.sessions.narrow_floats import stored
from edgeformer.runtime.sessions.session import CACHE_DTYPES, SessionSettings, check_tensors
from edgeformer.runtime.steps.new_decoder import new_decoder
from edgeformer.runtime.steps.runner import StepRunner
from edgeformer.runtime.tasks.model import Model, Text
from edgeformer.runtime.tasks.speech.alignment import cross_attentions
from edgeformer.runtime.tasks.speech.prompt import window_seconds
from edgeformer.runtime.tasks.vision.picture_reader import named_pictures

Source = Text | Path | NDArray[np.floating[Any]] | Spectrogram | Picture
"""A text or its token ids; of a speech model, a sound file, mono samples [N] at 16 kHz, or a window's spectrogram; of a
model that reads pictures, one."""


class EncoderDecoder(Model):
    """The graphs of an encoder-decoder, and the token ids or audio features that they take."""

    def __init__(self, folder: Path, manifest: Manifest, settings: SessionSettings):
        super().__init__(folder, manifest, settings)
        assert isinstance(manifest.model, Seq2SeqConfig) and manifest.encoder_graph is not None
        self._encoder_config, self.reads_text = manifest.model.encoder, manifest.model.reads_text
        self._encoder = self._open_graph(manifest.encoder_graph)
        across = manifest.model.decoder.cross_geometry
        assert across is not None
        tensors = across.tensors("encoder.")
        outputs = ["last_hidden_state", *(tensor.present for tensor in tensors)]
        check_tensors(self._encoder, manifest.encoder_graph, [], outputs)
        check_tensors(self.session, manifest.step_graphs[-1], (tensor.past for tensor in tensors), [])

    @property
    def is_speech(self) -> bool:
        """Whether sources are recordings."""
        return self._encoder_config.audio is not None

    @property
    def window_seconds(self) -> int:
        """Seconds of sound that the encoder of a speech model takes at once."""
        return int(window_seconds(self._encoder_config.context_length))

    @property
    def source_positions(self) -> int:
        """Positions of the encoder, as many as each picture or window of sound has."""
        return self._encoder_config.context_length

    def run_encoder(self, sources: Sequence[Source], copies: int = 1) -> EncoderOutputs:
        """Run the encoder on sources; return its outputs, with `copies` rows of the decoder for each source."""
        return self.run_encoder_inputs(*self.encoder_inputs(sources), kept_by(sources)).repeated(copies)

    def encoder_inputs(self, sources: Sequence[Source]) -> tuple[dict[str, NDArray[Any]], NDArray[np.int64]]:
        """Return the encoder's inputs for sources, by name, and their mask: int64 [B, longest]."""
        if self.reads_text:
            return self._token_ids(sources)
        return self._audio_features(sources) if self.is_speech else self._pixel_values(sources)

    def run_encoder_inputs(
        self, inputs: Mapping[str, NDArray[Any]], mask: NDArray[np.int64], kept: list[EncoderOutputs] | None = None
    ) -> EncoderOutputs:
        """Run the encoder on what `encoder_inputs` returned; with `kept`, take its outputs from there, or put them."""
        if kept and kept[0].session is self._encoder:
            return kept[0]
        outputs = EncoderOutputs.run(self._encoder, self.manifest, inputs, mask, self.provider)
        if kept is not None:
            kept[:] = [outputs]
        return outputs

    def new_decoder(self, encoder_outputs: EncoderOutputs, capacity: int) -> StepRunner:
        """Return a decoder with an empty cache of up to `capacity` tokens for every row of the encoder outputs."""
        rows = len(encoder_outputs.mask)
        return new_decoder(self.session, self.manifest, rows, capacity, self.provider, encoder_outputs)

    def forward(self, source: Source, token_ids: Sequence[int]) -> NDArray[np.float32]:
        """Return the logits after the decoder's start token and after each token of one text: float32 [1 + S, V]."""
        tokens = [*self.start_prompt(None), *self.encode(token_ids)]
        check_length(len(tokens), self.manifest.context_length, "the text")
        return self.new_decoder(self.run_encoder([source]), len(tokens)).prefill_all(0, tokens)

    def cross_attentions(self, source: Source, token_ids: Sequence[int]) -> NDArray[np.float32]:
        """Return how much each token of a text reads each position of a recording: float32 [heads, S, positions].

        token_ids: of the text, its first tokens included. The heads are those of the manifest's alignment graph, in
        its order. Raises RequestError for a bundle without such a graph.
        """
        if self.manifest.alignment is None:
            raise RequestError("this bundle has no alignment graph; only speech models with alignment_heads have one.")
        tokens = self.encode(token_ids)
        check_length(len(tokens), self.manifest.context_length, "the text")
        outputs = self.run_encoder([source])
        row = np.array([tokens], np.int64)
        return cross_attentions(self._alignment, self.manifest, self.provider, outputs, row)[0]

    @cached_property
    def _alignment(self) -> Any:
        """The session of the alignment graph, which is opened for the first words: its weights take memory again."""
        assert self.manifest.alignment is not None
        return self._open_graph(self.manifest.alignment.file)

    def encode_sources(self, sources: Sequence[Any]) -> list[list[int]]:
        """Return the token ids of each source, which is not a recording."""
        config, encoded = self._encoder_config, []
        for row, source in enumerate(sources):
            with naming_entry("source", row, source, of=len(sources)):
                encoded.append(self.encode(source, "source", config.vocab_size, config.context_length))
        return encoded

    def _token_ids(self, sources: Sequence[Any]) -> tuple[dict[str, NDArray[Any]], NDArray[np.int64]]:
        """Return the encoder's inputs for texts, padded on the right, and their mask: int64 [B, longest]."""
        rows = self.encode_sources(sources)
        for tokens in rows:
            check_length(len(tokens), self._encoder_config.context_length, "the source")
        ids, mask = pad_right(rows, self.manifest.tokens.pad or 0)
        return {"input_ids": ids, "attention_mask": mask}, mask

    def _audio_features(self, recordings: Sequence[Any]) -> tuple[dict[str, NDArray[Any]], NDArray[np.int64]]:
        """Return the encoder's inputs for recordings, [B, mel bins, frames], and their mask [B, positions]."""
        audio = self._encoder_config.audio
        assert audio is not None
        samples = [load_audio(each) if isinstance(each, str | Path) else each for each in recordings]
        features = np.stack(
            [
                each.features if isinstance(each, Spectrogram) else log_mel(each, audio.mel_bins, self.window_seconds)
                for each in samples
            ]
        )
        mask = np.ones((len(recordings), self._encoder_config.context_length), np.int64)
        return {"input_features": stored(features, CACHE_DTYPES[self.manifest.plan.arithmetic])}, mask

    @cached_property
    def processor(self) -> FixedSize:
        """The processor of a model that reads pictures, which makes pixel values of them."""
        assert isinstance(self.manifest.pictures, FixedSizeProcessor), "`open_source` has checked it"
        return FixedSize(self.manifest.pictures)

    def _pixel_values(self, pictures: Sequence[Any]) -> tuple[dict[str, NDArray[Any]], NDArray[np.int64]]:
        """Return the encoder's inputs for pictures, [B, 3, height, width], and their mask [B, positions]."""
        named = named_pictures(pictures)
        values = np.stack([self.processor.pixel_values(each, name=name) for each, name in named])
        return {"pixel_values": values}, np.ones((len(values), self._encoder_config.context_length), np.int64)

    def start_prompt(self, prompt: Sequence[int] | None) -> list[int]:
        """Return the decoder's first tokens: the given ones, checked, or the model's start token."""
        if prompt is not None:
            return self.encode(prompt)
        tokens = self.manifest.tokens
        start = self.manifest.generation.get("decoder_start_token_id", tokens.bos)
        start = tokens.pad if start is None else start  # T5's configs leave it out
        if start is None:
            raise RequestError(
                "the model's config has no decoder_start_token_id; give the decoder's first tokens: prompt=[…]."
            )
        return self.encode([start], "decoder_start_token_id")


def kept_by(sources: Sequence[Source]) -> list[EncoderOutputs] | None:
    """Return where the encoder's outputs for a window are kept; None for other sources, which come once."""
    only = sources[0] if len(sources) == 1 else None
    return only.outputs if isinstance(only, Spectrogram) else None
