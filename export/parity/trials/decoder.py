"""The trial of a decoder: a generated text, whole texts, pieces and batches of them, and the ends of its caches."""

import itertools
from collections import defaultdict
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgeformer.export.graph.tensors import TORCH_PRECISIONS, to_numpy
from edgeformer.export.parity import feeding
from edgeformer.export.parity.feeding import Graph
from edgeformer.export.parity.figures import vector_errors, worst_of
from edgeformer.export.parity.report import Rounding
from edgeformer.export.parity.samples import random_tokens, text_samples
from edgeformer.export.parity.trials.protocol import Array, Outputs, Row, TextTrial
from edgeformer.export.parity.trials.references import Original
from edgeformer.export.reference.quantized_caches import fake_quantize_cache, round_per_token, round_to_half

FAR_CACHE_BYTES = 400_000_000
"""Size limit of a synthetic past, in bytes of float32; where the context holds more, the past is as long as fits."""
LOSS_TEXTS = ("English", "French and German", "code", "chat")
"""The texts on which the loss of rounding is measured."""
WINDOW_TOKENS, WINDOW_CHUNK = 6, 3
"""Tokens that are fed behind a past longer than every window, and how many of them form the first chunk."""
LONG_PAST, LONG_CHUNK = 300, 64
"""Tokens of a prompt's chunk, and those before it, behind which our kernels round the products of attention, too."""


class DecoderTrial(TextTrial):
    """The trial of a decoder: of the graph with whole caches, and of one with caches as long as its windows, if any."""

    def run(self) -> None:
        """Run every check of the extent."""
        extent, progress = self.extent, self.setup.progress
        progress("generating with the graph", 0.0)
        vocab_size = self.setup.manifest.vocab_size
        text, logits = feeding.greedy(self.graphs[0], random_tokens(extent.prompt, vocab_size, salt=1), extent.greedy)
        *rows, generated = self._rows([*self._texts(), text])
        main = rows[0]
        self.judge.eager_worst = worst_of(row.eager_errors() for row in (*rows, generated))
        self.judge_greedy(generated, logits, extent.prompt)
        del generated
        progress("running the graph", 0.5)
        self._judge_prefills(main, rows[1:])
        progress("running batches", 0.75)
        for count in extent.batches:
            self.judge_batch(rows[:count], extent.other)
        self.judge_identity(main, "a second run of the same text")
        if len(self.graphs) > 1:
            progress("past the window", 0.85)
            self._judge_windowed(rows)
        if self.setup.activations is not None and self.setup.manifest.context_length >= LONG_PAST + LONG_CHUNK:
            self._judge_behind_past(main, "long prompt", LONG_PAST, LONG_CHUNK, chunk=LONG_CHUNK)
        if self.setup.manifest.short_context is not None:
            progress("requests of both lengths", 0.87)
            self._judge_request_lengths(main, self.setup.manifest.short_context)
        if extent.far:
            progress("at the end of the context", 0.9)
            rows.clear()  # with a large vocabulary the logits take most of the memory
            expected, eager = (Outputs({}, outputs.caches) for outputs in (main.expected, main.eager))
            self._judge_far(Row(main.tokens, expected, eager))

    def graph_for(self, rows: object) -> Graph:
        """Return the graph with whole caches."""
        return self.graphs[0]

    def _texts(self) -> list[NDArray[np.int64]]:
        """Return the token ids of all texts, the main one first, and at least as many as the largest batch has rows."""
        extent, vocab_size = self.extent, self.setup.manifest.vocab_size
        texts = [random_tokens(extent.main, vocab_size)]
        texts.append(np.repeat(random_tokens(1, vocab_size, salt=2), extent.other))
        if extent.texts and (self.setup.folder / "tokenizer.json").is_file():
            texts += text_samples(self.setup.folder, extent.other, vocab_size)
        missing = max(extent.batches) - len(texts)
        return texts + [random_tokens(extent.other, vocab_size, salt=3 + index) for index in range(missing)]

    def _rows(self, texts: list[NDArray[np.int64]]) -> list[Row]:
        """Run both references, on texts of one length together."""
        by_length: dict[int, list[int]] = defaultdict(list)
        for index, tokens in enumerate(texts):
            by_length[len(tokens)].append(index)
        rows: dict[int, Row] = {}
        for done, indices in enumerate(by_length.values()):
            self.setup.progress("computing the float64 reference", 0.1 + 0.4 * done / len(by_length))
            made = self.text_rows(np.stack([texts[index] for index in indices]))
            rows |= dict(zip(indices, made, strict=True))
        return [rows[index] for index in range(len(texts))]

    def _judge_prefills(self, main: Row, others: list[Row]) -> None:
        """Judge whole texts and prefixes in one run each, then the main text in pieces."""
        whole, decoder = feeding.prefill(self.graphs[0], main.tokens)
        self.judge.states = self.judge_caches("prefill", main, decoder)
        del decoder
        texts = [(main, length) for length in self.extent.lengths] + [(row, len(row.tokens)) for row in others]
        rest = (row.piece(feeding.prefill(self.graphs[0], row.tokens[:length])[0]) for row, length in texts)
        self.judge.logits("prefill", "texts in one run", itertools.chain([main.piece(whole)], rest))
        self._judge_last_logits(main, whole)
        self.judge_pieces(main, whole, caches=True)

    def _judge_last_logits(self, main: Row, whole: Array) -> None:
        """Judge runs that return the logits of their last token alone, as the runtime runs prompts; whole: [S, V]."""
        graph, lengths = self.graphs[0], [*self.extent.lengths, len(main.tokens)]
        if graph.has_optional_logits:
            alone = [graph.decoder(1, n).prefill(0, main.tokens[:n], chunk=n).copy() for n in lengths]
            pairs = [(one[None], whole[n - 1 : n]) for one, n in zip(alone, lengths, strict=True)]
            self.judge.agreement("last logits alone against all", pairs, main.eager.logits, main.expected.logits)

    def _judge_windowed(self, rows: list[Row]) -> None:
        """Judge the windowed graph, which must agree with the graph of whole caches."""
        (whole, windowed), main, extent, manifest = self.graphs, rows[0], self.extent, self.setup.manifest
        references = main.eager.logits, main.expected.logits
        logits = feeding.prefill(whole, main.tokens)[0]
        pairs = [(feed(windowed, main.tokens)[0], logits) for feed in (feeding.prefill, feeding.chunks)]
        self.judge.agreement("windowed caches against whole ones", pairs, *references)
        texts = [row.tokens for row in rows[:3]]
        lengths = [max(1, extent.other - extent.steps - index) for index in range(len(texts))]
        batches = [feeding.rows_apart(graph, texts, lengths, extent.steps) for graph in (windowed, whole)]
        self.judge.agreement("windowed batch against whole caches", zip(*batches, strict=True), *references)
        behind = max(window or 0 for window in manifest.windows) + 5
        length = min(manifest.context_length - WINDOW_TOKENS, behind)
        if length > 0:
            self._judge_behind_past(main, "window", length, WINDOW_TOKENS, chunk=WINDOW_CHUNK)

    def _judge_far(self, main: Row) -> None:
        """Judge the last positions of the context."""
        manifest, count = self.setup.manifest, self.extent.far
        length = min(
            manifest.context_length - count, FAR_CACHE_BYTES // (4 * max(1, manifest.cache.elements_per_token))
        )
        if length > len(main.tokens):
            self._judge_behind_past(main, "far", length, count)

    def _judge_request_lengths(self, main: Row, above: int) -> None:
        """Judge the longest request with the short factors of rotary embeddings, and the shortest with the long ones.

        They are run alone and side by side, and where a cache of that many tokens is not too large, at the last
        positions of the one and beyond these of the other.
        """
        lengths, count, steps = (above, above + 1), min(self.extent.other, above), min(self.extent.steps, 4)
        text = random_tokens(count, self.setup.manifest.vocab_size, salt=1000)
        rows = [self.text_rows(text[None], length)[0] for length in lengths]
        for length, row in zip(lengths, rows, strict=True):
            graph = replace(self.graphs[0], request_lengths=(length,))
            for run, feed in (("prefill", feeding.prefill), ("steps", feeding.single_steps)):
                what = f"a text of {count} tokens in a request of up to {length}"
                self.judge.logits(f"{run}, request of {length}", what, [row.piece(feed(graph, text)[0])])
        prompt = max(1, count - steps)
        graph = replace(self.graphs[0], request_lengths=lengths)
        logits = feeding.rows_apart(graph, [text, text], [prompt, prompt], count - prompt)
        pieces = [row.piece(each) for row, each in zip(rows, logits, strict=True)]
        what = f"a text in requests of up to {above} and {above + 1} tokens side by side"
        self.judge.logits("requests of both lengths", what, pieces)
        if above > steps and above * 4 * self.setup.manifest.cache.elements_per_token <= FAR_CACHE_BYTES:
            for length, new in zip(lengths, (steps, 2 * steps), strict=True):
                run = f"end of a request of {length}"
                fits = min(new, self.setup.manifest.context_length - above + steps)
                self._judge_behind_past(main, run, above - steps, fits, request_length=length)

    def _judge_behind_past(
        self, main: Row, run: str, length: int, count: int, chunk: int = 0, request_length: int | None = None
    ) -> None:
        """Judge `count` tokens behind a synthetic past of `length` tokens, as large as keys and values are.

        chunk: the number of first tokens that are fed in one run. With a chunk, both graphs are judged. request_length:
        as of `Reference.run`.
        """
        manifest = self.setup.manifest
        sizes = [[float(np.sqrt(np.square(part).mean())) for part in cache] for cache in main.expected.caches]
        geometry = self.setup.model_spec.cache  # manifests of caches with scales per token have their bytes
        layers = geometry.by_layer(geometry.tensors())
        dtype = TORCH_PRECISIONS[manifest.plan.arithmetic]
        rounds = manifest.plan.half_cache, manifest.has_scales_per_token

        def past(layer: int) -> tuple[Tensor, ...]:
            generator = torch.Generator().manual_seed(layer)
            kept = layers[layer]
            tensors = [
                torch.randn(tensor.shape(1, length), generator=generator) * size
                for tensor, size in zip(kept, sizes[layer], strict=True)
            ]
            if manifest.cache_scales is not None:
                scales, precision = map(torch.from_numpy, self.graphs[0].scales[layer]), manifest.cache_scales.precision
                tensors = [
                    fake_quantize_cache(part, scale, precision) for part, scale in zip(tensors, scales, strict=True)
                ]
            if any(rounds):
                store = round_to_half if manifest.plan.half_cache else round_per_token
                tensors = [
                    store(part) if tensor.per_token else part for tensor, part in zip(kept, tensors, strict=True)
                ]
            return tuple(made if tensor.single else made.to(dtype) for tensor, made in zip(kept, tensors, strict=True))

        def arrays(layer: int) -> tuple[Array, ...]:
            return tuple(map(to_numpy, past(layer)))

        tokens = np.resize(main.tokens, count)
        ids = torch.from_numpy(tokens)[None]
        outputs = self.references.compute(
            lambda reference: Outputs({"logits": to_numpy(reference.run(ids, past, length, request_length)[0][0])}),
            *([tokens, np.array([length, chunk, *rounds])] if chunk else []),
        )
        row = Row(tokens, *outputs)
        what = f"{count} tokens at positions {length} to {length + count - 1}, behind a synthetic past"
        graphs = self.graphs if chunk else self.graphs[:1]
        if request_length is not None:
            graphs = [replace(graph, request_lengths=(request_length,)) for graph in graphs]
        logits = (feeding.after_past(graph, tokens, length, arrays, chunk) for graph in graphs)
        self.judge.logits(run, what, (row.piece(each) for each in logits), behind=length)

    def rounding(self, original: Original, *, by_graph: bool = False) -> Rounding | None:
        """Compare stored with original weights; None where nothing changed or all logits are 0.

        The texts are natural ones where there is a tokenizer. On random tokens a trained model is at a loss, and
        rounding changes its guesses by many times as much as what it knows.
        """
        manifest, arithmetic = self.setup.manifest, self.setup.manifest.plan.arithmetic
        stored = torch.bfloat16 if manifest.plan.precision == "bf16" else TORCH_PRECISIONS[arithmetic]
        given = next(iter(original.weights.values())).dtype
        if not (by_graph or manifest.plan.quantization) and torch.promote_types(given, stored) == stored:
            return None
        length = self.extent.main
        natural = (self.setup.folder / "tokenizer.json").is_file()
        samples = text_samples(self.setup.folder, length, manifest.vocab_size, LOSS_TEXTS) if natural else []
        texts = np.stack(samples or [random_tokens(length, manifest.vocab_size)])
        expected = original.logits(texts)
        if by_graph:
            logits = np.concatenate([feeding.prefill(self.graphs[0], tokens)[0] for tokens in texts])
        else:
            logits = original.logits_over(self.float64.weights, texts)
        if not expected.any():
            return None
        errors, square = vector_errors(logits, expected), float(np.square(expected, dtype=np.float64).mean(-1).sum())
        return Rounding(
            mean_kl=float(np.mean(errors.kl)),
            max_kl=max(errors.kl),
            top1_agreement=float(np.mean(logits.argmax(-1) == expected.argmax(-1))),
            nmse=float(np.square(errors.rmse).sum() / square),
            texts="natural texts" if samples else "random tokens",
        )
