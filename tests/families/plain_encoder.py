"""Run bundles as an app does that has nothing but onnxruntime and numpy: `python plain_encoder.py WORK.json`.

WORK.json lists jobs {bundle, inputs, outputs}: `inputs` is an .npz with the texts, `outputs` the .npz to write. This
file must not import edgeformer or torch, and says so at the end.
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime as ort


def run(bundle, inputs):
    """Return every output for the batch, for the batch with other padding, and for each row alone."""
    session = ort.InferenceSession(str(Path(bundle) / "onnx" / "model.onnx"))
    wanted = [tensor.name for tensor in session.get_inputs()]
    names = [tensor.name for tensor in session.get_outputs()]
    assert wanted[:2] == ["input_ids", "attention_mask"]
    mask = inputs["attention_mask"]
    outputs = {"inputs": np.array(wanted)}

    def feed(part, **tensors):
        results = session.run(names, {name: tensors[name] for name in wanted})
        outputs.update({f"{part}.{name}": result for name, result in zip(names, results, strict=True)})

    types = inputs["token_type_ids"]
    feed("batch", input_ids=inputs["input_ids"], attention_mask=mask, token_type_ids=types)
    other = np.where(mask, inputs["input_ids"], inputs["other_ids"])
    feed("other", input_ids=other, attention_mask=mask, token_type_ids=np.where(mask, types, 0))
    for row, length in enumerate(mask.sum(1)):
        ids, kinds = inputs["input_ids"][row : row + 1, :length], types[row : row + 1, :length]
        feed(f"row{row}", input_ids=ids, attention_mask=np.ones_like(ids), token_type_ids=kinds)
    return outputs


def main():
    for job in json.loads(Path(sys.argv[1]).read_text()):
        np.savez(job["outputs"], **run(job["bundle"], np.load(job["inputs"])))
    foreign = sorted(name for name in sys.modules if name.split(".")[0] in ("edgeformer", "torch", "transformers"))
    assert not foreign, foreign
    print("ran without edgeformer and torch")


if __name__ == "__main__":
    main()
