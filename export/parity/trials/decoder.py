"""One verification: everything that a graph is run through, and the figures that come of it.

the graph writes a greedy text ───┐
texts, random and repeated tokens ─┴→ samples → float64 reference, eager in the graph's precision ─┐
                                         └────→ graph: prefill, steps, chunks, ragged batches ─────┴→ figures → checks
"""

import itertools
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgeformer.export.graph.tensors import TORCH_PRECISIONS
from edgeformer.export.options import VerifyMode
from edgeformer.export.parity import feeding as runs
from edgeformer.export.parity.feeding import Graph
from edgeformer.export.parity.figures import Errors, worst_of
from edgeformer.export.parity.judge import Judge, Piece, compare_greedy
from edgeformer.export.parity.report import Greedy, LayerError, Rounding
from edgeformer.export.parity.samples import Sample, random_tokens, text_samples
from edgeformer.export.parity.tolerances import UNIT_ROUNDOFF
from edgeformer.export.progress import Progress
from edgeformer.export.reference.quantized_caches import fake_quantize_cache
from edgeformer.export.reference.reference import Reference, references
from edgeformer.model_spec import ModelSpec
from edgeformer.quantization import WeightFormat
from edgeformer.runtime.decoder import Decoder


@dataclass(frozen=True)
class Extent:
    """How much a mode does.

    main: tokens of the main text; lengths: prefixes of it that are run by themselves; single: of it fed one by one.
    prompt and greedy: tokens given to and written by the graph. other: tokens of every other sample. batches: rows;
    steps: single steps after a batch of prompts. far: steps at the end of the context.
    """

    main: int
    lengths: tuple[int, ...]
    single: int
    prompt: int
    greedy: int
    other: int
    batches: tuple[int, ...]
    steps: int
    texts: bool
    far: int

    def within(self, context_length: int) -> "Extent":
        """The same, shortened to what a model's context holds."""
        main = min(self.main, context_length)
        prompt = min(self.prompt, max(1, context_length // 4))
        return replace(
            self,
            main=main,
            single=min(self.single, context_length),
            # Lengths of kernels' blocks and, whatever the context, one token less than all.
            lengths=tuple(sorted({length for length in (*self.lengths, main - 1) if 0 < length < main}))
            if self.lengths
            else (),
            prompt=prompt,
            greedy=min(self.greedy, context_length - prompt),
            other=min(self.other, context_length),
            steps=min(self.steps, max(0, min(self.other, context_length) // 2)),
        )


EXTENTS: dict[VerifyMode, Extent] = {
    # All samples of one length, so that a large model's weights are read once for each reference.
    "quick": Extent(
        main=48, lengths=(), single=16, prompt=16, greedy=32, other=48, batches=(3,), steps=4, texts=False, far=0,
    ),
    # Around 32, 128 and 256 lie the blocks of kernels and our own chunks.
    "full": Extent(
        main=258, lengths=(1, 2, 31, 32, 33, 127, 128, 129, 255, 256, 257), single=258,
        prompt=16, greedy=256, other=48, batches=(1, 3, 8), steps=8, texts=True, far=16,
    ),
}  # fmt: skip

FAR_CACHE_BYTES = 400_000_000
"""A synthetic past takes at most so much; where the whole context is more, it is as long as fits."""


@dataclass
class _Known:
    """A sample with its logits in float64 and in the graph's precision by eager PyTorch: [n, V] each."""

    sample: Sample
    expected: NDArray[np.float64]
    eager: NDArray[Any]
    expected_caches: list[tuple[NDArray[np.float64], NDArray[np.float64]]]
    eager_caches: list[tuple[NDArray[Any], NDArray[Any]]]

    def piece(self, graph: NDArray[np.float32], first: int = 0) -> Piece:
        """What a graph gave from a position on, with what it should be held to."""
        part = slice(first, first + len(graph))
        return Piece(graph, self.eager[part], self.expected[part], first)


@dataclass
class Trial:
    """One verification of a decoder on its way; `run` lets `judge` collect checks, and fills greedy.

    activations: formats of the weights whose products round their inputs. orders: of eager's sums.
    """

    graph: Graph
    windowed: Graph | None
    model_spec: ModelSpec
    weights: Mapping[str, Tensor]
    extent: Extent
    folder: Path
    progress: Progress
    activations: Mapping[str, WeightFormat] | None = None
    orders: int = 1
    greedy: Greedy = field(default_factory=lambda: Greedy(steps=0))

    def __post_init__(self) -> None:
        manifest = self.graph.manifest
        self.arithmetic = manifest.arithmetic
        self.judge = Judge(self.arithmetic)
        dtype = TORCH_PRECISIONS[self.arithmetic]
        self.exact, self.rounding_only = references(
            self.model_spec, self.weights, dtype, self.activations, manifest.cache_scales, self.orders
        )

    def run(self) -> None:
        """Everything, in the order of the module's picture."""
        extent = self.extent
        known = self._run_greedy()
        main = known[0]
        self.progress("running the graph", 0.5)
        self._run_prefills(main, known[1:])
        self.progress("running batches", 0.75)
        for rows in extent.batches:
            self._judge_batch(rows, known)
        self._judge_identity(main.sample.tokens[:33])
        if self.windowed is not None:
            self.progress("past the window", 0.85)
            self._judge_windowed(self.windowed, main, known)
        if extent.far:
            self.progress("at the end of the context", 0.9)
            known.clear()  # with a large vocabulary the logits are most of the memory
            self._judge_far(replace(main, expected=main.expected[:0], eager=main.eager[:0]))

    def _run_greedy(self) -> list[_Known]:
        """Let the graph write, learn the truth about all samples, and judge what it wrote; the main sample is first."""
        extent = self.extent
        self.progress("generating with the graph", 0.0)
        prompt = random_tokens(extent.prompt, self.graph.manifest.vocab_size, salt=1)
        text, logits = runs.greedy(self.graph, prompt, extent.greedy)
        *known, own = self._know([*self._samples(), Sample("greedy", text)])
        what = f"{extent.greedy} free-running greedy steps"
        allowed_error = self.judge.logits("decode", what, [own.piece(logits, extent.prompt - 1)])
        first = extent.prompt - 1
        self.greedy = compare_greedy(logits, own.expected[first : first + len(logits)], allowed_error)
        return known

    def _run_prefills(self, main: _Known, others: list[_Known]) -> None:
        """Whole texts, then the main one in pieces, which must come to the same."""
        tokens, what = main.sample.tokens, "texts in one run"
        whole, decoder = runs.prefill(self.graph, tokens)
        self.judge.layers = self._judge_caches("prefill", main, decoder)
        del decoder
        texts = [(main, length) for length in self.extent.lengths] + [
            (each, len(each.sample.tokens)) for each in others
        ]
        rest = (each.piece(runs.prefill(self.graph, each.sample.tokens[:length])[0]) for each, length in texts)
        self.judge.logits("prefill", what, itertools.chain([main.piece(whole)], rest))
        single = tokens[: self.extent.single]
        for run, what, feed, part in (
            ("steps", f"{len(single)} single steps from an empty cache", runs.single_steps, single),
            ("chunks", "a text in chunks of 1, 2, 3, 5, 8… tokens", runs.chunks, tokens),
        ):
            logits, decoder = feed(self.graph, part)
            self.judge.logits(run, what, [main.piece(logits)])
            self._judge_caches(run, main, decoder)
            del decoder
            self.judge.agreement(f"{run} against prefill", [(logits, whole[: len(part)])], main.eager, main.expected)

    def _samples(self) -> list[Sample]:
        extent, vocab_size = self.extent, self.graph.manifest.vocab_size
        samples = [Sample("random tokens", random_tokens(extent.main, vocab_size))]
        samples.append(Sample("one token repeated", np.repeat(random_tokens(1, vocab_size, salt=2), extent.other)))
        if extent.texts and (self.folder / "tokenizer.json").is_file():
            samples += text_samples(self.folder, extent.other)
        # As many as the largest batch has rows.
        others = max(extent.batches) - len(samples)
        samples += [Sample(f"random {i}", random_tokens(extent.other, vocab_size, salt=3 + i)) for i in range(others)]
        return samples

    def _know(self, samples: list[Sample]) -> list[_Known]:
        """Run both references; texts of one length together."""
        by_length: dict[int, list[int]] = defaultdict(list)
        for index, sample in enumerate(samples):
            by_length[len(sample.tokens)].append(index)
        known: dict[int, _Known] = {}
        for done, indices in enumerate(by_length.values()):
            self.progress("computing the float64 reference", 0.1 + 0.4 * done / len(by_length))
            ids = torch.from_numpy(np.stack([samples[index].tokens for index in indices]))
            (exact, exact_caches), (eager, eager_caches) = self.exact.run(ids), self.rounding_only.run(ids)
            for row, index in enumerate(indices):
                known[index] = _Known(
                    samples[index], exact[row].numpy(), eager[row].numpy(),
                    [(key[row].numpy(), value[row].numpy()) for key, value in exact_caches],
                    [(key[row].numpy(), value[row].numpy()) for key, value in eager_caches],
                )  # fmt: skip
        self.judge.eager_worst = worst_of((each.eager, each.expected) for each in known.values())
        return [known[index] for index in range(len(samples))]

    def _judge_caches(self, run: str, known: _Known, decoder: Decoder) -> list[LayerError]:
        """Hold the keys and values that a run left in its one-row cache to those of float64."""
        length = int(decoder.lengths[0])
        graph = [(key[0], value[0]) for key, value in self.graph.read(decoder, length)]
        eager, expected = (
            [(key[:, :length], value[:, :length]) for key, value in caches]
            for caches in (known.eager_caches, known.expected_caches)
        )
        return self.judge.caches(run, graph, eager, expected)

    def _judge_batch(self, rows: int, known: list[_Known]) -> None:
        steps = self.extent.steps
        chosen = known[:rows]
        lengths = [max(1, (self.extent.other - steps) // (1 + index)) for index in range(rows)]
        texts = [each.sample.tokens for each in chosen]
        prompts = f"padded prompt{'s' * (rows > 1)} of {', '.join(map(str, lengths))} tokens, then {steps} steps"
        solo: list[NDArray[np.float32]] = []
        for side in self.graph.sides[:rows]:
            logits = runs.ragged_batch(self.graph, texts, lengths, steps, side)
            name = f"batch of {rows}" if side == "right" else f"batch of {rows}, padded on the left"
            what = f"{rows} {side}-{prompts}"
            self.judge.logits(name, what, [each.piece(row) for row, each in zip(logits, chosen, strict=True)])
            if rows > 1:
                solo = solo or [
                    runs.prefill(self.graph, text[: len(row)])[0] for row, text in zip(logits, texts, strict=True)
                ]
                first = known[0]
                pairs = zip(logits, solo, strict=True)
                self.judge.agreement(f"{name} against solo", pairs, first.eager, first.expected)

    def _judge_identity(self, tokens: NDArray[np.int64]) -> None:
        """What must not differ by a bit: the same run again, and other content where no token is."""
        once, again = (runs.prefill(self.graph, tokens)[0] for _ in range(2))
        self.judge.identical("repeat", "a second run of the same text", once, again)
        judge_empty_slots(self.judge, self.graph, tokens)

    def _judge_windowed(self, windowed: Graph, main: _Known, known: list[_Known]) -> None:
        """The view whose caches are as long as the windows must come to what the whole caches come to."""
        tokens = main.sample.tokens
        whole = runs.prefill(self.graph, tokens)[0]
        pairs = [(feed(windowed, tokens)[0], whole) for feed in (runs.prefill, runs.chunks)]
        self.judge.agreement("windowed caches against whole ones", pairs, main.eager, main.expected)
        lengths = [max(1, self.extent.other - self.extent.steps - index) for index in range(min(3, len(known)))]
        rows = [each.sample.tokens for each in known[: len(lengths)]]
        batches = [runs.rows_apart(graph, rows, lengths, self.extent.steps) for graph in (windowed, self.graph)]
        self.judge.agreement(
            "windowed batch against whole caches", zip(*batches, strict=True), main.eager, main.expected
        )
        manifest = self.graph.manifest
        count, chunk = 6, 3
        length = min(manifest.context_length - count, max(window or 0 for window in manifest.windows) + 5)
        if length > 0:
            self._judge_behind(main, "window", length, count, [self.graph, windowed], chunk)

    def _judge_far(self, main: _Known) -> None:
        """The last positions of the context."""
        manifest = self.graph.manifest
        per_token = manifest.cache.elements(1, 1) * 4
        count = self.extent.far
        length = min(manifest.context_length - count, FAR_CACHE_BYTES // per_token)
        if length > len(main.sample.tokens):
            self._judge_behind(main, "far", length, count, [self.graph])

    def _judge_behind(
        self, main: _Known, run: str, length: int, count: int, graphs: list[Graph], chunk: int = 0
    ) -> None:
        """Tokens behind a synthetic past of the scale that keys and values have."""
        manifest = self.graph.manifest
        scales = [[float(np.sqrt(np.square(part).mean())) for part in cache] for cache in main.expected_caches]
        shape = (1, manifest.cache.num_kv_heads, length, manifest.cache.head_dim)
        dtype = TORCH_PRECISIONS[self.arithmetic]

        def past(layer: int) -> tuple[Tensor, Tensor]:
            generator = torch.Generator().manual_seed(layer)
            key, value = (torch.randn(shape, generator=generator) * scale for scale in scales[layer])
            if manifest.cache_scales is not None:
                steps = map(torch.from_numpy, self.graph.scales[layer])
                key, value = (fake_quantize_cache(part, step) for part, step in zip((key, value), steps, strict=True))
            return key.to(dtype), value.to(dtype)

        tokens = main.sample.tokens[:count]
        ids = torch.from_numpy(tokens)[None]
        exact, eager = self.exact.run(ids, past)[0][0].numpy(), self.rounding_only.run(ids, past)[0][0].numpy()
        known = replace(main, expected=exact, eager=eager)
        what = f"{count} tokens at positions {length} to {length + count - 1}, behind a synthetic past"
        logits = (runs.after_past(graph, tokens, length, lambda layer: _arrays(past(layer)), chunk) for graph in graphs)
        self.judge.logits(run, what, (known.piece(each) for each in logits), behind=length)

    def rounding(self, original: Mapping[str, Tensor], *, by_graph: bool = False) -> Rounding | None:
        """Compare stored with original weights, both in float64; None where storing changed nothing.

        by_graph: what the graph computes of the stored ones, its own rounding included, instead of float64.
        """
        manifest = self.graph.manifest
        stored = torch.bfloat16 if manifest.precision == "bf16" else TORCH_PRECISIONS[self.arithmetic]
        probe = next(iter(original.values())).dtype
        if not (by_graph or manifest.quantization) and torch.promote_types(probe, stored) == stored:
            return None
        tokens = random_tokens(self.extent.main, manifest.vocab_size)
        ids = torch.from_numpy(tokens)[None]
        truth = Reference(self.model_spec, original).run(ids)[0][0].numpy()
        logits = runs.prefill(self.graph, tokens)[0] if by_graph else self.exact.run(ids)[0][0].numpy()
        errors = Errors(UNIT_ROUNDOFF[self.arithmetic])
        errors.add(logits, logits, truth)
        figures = errors.figures()
        return Rounding(
            mean_kl=figures["mean KL"][0],
            max_kl=figures["max KL"][0],
            top1_agreement=float(np.mean(logits.argmax(-1) == truth.argmax(-1))),
            nmse=figures["nmse"][0],
        )


def judge_empty_slots(judge: Judge, graph: Graph, tokens: NDArray[np.int64]) -> None:
    """What is in slots without tokens must not change a bit: the unused part of a static cache, padding in front of a
    text in a growing one.
    """
    once = runs.prefill(graph, tokens)[0]
    for filling in graph.fillings[1:]:
        what = f"{filling:g} instead of {graph.fillings[0]:g} behind the valid tokens"
        judge.identical("unused cache", what, once, runs.prefill(graph, tokens, filling)[0])
    if "left" in graph.sides:
        batches = [runs.behind_padding(graph, tokens, padding) for padding in (0, 1)]
        judge.identical("left padding", "other tokens in the padding in front of a text", *batches)


def _arrays(cache: tuple[Tensor, Tensor]) -> tuple[NDArray[Any], NDArray[Any]]:
    return cache[0].numpy(), cache[1].numpy()
