"""The trial of an encoder-decoder: each graph by itself, and both together on padded sources.

sources ─→ float64 and eager: states, keys and values for the decoder, logits of the targets ─────────────┐
    └────→ encoder graph: the same, alone and padded ─→ decoder graph: prefill, steps, chunks, batches ───┴→ checks
                                                    ├→ merged decoder: prefill, steps, a batch ───────────┤
                                                    └→ alignment graph: weights of the alignment heads ───┘
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgeformer.config import Seq2SeqConfig
from edgeformer.export.graph.tensors import to_numpy
from edgeformer.export.parity import feeding
from edgeformer.export.parity.feeding import Graph, Side
from edgeformer.export.parity.figures import worst_of
from edgeformer.export.parity.judge import Caches
from edgeformer.export.parity.locate.cut_graph import ELEMENT_TYPES
from edgeformer.export.parity.samples import random_tokens
from edgeformer.export.parity.trials.protocol import Array, Outputs, Row, Setup, TextTrial, first_tokens, row_of
from edgeformer.export.reference.reference import Reference
from edgeformer.manifest.graph_forms import AlignmentHead
from edgeformer.runtime.caches.encoder_outputs import EncoderOutputs, pad_right
from edgeformer.runtime.sessions.narrow_floats import numbers_of, stored
from edgeformer.runtime.sessions.session import CACHE_DTYPES
from edgeformer.runtime.tasks.speech.alignment import cross_attentions

ALIGNMENT = "alignment"
"""The weights of the alignment heads, among the vectors of a row."""

PROMPT = 2
"""Tokens of the target that the decoder is given before it generates."""


class EncoderDecoderTrial(TextTrial):
    """The trial of an encoder graph, of the decoder graph that reads its outputs, and of other decoders, if any."""

    text = "target"

    def __init__(self, setup: Setup, sessions: Sequence[Any]):
        super().__init__(setup, sessions)
        assert isinstance(setup.model_spec.config, Seq2SeqConfig)
        self.config = setup.model_spec.config
        source_geometry = self.config.decoder.cross_geometry
        assert source_geometry is not None
        self.source_geometry = source_geometry
        self.encoder, others = sessions[0], list(sessions[2:])
        self.merged = others.pop(0) if "merged" in setup.manifest.graphs else None
        self.alignment = setup.manifest.alignment
        self.aligned = others.pop(0) if self.alignment is not None else None

    def run(self) -> None:
        """Run every check of the extent."""
        extent, progress = self.extent, self.setup.progress
        count, vocab_size = max(extent.batches), self.config.vocab_size
        sources = [self._source(index) for index in range(count)]
        targets = [random_tokens(extent.main, vocab_size, salt=100 + index) for index in range(count)]
        progress("generating with the graph", 0.0)
        prompt = random_tokens(PROMPT, vocab_size, salt=99)
        text, logits = feeding.greedy(self._decoder(sources[:1]), prompt, extent.greedy)
        rows = []
        for index, (source, target) in enumerate(zip(sources, targets, strict=True)):
            progress("computing the float64 reference", 0.1 + 0.4 * index / count)
            rows.append(self._row(source, target))
        generated = self._row(sources[0], text)
        self.judge.eager_worst = worst_of(row.eager_errors() for row in (*rows, generated))
        self.judge_greedy(generated, logits, PROMPT)
        progress("running the encoder", 0.5)
        self._judge_encoder(rows)
        progress("running the decoder", 0.6)
        whole, decoder = feeding.prefill(self.graph_for(rows[:1]), rows[0].tokens)
        self.judge.logits("prefill", "a target in one run", [rows[0].piece(whole)])
        self.judge.states = self.judge_caches("prefill", rows[0], decoder)
        self.judge_pieces(rows[0], whole, caches=False)
        progress("running batches", 0.8)
        for size in extent.batches:
            self.judge_batch(rows[:size], extent.main)
        self.judge_identity(rows[0], "the same source and target again")
        self._judge_padding(rows)
        if self.merged is not None:
            progress("running the merged decoder", 0.9)
            self._judge_merged(rows)
        if self.aligned is not None:
            progress("running the alignment graph", 0.95)
            self._judge_alignment(rows)

    def graph_for(self, rows: Sequence[Row]) -> Graph:
        """Return the decoder graph, reading what the encoder graph computes for the padded sources of these rows."""
        return self._decoder([row.source for row in rows])

    def describe_batch(self, count: int, side: Side) -> str:
        """Name the targets of a batch."""
        return f"{count} padded sources, {side}-padded targets"

    def _source(self, index: int) -> Array:
        """Return random tokens, shorter for each index; of speech and pictures, noise of the one size that is read."""
        encoder = self.config.encoder
        if encoder.kind == "vision":
            [grid] = encoder.sample_grids
            return np.random.default_rng(index).standard_normal(encoder.values_shape(grid), np.float32)
        if encoder.audio is not None:
            shape = encoder.audio.mel_bins, 2 * encoder.context_length
            noise = np.random.default_rng(index).normal(size=shape)
            return stored(noise, CACHE_DTYPES[self.setup.manifest.plan.arithmetic])
        length = max(1, min(self.extent.main, encoder.context_length) // (1 + index))
        return random_tokens(length, encoder.vocab_size, salt=index)

    def _encode(self, sources: list[Array], padding: int = 0) -> EncoderOutputs:
        """Run the encoder graph on sources that are padded on the right with a token."""
        if not self.config.reads_text:
            inputs = {"input_features" if self.config.is_speech else "pixel_values": np.stack(sources)}
            mask = np.ones((len(sources), self.config.encoder.context_length), np.int64)
        else:
            ids, mask = pad_right([source.tolist() for source in sources], padding)
            inputs = {"input_ids": ids, "attention_mask": mask}
        return EncoderOutputs.run(self.encoder, self.setup.manifest, inputs, mask, self.setup.provider)

    def _decoder(self, sources: list[Array], padding: int = 0) -> Graph:
        return replace(self.graphs[1], encoder_outputs=self._encode(sources, padding))

    def _row(self, source: Array, target: NDArray[np.int64]) -> Row:
        """Run both references on one source and target, the encoder and the decoder in one call."""

        def outputs(reference: Reference) -> Outputs:
            states, cross, logits, presents, weights = reference.in_summation_orders(
                lambda each: self._run(each, source, target)
            )
            vectors = {"states": to_numpy(states[0]), "logits": to_numpy(logits[0])}
            for each in weights:
                vectors[ALIGNMENT] = _by_token(to_numpy(each[0]))
            return Outputs(vectors, row_of(presents), row_of(cross))

        return Row(target, *self.references.compute(outputs, source, target), source=source)

    def _run(
        self, reference: Reference, source: Array, target: NDArray[np.int64]
    ) -> tuple[Tensor, Any, Tensor, Any, list[Tensor]]:
        """Return states [1, m, E], keys and values for the decoder, logits [1, n, V], and the decoder's caches.

        Last come, where there is an alignment graph, the weights of its heads [1, heads, n, m].
        """
        row, ids = torch.from_numpy(source)[None], torch.from_numpy(target)[None]
        caches = reference.empty_caches(1)
        with reference.loaded():
            if row.is_floating_point():
                states, cross = reference.module.encode(row.to(reference.dtype))
            else:
                states, cross = reference.module.encode(row, torch.ones_like(row))
            mask = torch.ones(states.shape[:2], dtype=torch.int64)
            heads = () if self.alignment is None else self.alignment.heads
            with weights_of(reference.module.decoder, heads, cross) as weights:
                logits, presents = reference.module.decode(ids, torch.ones_like(ids), mask, caches, cross)
        return states, cross, logits, presents, [torch.stack(weights, 1)] if weights else []

    def _judge_encoder(self, rows: list[Row]) -> None:
        """Judge states, keys and values of the encoder graph: each source alone, and all of them padded."""
        alone, main = [self._encode([row.source]) for row in rows], rows[0]
        pieces = (row.piece(outputs.states[0], output="states") for outputs, row in zip(alone, rows, strict=True))
        what = "states of sources of several lengths, each alone"
        self.judge.vectors("encoder", what, pieces, norm_size=self.config.encoder.hidden_size)
        caches = [(numbers_of(key[0]), numbers_of(value[0])) for key, value in alone[0].read()]
        self.judge.caches("encoder", self.source_geometry, caches, main.eager.source, main.expected.source)
        if len(rows) > 1:
            batch = self._encode([row.source for row in rows])
            states = [batch.states[index][batch.mask[index] > 0] for index in range(len(rows))]
            pairs = [(row, outputs.states[0]) for row, outputs in zip(states, alone, strict=True)]
            name = f"encoder, batch of {len(rows)} against solo"
            self.judge.agreement(name, pairs, main.eager.vectors["states"], main.expected.vectors["states"])

    def _judge_padding(self, rows: list[Row]) -> None:
        """Judge that the tokens in the padding behind sources do not change a bit of the logits."""
        if not self.config.reads_text or len(rows) == 1:
            return
        tokens = np.tile(rows[0].tokens[:33], (len(rows), 1))
        lengths = [tokens.shape[1]] * len(rows)
        graphs = [self._decoder([row.source for row in rows], padding) for padding in (0, 1)]
        logits = [graph.decoder(len(rows), tokens.shape[1]).prefill_batch(tokens, lengths) for graph in graphs]
        self.judge.identical("padding", "other tokens behind the sources", *logits)

    def _judge_merged(self, rows: list[Row]) -> None:
        """Judge the merged decoder: a target in one run, in single steps, and all padded sources in one batch."""
        main, steps = rows[0], self.extent.steps
        single = main.tokens[: self.extent.single]
        for run, what, target, first in (
            ("merged prefill", "a target in one run of the merged decoder", main.tokens, len(main.tokens)),
            ("merged steps", f"{len(single)} tokens, all but {PROMPT} in single steps", single, PROMPT),
        ):
            merged = MergedDecoder(self.merged, self._encode([main.source]))
            self.judge.logits(run, what, [main.piece(merged.feed(target[None], first)[0])])
            own, source = self.setup.manifest.cache, self.source_geometry
            caches = (first_tokens(outputs.caches, own, len(target)) for outputs in (main.eager, main.expected))
            self.judge.caches(run, own, merged.read("decoder."), *caches)
            across = main.eager.source, main.expected.source
            self.judge.caches(f"{run}, source", source, merged.read("encoder."), *across)
        targets = np.stack([row.tokens[: PROMPT + steps] for row in rows])
        logits = MergedDecoder(self.merged, self._encode([row.source for row in rows])).feed(targets, PROMPT)
        what = f"{len(rows)} padded sources, targets of {PROMPT} tokens, then {steps} steps"
        pieces = [row.piece(each) for each, row in zip(logits, rows, strict=True)]
        self.judge.logits(f"merged batch of {len(rows)}", what, pieces)

    def _judge_alignment(self, rows: list[Row]) -> None:
        """Judge the weights of the alignment heads: of a target alone, and of all sources in one batch."""
        setup, length = self.setup, min(len(row.tokens) for row in rows)
        for run, some in (("alignment", rows[:1]), (f"alignment, batch of {len(rows)}", rows)):
            outputs = self._encode([row.source for row in some])
            tokens = np.stack([row.tokens[:length] for row in some])
            weights = cross_attentions(self.aligned, setup.manifest, setup.provider, outputs, tokens)
            pieces = [row.piece(_by_token(each), output=ALIGNMENT) for row, each in zip(some, weights, strict=True)]
            what = f"weights of {weights.shape[1]} heads of cross-attention for {length} tokens"
            self.judge.vectors(run, what, pieces)


@contextmanager
def weights_of(decoder: Any, heads: Sequence[AlignmentHead], cross: Sequence[Any]) -> Iterator[list[Tensor]]:
    """Collect the weights of some heads of cross-attention, [B, S, T] each, while a decoder runs.

    cross: keys and values of each layer. They are computed here from the queries, and not by the module's own op.
    """
    queries: dict[int, Tensor] = {}
    found: list[Tensor] = []

    def keep(layer: int, module: Any, inputs: Any, output: Tensor) -> None:
        queries[layer] = output

    attentions = {head.layer: decoder.blocks[head.layer].cross_attention for head in heads}
    handles = [each.query.register_forward_hook(partial(keep, layer)) for layer, each in attentions.items()]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()
    for head in heads:
        config, key = attentions[head.layer].config, cross[head.layer][0][:, head.head]  # [B, T, D]
        query = queries[head.layer].unflatten(-1, (config.num_heads, -1))[:, :, head.head]  # [B, S, D]
        found.append((query @ key.transpose(-1, -2) * config.scale).softmax(-1))


def _by_token(weights: Array) -> Array:
    """Return the weights [heads, n, m] of a text as one vector for each token, [n, heads · m]."""
    return weights.transpose(1, 0, 2).reshape(weights.shape[1], -1)


class MergedDecoder:
    """Feeds a merged decoder as transformers.js and Optimum do.

    The first run computes the keys and values of the encoder's states; every other run is given them as inputs. The
    states are NaN from the second run on, when the graph must not read them.
    """

    def __init__(self, session: Any, outputs: EncoderOutputs):
        self._session = session
        self._outputs = [value.name for value in session.get_outputs()]
        self._feeds: dict[str, Array] = {"encoder_hidden_states": outputs.states, "use_cache_branch": np.array([False])}
        for value in session.get_inputs():
            if value.name == "encoder_attention_mask":  # a speech model has none
                self._feeds[value.name] = outputs.mask
            elif value.name.startswith("past_key_values."):
                _, heads, _, head_dim = value.shape
                empty = len(outputs.mask), heads, 0, head_dim
                self._feeds[value.name] = np.zeros(empty, ELEMENT_TYPES[value.type])

    def feed(self, tokens: NDArray[np.int64], first: int) -> Array:
        """Run the `first` tokens of every row [B, n] together, then the others one by one; return logits [B, n, V]."""
        return np.concatenate([self._run(part) for part in np.split(tokens, range(first, tokens.shape[1]), 1)], 1)

    def _run(self, tokens: NDArray[np.int64]) -> Array:
        logits, *presents = self._session.run(self._outputs, self._feeds | {"input_ids": tokens})
        pasts = [name.replace("present", "past_key_values") for name in self._outputs[1:]]
        self._feeds |= dict(zip(pasts, presents, strict=True))
        self._feeds["encoder_hidden_states"] = np.full_like(self._feeds["encoder_hidden_states"], np.nan)
        self._feeds["use_cache_branch"] = np.array([True])
        return logits

    def read(self, part: str) -> Caches:
        """Return the keys and values of the first row, [H, n, D] of each layer; part: `decoder.` or `encoder.`"""
        caches = [each[0] for name, each in self._feeds.items() if part in name and name.startswith("past_key_values.")]
        return list(zip(caches[::2], caches[1::2], strict=True))
