"""The encoder of a T5 alone, as transformers' T5EncoderModel and sentence-transformers (sentence-t5) use it."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer

from edgeformer.checkpoints.found_model import PRESETS
from edgeformer.checkpoints.source import open_source
from edgeformer.config import EncoderConfig, Seq2SeqConfig
from edgeformer.errors import WeightsError
from edgeformer.export import export_model
from edgeformer.export.reference.reference import Reference
from edgeformer.families._layers import vary_attention
from edgeformer.models.model_spec import model_spec_of
from edgeformer.runtime import load

SIZES = {
    "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 3, "num_heads": 4, "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 12, "vocab_size": 131,
}  # fmt: skip
MODELS = {
    "t5": ("T5EncoderModel", {}),
    "mt5": ("MT5EncoderModel", {"num_heads": 2}),
    "umt5": ("UMT5EncoderModel", {"feed_forward_proj": "gated-gelu"}),
}
LENGTHS = (24, 9, 1)


def save(family, folder, whole=False, **options):
    """Save a random model, its encoder alone or with the decoder beside it."""
    torch.manual_seed(5)
    name, own = MODELS[family]
    name = name.replace("EncoderModel", "ForConditionalGeneration") if whole else name
    model = getattr(transformers, name)(transformers.CONFIG_MAPPING[family](**SIZES | own | options)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn_like(parameter)
            parameter.copy_(1 + 0.2 * noise if parameter.dim() == 1 else noise / parameter.shape[-1] ** 0.5)
    model.save_pretrained(folder)
    return folder


def inputs():
    mask = np.arange(max(LENGTHS)) < np.array(LENGTHS)[:, None]
    ids = np.random.default_rng(7).integers(2, 131, mask.shape)
    return torch.from_numpy(np.where(mask, ids, 0)), torch.from_numpy(mask.astype(np.int64))


def states_of_transformers(family, folder):
    model = getattr(transformers, MODELS[family][0]).from_pretrained(folder, dtype=torch.float64)
    with torch.no_grad():
        return model(*inputs()).last_hidden_state.numpy()


def error(folder, expected, change=lambda config: config):
    """Return the error of our module in float64 over the tokens that are no padding."""
    source, (ids, mask) = open_source(folder), inputs()
    assert isinstance(source.config, EncoderConfig)
    states = Reference(model_spec_of(change(source.config)), source.weights()).forward(ids, mask)[0].numpy()
    valid = mask.numpy() != 0
    return np.abs(states - expected)[valid].max() / np.abs(expected[valid]).max()


@pytest.mark.parametrize("family", MODELS)
def test_the_module_is_that_of_transformers(tmp_path, family):
    folder = save(family, tmp_path / family)
    expected = states_of_transformers(family, folder)
    assert error(folder, expected) < 1e-6

    def farther(config):  # the negative control
        biases = [replace(attention.relative, max_distance=30) for attention in config.attentions]
        return vary_attention(config, [{"relative": bias} for bias in biases])

    assert error(folder, expected, farther) > 1e-3


def test_the_encoder_of_a_whole_checkpoint_is_read(tmp_path):
    folder = save("t5", tmp_path / "whole", whole=True)
    assert isinstance(open_source(folder).config, Seq2SeqConfig)
    config = json.loads((folder / "config.json").read_text()) | {"architectures": ["T5EncoderModel"]}
    (folder / "config.json").write_text(json.dumps(config))
    assert error(folder, states_of_transformers("t5", folder)) < 1e-6


def test_a_second_table_of_embeddings_that_differs_is_no_copy(tmp_path):
    folder = save("t5", tmp_path / "two")
    tensors = load_file(folder / "model.safetensors")
    for table, fits in ((tensors["shared.weight"].clone(), True), (torch.zeros(131, 32), False)):
        save_file(tensors | {"encoder.embed_tokens.weight": table}, folder / "model.safetensors")
        weights = open_source(folder).weights()
        if fits:
            assert torch.equal(weights["embedding.weight"], tensors["shared.weight"])
        else:
            with pytest.raises(WeightsError, match=r"encoder\.embed_tokens\.weight and shared\.weight, which differ"):
                weights["embedding.weight"]


def test_a_sentence_transformers_folder_is_a_bundle(tmp_path):
    """As sentence-t5 is: the mean, a layer without bias, and vectors of length one."""
    folder = save("t5", tmp_path / "t5", vocab_size=2048)
    transformers.AutoTokenizer.from_pretrained(PRESETS / "tiny-translate").save_pretrained(folder)
    torch.manual_seed(6)
    dense = Dense(32, 24, bias=False, activation_function=torch.nn.Identity())
    modules = [Transformer(str(folder), max_seq_length=20), Pooling(32, pooling_mode="mean"), dense, Normalize()]
    model = SentenceTransformer(modules=modules, device="cpu")
    model.save(str(tmp_path / "sentences"))
    texts = ["The cat sleeps.", "A man reads a book about the sea, and then he goes home and reads it again."]
    expected = model.encode(texts)
    ours = load(export_model(tmp_path / "sentences", tmp_path / "bundle").path)
    np.testing.assert_allclose(ours.embed(texts), expected, atol=1e-5)
    assert np.abs(expected[0] - expected[1]).max() > 1e-2
