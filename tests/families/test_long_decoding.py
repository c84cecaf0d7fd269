"""Decoders of every kind: hundreds of free-running steps, in which errors of a state would add up.

The first model of each family whose graphs differ decodes greedily in onnxruntime with its cache in place.
transformers' module then reads the whole text at once, in float64.
"""

import numpy as np
import onnxruntime as ort
import pytest
import torch
import transformers
from plain_onnxruntime import Client
from rows import FAMILIES, VOCABULARY, WITH_ALL_OPS

from edgeformer.export import export_model
from edgeformer.transformers_backend.float64 import computing_in_float64

PROMPT, STEPS = 8, 240
LIMIT = 1e-5
LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len")
CONTEXT = 256
"""These are the first models of most families; other tests trace them, too."""

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("family", [family for family in FAMILIES if family in WITH_ALL_OPS])
def test_free_running_steps_stay_at_parity(make_model, tmp_path, family):
    row = FAMILIES[family]
    fields = row.sizes | next(iter(row.models.values()))
    fields |= {name: max(CONTEXT, fields[name]) for name in LENGTHS if name in fields}
    folder = make_model(family, **fields)
    bundle = export_model(folder, tmp_path / "bundle", verify=None, **row.exported.get(next(iter(row.models)), {})).path
    client = Client(ort.InferenceSession(str(bundle / "onnx" / "model.onnx")), 1, CONTEXT)
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, (1, PROMPT))
    found = [client.feed(tokens)[0]]
    for _ in range(STEPS):
        chosen = found[-1][-1:].argmax(-1)[None]
        tokens = np.concatenate((tokens, chosen), 1)
        found.append(client.feed(chosen)[0].copy())
    plain = {"attn_implementation": "eager", "experts_implementation": "eager"}
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **plain)
    with torch.no_grad(), computing_in_float64():
        expected = model.double()(torch.from_numpy(tokens), use_cache=False).logits[0].numpy()
    logits, largest = np.concatenate(found), np.abs(expected).max()
    assert np.abs(logits - expected).max() <= LIMIT * largest
    # The control: the comparison tells steps from those before them. Some models repeat one token in the end.
    assert np.abs(logits[1:] - expected[:-1]).max() > 1000 * LIMIT * largest
