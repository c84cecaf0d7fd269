"""Decoders that classify texts or tokens, instead of writing: plain onnxruntime beside transformers."""

from itertools import product

import numpy as np
import onnxruntime as ort
import pytest
import torch
import transformers
from slow_rows import slow_unless

from edgeformer.checkpoints.source import open_source
from edgeformer.errors import WeightsError
from edgeformer.export import export_model

ROTARY = {
    "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 64,
}  # fmt: skip
MODELS = {
    "qwen3": ROTARY,
    "llama": ROTARY | {"tie_word_embeddings": True},
    "gemma2": ROTARY | {"sliding_window": 8},
    "gpt2": {"n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 64},
}
FIELDS = {"vocab_size": 97, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "num_labels": 3}
LENGTHS = (20, 7, 1)
CASES = list(product(MODELS, ("Sequence", "Token"), ("ort", "standard", "portable")))
FAST = [("gemma2", "Sequence", "ort"), ("gpt2", "Token", "ort")]
"""Rotation and a window, and learned positions; the others are slow."""


@pytest.fixture
def tokens():
    """Right-padded texts int64 [B, S], and their attention mask."""
    ids = np.random.default_rng(0).integers(3, 97, (len(LENGTHS), max(LENGTHS)))
    mask = (np.arange(max(LENGTHS)) < np.array(LENGTHS)[:, None]).astype(np.int64)
    return ids * mask, mask


@pytest.mark.parametrize(("model_type", "head", "ops"), slow_unless(FAST, CASES))
def test_logits_are_those_of_transformers(make_model, tokens, tmp_path, model_type, head, ops):
    kind = f"AutoModelFor{head}Classification"
    folder = make_model(model_type, 5, auto=kind, **FIELDS | MODELS[model_type])
    result = export_model(folder, tmp_path / "bundle", ops=ops)
    assert result.report.passed and result.report.comparison.difference < 1e-6
    ids, mask = tokens
    ids[1, 5:7] = ids[0, 3] = FIELDS["pad_token_id"]  # in a text, where transformers passes over it at the end
    session = ort.InferenceSession(tmp_path / "bundle/onnx/model.onnx")
    [found] = session.run(["logits"], {"input_ids": ids, "attention_mask": mask})
    model = getattr(transformers, kind).from_pretrained(folder).eval()
    with torch.no_grad():
        expected = model(torch.from_numpy(ids), attention_mask=torch.from_numpy(mask)).logits.numpy()
    valid = mask.astype(bool) if head == "Token" else slice(None)
    np.testing.assert_allclose(found[valid], expected[valid], atol=2e-5)
    assert_padding_on_the_left_changes_nothing(session, head, ids * mask, mask)


def assert_padding_on_the_left_changes_nothing(session, head, ids, mask):
    """Tokenizers of decoders pad in front of texts: other clients than ours give such batches."""
    left, left_mask = np.zeros_like(ids), np.zeros_like(mask)
    for row, length in enumerate(LENGTHS):
        left[row, -length:] = ids[row, :length]
        left_mask[row, -length:] = 1
    states, logits = session.run(None, {"input_ids": left, "attention_mask": left_mask})
    for row, length in enumerate(LENGTHS):
        alone = {"input_ids": ids[row : row + 1, :length], "attention_mask": np.ones((1, length), np.int64)}
        expected_states, expected = session.run(None, alone)
        np.testing.assert_allclose(states[row, -length:], expected_states[0], atol=2e-5)
        found = logits[row, -length:] if head == "Token" else logits[row]
        np.testing.assert_allclose(found, expected[0], atol=2e-5)


def test_the_head_of_another_task_is_no_head(make_model, tmp_path):
    """A checkpoint that writes text, named as one that classifies, has no weights for it."""
    folder = make_model("qwen3", 5, auto="AutoModelForCausalLM", **FIELDS | MODELS["qwen3"])
    path = folder / "config.json"
    path.write_text(path.read_text().replace("Qwen3ForCausalLM", "Qwen3ForSequenceClassification"))
    with pytest.raises(WeightsError, match=r"missing: score\.weight"):
        dict(open_source(folder).weights())
