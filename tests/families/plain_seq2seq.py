"""Run bundles of encoder-decoders with nothing but onnxruntime and numpy: `python plain_seq2seq.py WORK.json`.

WORK.json lists jobs {bundle, inputs, outputs}: `inputs` is an .npz with sources and targets, `outputs` the .npz to
write. This file must not import edgeformer or torch, and says so at the end.
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime as ort


class Encoder:
    """Encodes sources, and keeps the encoder outputs that the decoder needs."""

    def __init__(self, bundle):
        self.session = ort.InferenceSession(str(Path(bundle) / "onnx" / "encoder_model.onnx"))
        self.names = [output.name for output in self.session.get_outputs()]

    def read(self, inputs, rows, trimmed):
        """Encode some rows (trimmed: without padding); return states and (mask, keys and values by input name)."""
        first = self.session.get_inputs()[0]
        if first.name == "input_features":
            dtype = np.float16 if "16" in first.type else np.float32
            feeds = {"input_features": inputs["features"][rows].astype(dtype)}
        else:
            lengths = inputs["source_lengths"][rows]
            width = lengths.max() if trimmed else inputs["sources"].shape[1]
            mask = (np.arange(width) < lengths[:, None]).astype(np.int64)
            feeds = {"input_ids": inputs["sources"][rows, :width], "attention_mask": mask}
        states, *presents = self.session.run(None, feeds)
        mask = feeds.get("attention_mask", np.ones(states.shape[:2], np.int64))
        names = [name.replace("present", "past_key_values") for name in self.names[1:]]
        return states, (mask, dict(zip(names, presents, strict=True)))


class Decoder:
    """Decodes with a static cache filled with NaN, bound as both past and present."""

    def __init__(self, session, source, capacity):
        self.session = session
        self.binding = session.io_binding()
        mask, keys_and_values = source
        rows = len(mask)
        self.binding.bind_cpu_input("encoder_attention_mask", mask)
        self.caches = []
        for tensor in session.get_inputs()[3:]:
            if tensor.name in keys_and_values:
                self.binding.bind_cpu_input(tensor.name, keys_and_values[tensor.name])
                continue
            _, heads, _, width = tensor.shape
            dtype = np.float16 if "16" in tensor.type else np.float32
            cache = np.full((rows, heads, capacity, width), np.nan, dtype)
            present = tensor.name.replace("past_key_values", "present")
            self.binding.bind_input(tensor.name, "cpu", 0, dtype, cache.shape, cache.ctypes.data)
            self.binding.bind_output(present, "cpu", 0, dtype, cache.shape, cache.ctypes.data)
            self.caches.append(cache)
        self.lengths = np.zeros(rows, np.int64)

    def feed(self, ids, new_lengths=None):
        """Append ids [B, S], of which each row counts its new length; return logits [B, S, V]."""
        self.lengths += ids.shape[1] if new_lengths is None else new_lengths
        mask = (np.arange(self.lengths.max()) < self.lengths[:, None]).astype(np.int64)
        self.binding.bind_cpu_input("input_ids", np.ascontiguousarray(ids))
        self.binding.bind_cpu_input("decoder_attention_mask", mask)
        self.binding.bind_output("logits")
        self.session.run_with_iobinding(self.binding)
        return self.binding.get_outputs()[-1].numpy()  # bound last


def run(bundle, inputs):
    encoder = Encoder(bundle)
    session = ort.InferenceSession(str(Path(bundle) / "onnx" / "decoder_model.onnx"))
    targets, prompt, lengths = inputs["targets"], int(inputs["prompt"]), inputs["target_lengths"]
    rows, total = targets.shape
    capacity = total + 16
    every = np.arange(rows)

    outputs = {}
    # The second row by itself, without padding.
    outputs["alone_states"], source = encoder.read(inputs, every[1:2], trimmed=True)
    one = Decoder(session, source, capacity)
    outputs["alone_prefill"] = one.feed(targets[1:2, :prompt])
    steps = [one.feed(targets[1:2, place : place + 1]) for place in range(prompt, total)]
    outputs["alone_steps"] = np.concatenate(steps, 1)
    outputs["cache_tail_is_untouched"] = np.array([np.isnan(cache[:, :, total:]).all() for cache in one.caches])

    # All rows: sources and prompts of unequal lengths.
    outputs["states"], source = encoder.read(inputs, every, trimmed=False)
    batch = Decoder(session, source, capacity)
    outputs["prefill"] = batch.feed(targets[:, : lengths.max()], lengths)
    steps = [batch.feed(targets[every, lengths + step][:, None]) for step in range(total - lengths.max())]
    outputs["steps"] = np.concatenate(steps, 1)

    # The most likely token that is not special and not in the text yet: random models would repeat one token.
    greedy, ids = Decoder(session, source, capacity), targets[:, :1]
    for _ in range(int(inputs["greedy"])):
        last = greedy.feed(ids[:, -1:])[:, -1]
        last[:, : int(inputs["special"])] = -np.inf
        np.put_along_axis(last, ids, -np.inf, 1)
        ids = np.concatenate((ids, last.argmax(-1)[:, None]), 1)
    outputs["greedy"] = ids[:, 1:]
    return outputs


def main():
    for job in json.loads(Path(sys.argv[1]).read_text()):
        np.savez(job["outputs"], **run(job["bundle"], np.load(job["inputs"])))
    foreign = sorted(name for name in sys.modules if name.split(".")[0] in ("edgeformer", "torch", "transformers"))
    assert not foreign, foreign
    print("ran without edgeformer and torch")


if __name__ == "__main__":
    main()
