"""What an app does with graphs of any op set, in numpy alone: read a text at once, in pieces, and in padded batches.

A runtime makes of a serialized model a function from feeds to outputs, both arrays by name: `in_onnxruntime` is one,
tests have others. This file imports neither edgeformer nor torch.
"""

import numpy as np
import onnxruntime as ort

TOTAL, LENGTHS = 24, (16, 9, 1)
"""Tokens of a text; tokens of the prompts in a padded batch."""

SCRIPTS = {
    "prefill": ((TOTAL,), (), "right"),
    "pieces": ((7,), (1, 1, 5, *[1] * 10), "right"),
    "batch": (LENGTHS, (1,) * 5, "right"),
    "batch in pieces": (LENGTHS, (1, 3, 1), "right"),
    "batch padded in front": (LENGTHS, (1, 3, 1), "left"),
}
"""Lengths of prompts, of the pieces that every text of the batch goes on with, and the side that padding is on."""


def in_onnxruntime(model, in_place=False):
    """A runtime over a serialized model. in_place: past and present are one buffer, as a static cache is used."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def run(feeds):
        if not in_place:
            return dict(zip(names, session.run(names, feeds), strict=True))
        binding = session.io_binding()
        for name, array in feeds.items():
            binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        buffers = {name: feeds[past_of(name)] for name in names if past_of(name) in feeds}
        for name in names:
            if name in buffers:
                buffer = buffers[name]
                binding.bind_output(name, "cpu", 0, buffer.dtype, buffer.shape, buffer.ctypes.data)
            else:
                binding.bind_output(name)
        session.run_with_iobinding(binding)
        outputs = dict(zip(names, binding.get_outputs(), strict=True))
        return buffers | {name: outputs[name].numpy().copy() for name in outputs.keys() - buffers.keys()}

    return run


def past_of(present):
    """The input that an output is fed back as."""
    return present.replace("present.", "past_key_values.").replace("present_", "past_")


class Growing:
    """A decoder whose caches hold just what was read, padding and all; the mask says what of it are tokens."""

    scripts = tuple(SCRIPTS)

    def __init__(self, run, caches, dtype=np.float32, mask="attention_mask", given=None):
        """caches: dimensions and type by name of a past (`caches_of`); given: what every step reads, of a batch."""
        self.run, self.sizes, self.dtype, self.mask, self.given = run, caches, dtype, mask, given or {}
        self.caches = None

    def start(self, rows):
        self.slots = np.zeros((rows, 0), np.int64)
        self.caches = self.made(rows, 0, 0.0)

    def made(self, rows, slots, unused):
        """Return caches of this many slots for tokens, which hold `unused`; states of fixed size are zero."""
        return {
            name: np.full(
                (rows, *(slots if size is None else size for size in dims)),
                unused if None in dims else 0.0,
                np.float32 if single else self.dtype,
            )
            for name, (dims, single) in self.sizes.items()
        }

    def mask_with(self, valid):
        """The mask once these tokens, of [B, S], are there too."""
        self.slots = np.concatenate((self.slots, valid.astype(np.int64)), 1)
        return self.slots

    def feed(self, ids, valid):
        """Read ids [B, S], of which some may be padding; return logits [B, S, V]."""
        rows = {name: np.ascontiguousarray(array[: len(ids)]) for name, array in self.given.items()}
        feeds = {"input_ids": np.ascontiguousarray(ids), self.mask: self.mask_with(valid), **rows, **self.caches}
        outputs = self.run(feeds)
        self.caches = {past_of(name): array for name, array in outputs.items() if past_of(name) in self.caches}
        return outputs["logits"]


class Static(Growing):
    """A decoder whose caches are buffers, in which every token stands at its position."""

    scripts = ("prefill", "pieces", "batch", "batch in pieces")
    capacity = TOTAL + 8
    unused = np.nan

    def start(self, rows):
        self.lengths = np.zeros(rows, np.int64)
        self.caches = self.made(rows, self.capacity, self.unused)

    def mask_with(self, valid):
        self.lengths += valid.sum(1)
        return (np.arange(self.lengths.max()) < self.lengths[:, None]).astype(np.int64)


class FiniteStatic(Static):
    """Buffers for ops that multiply what is unused with zero."""

    unused = 3.0


class KernelStatic(Static):
    """Buffers for a kernel that lets batches go on by one token only (onnxruntime's GroupQueryAttention)."""

    scripts = ("prefill", "pieces", "batch")


class KernelGrowing(Growing):
    """Caches that hold just what was read, with every token at its position, as that kernel takes them too."""

    scripts = KernelStatic.scripts

    def start(self, rows):
        super().start(rows)
        self.lengths = np.zeros(rows, np.int64)

    mask_with = Static.mask_with


def read(decoder, tokens):
    """Let a decoder read texts [B, N] by every script; return by script logits of what it read, [tokens, V]."""
    return {name: follow(decoder, tokens, *SCRIPTS[name]) for name in decoder.scripts}


def follow(decoder, tokens, lengths, pieces, side):
    """Read prompts, padded with tokens that nobody may see, and then a piece of every text at a time."""
    rows, lengths = len(lengths), np.array(lengths)[:, None]
    width, tokens = lengths.max(), tokens[: len(lengths)]
    prompt = np.arange(tokens.shape[1]) < lengths
    columns = np.arange(width)
    valid = columns < lengths if side == "right" else columns >= width - lengths
    ids = np.full((rows, width), 3)
    ids[valid] = tokens[prompt]
    decoder.start(rows)
    logits = decoder.feed(ids, valid)
    read = np.zeros((*tokens.shape, logits.shape[-1]), logits.dtype)
    read[prompt] = logits[valid]
    for piece in pieces:
        places = np.arange(rows)[:, None], lengths + np.arange(piece)
        read[places] = decoder.feed(tokens[places], np.ones((rows, piece), bool))
        lengths = lengths + piece
    return read[np.arange(tokens.shape[1]) < lengths]


def asked(logits):
    """Of logits [B, N, V] those that the scripts read, in their order."""
    places = np.arange(logits.shape[1])
    return {
        name: logits[: len(lengths)][places < np.array(lengths)[:, None] + sum(pieces)]
        for name, (lengths, pieces, _) in SCRIPTS.items()
    }


def encode(run, inputs):
    """Let an encoder read a padded batch, and its second text alone; return every output of both."""
    alone = {
        # Recordings are of one length.
        name: np.ascontiguousarray(array[1:2, : LENGTHS[1]] if array.ndim == 2 else array[1:2])
        for name, array in inputs.items()
    }
    return run(inputs), run(alone)
