"""Run bundles as an app does that has nothing but onnxruntime and numpy: `python plain_onnxruntime.py WORK.json`.

WORK.json lists jobs {bundle, inputs, outputs}: `inputs` is an .npz with the token ids, `outputs` the .npz to write.
This file must not import edgeformer or torch, and says so at the end.
"""

import itertools
import json
import re
import sys
from pathlib import Path

import numpy as np
import onnxruntime as ort


class Client:
    """Decodes with a static cache filled with NaN, bound as both past and present."""

    def __init__(self, session, rows, capacity):
        self.session = session
        self.binding = session.io_binding()
        self.caches = []
        for tensor in session.get_inputs()[2:]:
            dtype = np.float16 if "16" in tensor.type else np.float32
            # A cache of tokens has a symbol for their number; states of fixed size have none, and start with zeros.
            of_tokens = any(isinstance(size, str) for size in tensor.shape[1:])
            sizes = [capacity if isinstance(size, str) else size for size in tensor.shape[1:]]
            cache = np.full((rows, *sizes), np.nan if of_tokens else 0, dtype)
            present = re.sub("^past(_key_values)?", "present", tensor.name)
            self.binding.bind_input(tensor.name, "cpu", 0, dtype, cache.shape, cache.ctypes.data)
            self.binding.bind_output(present, "cpu", 0, dtype, cache.shape, cache.ctypes.data)
            self.caches.append(cache)
        self.lengths = np.zeros(rows, np.int64)

    def feed(self, ids, new_lengths=None):
        """Append ids [B, S], of which each row counts its new length; return logits [B, S, V]."""
        self.lengths += ids.shape[1] if new_lengths is None else new_lengths
        mask = (np.arange(self.lengths.max()) < self.lengths[:, None]).astype(np.int64)
        self.binding.bind_cpu_input("input_ids", np.ascontiguousarray(ids))
        self.binding.bind_cpu_input("attention_mask", mask)
        self.binding.bind_output("logits")
        self.session.run_with_iobinding(self.binding)
        return self.binding.get_outputs()[-1].numpy()  # bound last


def growing_cache(session, ids):
    """Decodes with a dynamic cache: starts with length 0, and feeds each present back as the next past."""
    pasts = {}
    for tensor in session.get_inputs()[2:]:
        dtype = np.float16 if "16" in tensor.type else np.float32
        sizes = [0 if isinstance(size, str) else size for size in tensor.shape[1:]]
        pasts[tensor.name] = np.zeros((1, *sizes), dtype)
    logits, end = [], 0
    for piece in np.split(ids, [5, 6], axis=1):
        end += piece.shape[1]
        feeds = {"input_ids": piece, "attention_mask": np.ones((1, end), np.int64), **pasts}
        first, *presents = session.run(None, feeds)
        logits.append(first)
        pasts = dict(zip(pasts, presents, strict=True))
    return np.concatenate(logits, 1)


def run(bundle, inputs):
    session = ort.InferenceSession(str(Path(bundle) / "onnx" / "model.onnx"))
    tokens, prompt, lengths = inputs["tokens"], int(inputs["prompt"]), inputs["lengths"]
    total = tokens.shape[1]
    capacity = total + 64

    outputs = {}
    one = Client(session, 1, capacity)
    outputs["prefill"] = one.feed(tokens[:1, :prompt])
    outputs["decode"] = np.concatenate([one.feed(tokens[:1, i : i + 1]) for i in range(prompt, total)], 1)
    outputs["cache_tail_is_untouched"] = np.array([np.isnan(cache[:, :, total:]).all() for cache in one.caches])

    chunked = Client(session, 1, capacity)
    edges = [0, 1, 8, 9, 26, total]
    pieces = [chunked.feed(tokens[:1, a:b]) for a, b in itertools.pairwise(edges)]
    outputs["chunks"] = np.concatenate(pieces, 1)
    outputs["dynamic"] = growing_cache(session, tokens[:1])

    rows = len(lengths)
    batch = Client(session, rows, capacity)
    outputs["batch_prefill"] = batch.feed(tokens[:rows, : lengths.max()], lengths)
    steps = []
    for step in range(8):
        place = lengths + step
        steps.append(batch.feed(tokens[np.arange(rows), place][:, None]))
    outputs["batch_decode"] = np.concatenate(steps, 1)

    greedy = Client(session, 1, capacity)
    logits, chosen = greedy.feed(tokens[:1, :prompt]), []
    for _ in range(int(inputs["greedy"])):
        chosen.append(int(logits[0, -1].argmax()))
        logits = greedy.feed(np.array([[chosen[-1]]]))
    outputs["greedy"] = np.array(chosen)
    return outputs


def main():
    for job in json.loads(Path(sys.argv[1]).read_text()):
        np.savez(job["outputs"], **run(job["bundle"], np.load(job["inputs"])))
    foreign = sorted(name for name in sys.modules if name.split(".")[0] in ("edgeformer", "torch", "transformers"))
    assert not foreign, foreign
    print("ran without edgeformer and torch")


if __name__ == "__main__":
    main()
