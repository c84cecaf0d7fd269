"""Vectors of sentence encoders beside sentence-transformers itself, over what its folders can hold."""

import itertools
import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer
from slow_rows import slow_after, slow_unless
from transformers import AutoConfig, AutoModel, AutoTokenizer

from edgeformer.checkpoints.found_model import PRESETS
from edgeformer.checkpoints.sentence_transformers import LEGACY_MODES, read_prompts
from edgeformer.checkpoints.source import open_source
from edgeformer.config import EncoderConfig
from edgeformer.errors import ConfigError, ExportError, RequestError, WeightsError
from edgeformer.export import export_model, verify
from edgeformer.export.reference.reference import Reference
from edgeformer.families import family_names, load_family, read_model_config
from edgeformer.families._layers import bidirectional
from edgeformer.models import build_model
from edgeformer.models.model_spec import model_spec_of
from edgeformer.runtime import Engine, load

MODES = list(LEGACY_MODES.values())
TEXTS = ["The cat sleeps.", "A man reads a long book about the sea, and then he goes home.", "Yes", ""]

WIDTH = 128
"""Width of the states of tiny-embed."""


def dense(inputs, outputs, activation=torch.nn.Tanh, **options):
    return Dense(inputs, outputs, activation_function=activation(), **options)


MODULES = {f"{mode}{'-normalized' * norm}": ([mode], [], norm) for mode in MODES for norm in (False, True)}
MODULES |= {
    "+".join(modes): (list(modes), [], index % 2 == 0) for index, modes in enumerate(itertools.combinations(MODES, 2))
}
MODULES |= {
    "all": (MODES, [], True),
    "twice": (["mean", "mean"], [], False),
    "reversed": (["weightedmean", "max", "cls"], [], False),
    "dense": (["mean"], [dense(WIDTH, 32)], False),
    "dense-normalized": (["cls"], [dense(WIDTH, 32)], True),
    "without-bias": (["mean"], [dense(WIDTH, 48, torch.nn.Identity, bias=False)], True),
    "two-layers": (["mean"], [dense(WIDTH, 300, torch.nn.Identity, bias=False), dense(300, 64, bias=False)], True),
    "behind-two-poolings": (["cls", "max"], [dense(2 * WIDTH, 16, torch.nn.ReLU)], False),
    "residual": (["mean"], [dense(WIDTH, WIDTH, torch.nn.GELU, use_residual=True)], True),
    "projected-residual": (["lasttoken"], [dense(WIDTH, 40, torch.nn.SiLU, use_residual=True)], False),
    "sigmoid": (["weightedmean"], [dense(WIDTH, 40, torch.nn.Sigmoid)], True),
}
EXPORTED = ("all", "two-layers")
"""These run as graphs in every run of the tests; the others but pairs of poolings in the slow ones."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Return a function that saves a folder by the library, and what the library computes from it."""
    root = tmp_path_factory.mktemp("sentences")
    transformer = Transformer(str(PRESETS / "tiny-embed"), model_kwargs={"dtype": torch.float32})

    def save(name):
        modes, layers, normalize = MODULES[name]
        folder = root / name
        torch.manual_seed(list(MODULES).index(name))
        for layer in layers:
            for parameter in layer.parameters():
                torch.nn.init.normal_(parameter, std=0.05)
        pooling = Pooling(WIDTH, pooling_mode=tuple(modes))
        chosen = [transformer, pooling, *layers, *([Normalize()] * normalize)]
        model = SentenceTransformer(modules=chosen, device="cpu")
        model.save(str(folder))
        return SimpleNamespace(folder=folder, expected=model.encode(TEXTS))

    return save


def eager(folder):
    """Return the vectors of TEXTS by the module that an export starts from, in float64."""
    source = open_source(folder)
    model = build_model(source.config, torch.float64)
    model.load_state_dict({name: tensor.double() for name, tensor in source.weights().items()}, strict=False)
    tokens = AutoTokenizer.from_pretrained(source.folder)(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        return model(tokens["input_ids"], tokens["attention_mask"])[1].numpy()


@pytest.mark.parametrize(
    "name", slow_unless([name for name in MODULES if "+" not in name and "-norm" not in name], MODULES)
)
def test_vectors_are_those_of_the_library(folders, name):
    model = folders(name)
    found = eager(model.folder)
    assert found.shape == model.expected.shape
    np.testing.assert_allclose(found, model.expected, atol=2e-6 * np.abs(model.expected).max())


@pytest.mark.parametrize("name", slow_unless(EXPORTED, [name for name in MODULES if "+" not in name]))
def test_graphs_compute_the_vectors_of_the_library(folders, name, tmp_path):
    model = folders(name)
    bundle = export_model(model.folder, tmp_path / "bundle").path
    np.testing.assert_allclose(load(bundle).embed(TEXTS), model.expected, atol=1e-5 * np.abs(model.expected).max())
    if name == "two-layers":
        assert verify(bundle, against=model.folder).passed


DECODERS = {
    "qwen3": {"num_key_value_heads": 2, "head_dim": 16},
    "mistral": {"num_key_value_heads": 2, "sliding_window": 8},
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 256},
    "bloom": {"n_layer": 2, "n_head": 4},
    "mistral that sees both ways": {"num_key_value_heads": 2, "sliding_window": 8, "is_causal": False},
}
"""Fields of config.json of the causal models whose states are pooled: rotations, windows, positions, ALiBi."""


@pytest.fixture(scope="module")
def decoders(tmp_path_factory):
    """Return a function that saves a causal model with the pooling of its last token, and the library's vectors."""
    root = tmp_path_factory.mktemp("decoders")

    def save(model_type, modality=None):
        tokenizer = AutoTokenizer.from_pretrained(PRESETS / "tiny-llama")
        tokenizer.chat_template = None
        sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
        fields = sizes | {"max_position_embeddings": 256} if "n_layer" not in DECODERS[model_type] else {}
        config = AutoConfig.for_model(
            model_type.partition(" ")[0], vocab_size=len(tokenizer), **fields | DECODERS[model_type]
        )
        torch.manual_seed(3)
        model = AutoModel.from_config(config, dtype=torch.float32)
        for parameter in model.parameters():
            if parameter.dim() > 1:
                torch.nn.init.normal_(parameter, std=0.1)
        model.save_pretrained(root / "plain")
        tokenizer.save_pretrained(root / "plain")
        modules = [Transformer(str(root / "plain")), Pooling(64, pooling_mode="lasttoken"), Normalize()]
        library = SentenceTransformer(modules=modules, device="cpu")
        library.save(str(root / model_type))
        return SimpleNamespace(folder=root / model_type, expected=library.encode(TEXTS[:3]))

    return save


@pytest.mark.parametrize("model_type", slow_unless(["qwen3"], list(DECODERS)))
@pytest.mark.parametrize(
    "options",
    slow_after(1, [{}, {"ops": "standard"}, {"ops": "portable"}]),
    ids=["ort", "standard", "portable"],
)
def test_states_of_causal_models_are_pooled(decoders, tmp_path, model_type, options):
    model = decoders(model_type)
    result = export_model(model.folder, tmp_path / "bundle", **options)
    assert result.report.comparison.difference < 1e-6, "of the states, from those of transformers"
    np.testing.assert_allclose(load(result.path).embed(TEXTS[:3]), model.expected, atol=1e-5)


@pytest.mark.parametrize("options", [{"precision": "int8"}, {"precision": "fp16"}], ids=["int8", "fp16"])
@pytest.mark.slow
def test_states_of_causal_models_are_pooled_in_other_precisions(decoders, tmp_path, options):
    model = decoders("qwen3")
    bundle = export_model(model.folder, tmp_path / "bundle", **options).path
    np.testing.assert_allclose(load(bundle).embed(TEXTS[:3]), model.expected, atol=5e-2)


def test_states_of_causal_models_that_see_all_tokens_are_refused(decoders, tmp_path, monkeypatch):
    """The negative control: the same model, were it read as a bidirectional one."""
    model = decoders("qwen3")
    wrong = bidirectional(read_model_config(json.loads((model.folder / "config.json").read_text()))[1])
    monkeypatch.setattr(EncoderConfig, "of_decoder", lambda config: wrong)
    with pytest.raises(ExportError, match="does not compute what transformers"):
        export_model(model.folder, tmp_path / "bundle")


BOTH_WAYS = [name for name in family_names() if load_family(name).reads_is_causal]
SEES_BOTH_WAYS = {name: {} for name in BOTH_WAYS} | {
    "exaone4": {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]},
    "gemma": {"head_dim": 16, "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh"},
    "ministral": {"head_dim": 16, "sliding_window": 4, "layer_types": ["full_attention", "sliding_attention"]},
    "mistral": {"sliding_window": 4},
    "phi3": {"sliding_window": 4},
    "qwen2": {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
}
SIZES = {
    "vocab_size": 97, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0,
}  # fmt: skip


@pytest.mark.parametrize("model_type", BOTH_WAYS)
def test_decoders_that_see_both_ways_are_read_as_by_transformers(tmp_path, model_type):
    config = AutoConfig.for_model(model_type, **SIZES | SEES_BOTH_WAYS[model_type], is_causal=False)
    torch.manual_seed(5)
    model = AutoModel.from_config(config, dtype=torch.float64, attn_implementation="eager")
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.1)
    model.save_pretrained(tmp_path)
    ids = torch.arange(36).view(2, 18) % 90 + 1
    mask = (torch.arange(18) < torch.tensor([[18], [15]])).long()  # padding beyond a window is NaN in transformers

    def states(is_causal):
        data = json.loads((tmp_path / "config.json").read_text()) | {"is_causal": is_causal}
        (tmp_path / "config.json").write_text(json.dumps(data))
        source = open_source(tmp_path, pooling="mean")
        return Reference(model_spec_of(source.config), source.weights()).forward(ids, mask)[0][mask != 0]

    with torch.no_grad():
        expected = model(ids, attention_mask=mask).last_hidden_state[mask != 0]
    largest = expected.abs().max()
    assert (states(False) - expected).abs().max() < 1e-5 * largest
    assert (states(True) - expected).abs().max() > 1e-2 * largest, "the control: a causal model"


def test_other_decoders_that_see_both_ways_are_refused():
    data = {"model_type": "gpt2", "is_causal": False, "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 97}
    data |= {"n_positions": 64}
    with pytest.raises(ConfigError, match="does not know: is_causal = False"):
        read_model_config(data)


LONG = ["A man reads. " * 9, "The cat sleeps.", "Yes, and then he goes home to read it " * 3]
"""Texts of which two are longer than a window, and one is shorter than the others."""


@pytest.fixture(scope="module")
def embedding_gemma(tmp_path_factory):
    """A folder as EmbeddingGemma's: tokens see both ways, in windows in two of three layers; two layers behind."""
    root = tmp_path_factory.mktemp("embedding-gemma")
    tokenizer = AutoTokenizer.from_pretrained(PRESETS / "tiny-llama")
    tokenizer.chat_template = None
    config = AutoConfig.for_model(
        "gemma3_text", vocab_size=len(tokenizer), hidden_size=64, intermediate_size=96, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=1, head_dim=16, max_position_embeddings=256, sliding_window=8,
        query_pre_attn_scalar=16, use_bidirectional_attention=True,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"],
    )  # fmt: skip
    torch.manual_seed(4)
    model = AutoModel.from_config(config, dtype=torch.float32)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.1)
    model.save_pretrained(root / "plain")
    tokenizer.save_pretrained(root / "plain")
    layers = [Dense(64, 96, bias=False, activation_function=torch.nn.Identity())]
    layers += [Dense(96, 64, bias=False, activation_function=torch.nn.Identity())]
    modules = [Transformer(str(root / "plain")), Pooling(64, pooling_mode="mean"), *layers, Normalize()]
    library = SentenceTransformer(modules=modules, device="cpu")
    library.save(str(root / "whole"))
    return SimpleNamespace(folder=root / "whole", expected=library.encode(LONG))


@pytest.mark.parametrize("precision", slow_after(1, ["fp32", "int8"]))
def test_a_gemma_whose_tokens_see_both_ways_is_pooled(embedding_gemma, tmp_path, precision):
    result = export_model(embedding_gemma.folder, tmp_path / "bundle", precision=precision)
    assert result.report.comparison.difference < 1e-6, "of the states, from those of transformers"
    model, atol = load(result.path), 1e-5 if precision == "fp32" else 5e-2
    np.testing.assert_allclose(model.embed(LONG), embedding_gemma.expected, atol=atol)
    np.testing.assert_allclose([model.embed(text) for text in LONG], model.embed(LONG), atol=1e-5)


@pytest.mark.parametrize("window", [6, 10])
def test_another_window_is_another_model(embedding_gemma, tmp_path, window):
    """The negative control: half of a window is in front of a token, and half behind it."""
    folder = shutil.copytree(embedding_gemma.folder, tmp_path / "other")
    config = json.loads((folder / "config.json").read_text())
    assert config["sliding_window"] == 8
    (folder / "config.json").write_text(json.dumps(config | {"sliding_window": window}))
    bundle = export_model(folder, tmp_path / "bundle", verify=None).path
    assert np.abs(load(bundle).embed(LONG) - embedding_gemma.expected).max() > 1e-3


def test_texts_that_go_through_a_chat_template_are_refused(decoders):
    folder = decoders("qwen3").folder
    path = folder / "sentence_bert_config.json"
    options = json.loads(path.read_text())
    options["modality_config"]["message"] = options["modality_config"]["text"] | {"format": "flat"}
    path.write_text(json.dumps(options))
    with pytest.raises(ConfigError, match="has the modality `message`: sentence-transformers puts every text through"):
        open_source(folder)


def test_the_transformer_may_be_in_a_folder_of_its_own(folders, tmp_path):
    model, moved = folders("dense"), tmp_path / "moved"
    shutil.copytree(model.folder, moved / "0_Transformer", ignore=shutil.ignore_patterns("*_Pooling", "*_Dense"))
    for name in ("1_Pooling", "2_Dense"):
        shutil.copytree(model.folder / name, moved / name)
    modules = json.loads((moved / "0_Transformer" / "modules.json").read_text())
    modules[0]["path"] = "0_Transformer"
    (moved / "modules.json").write_text(json.dumps(modules))
    (moved / "0_Transformer" / "modules.json").unlink()
    np.testing.assert_array_equal(eager(moved), eager(model.folder))
    np.testing.assert_allclose(SentenceTransformer(str(moved), device="cpu").encode(TEXTS), model.expected, atol=1e-6)


def test_vectors_differ_where_the_weights_of_a_layer_do(folders):
    """The negative control: what the tests above compare depends on the layer behind the pooling."""
    first, second = folders("dense"), folders("sigmoid")
    before = eager(first.folder)
    shutil.copy(second.folder / "2_Dense" / "model.safetensors", first.folder / "2_Dense" / "model.safetensors")
    with pytest.raises(WeightsError, match=r"misshapen: pooler\.layers\.0\.linear\.weight is \[40, 128\]"):
        eager(first.folder)
    assert before.shape == (len(TEXTS), 32)


@pytest.mark.parametrize("normalizer", ["plain", "none", "sequence", "lowers-already"])
def test_the_case_of_texts_is_lowered_where_the_library_does(folders, tmp_path, normalizer):
    folder = tmp_path / "lower"
    shutil.copytree(folders("mean").folder, folder)
    steps = {"type": "Prepend", "prepend": "a "}, {"type": "Replace", "pattern": {"String": "X"}, "content": "y"}
    chosen = {
        "plain": steps[0],
        "none": None,
        "sequence": {"type": "Sequence", "normalizers": list(steps)},
        "lowers-already": {"type": "Sequence", "normalizers": [steps[1], {"type": "Lowercase"}]},
    }
    tokenizer = json.loads((folder / "tokenizer.json").read_text()) | {"normalizer": chosen[normalizer]}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    options = json.loads((folder / "sentence_bert_config.json").read_text())
    vectors = {}
    for lowers in (False, True):
        (folder / "sentence_bert_config.json").write_text(json.dumps(options | {"do_lower_case": lowers}))
        theirs = SentenceTransformer(str(folder), device="cpu")
        ours = load(export_model(folder, tmp_path / f"bundle-{lowers}", verify=None).path)
        texts = ["The X and THE Y", "xX in XXL"]
        vectors[lowers] = ours.embed(texts)
        np.testing.assert_allclose(vectors[lowers], theirs.encode(texts), atol=1e-5)
    assert (np.abs(vectors[True] - vectors[False]).max() > 1e-2) == (normalizer != "lowers-already")


PROMPTS = {"query": "query: ", "document": "", "clustering": "Identify the topic: "}


@pytest.fixture(scope="module")
def prompted(folders):
    """The library's model with prompts, one of them by default, and ours."""
    folder = folders("mean").folder
    options = {"prompts": PROMPTS, "default_prompt_name": "clustering", "similarity_fn_name": "cosine"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(options))
    bundle = export_model(folder, folder.with_name("prompted"), verify=None).path
    return SimpleNamespace(theirs=SentenceTransformer(str(folder), device="cpu"), ours=load(bundle), folder=folder)


@pytest.mark.parametrize(
    "options", [{}, {"prompt_name": "query"}, {"prompt": "passage: "}, {"prompt": ""}, {"prompt_name": "document"}]
)
def test_prompts_go_before_texts_as_in_the_library(prompted, options):
    expected = prompted.theirs.encode(TEXTS, **options)
    np.testing.assert_allclose(prompted.ours.embed(TEXTS, **options), expected, atol=1e-5)
    np.testing.assert_allclose(prompted.ours.embed(TEXTS[0], **options), expected[0], atol=1e-5)
    with Engine(prompted.ours) as engine:
        np.testing.assert_allclose(engine.embed(TEXTS, **options), expected, atol=1e-5)


def test_prompts_are_read_and_not_pooled_where_folders_say_so(tmp_path):
    """As Instructor's folders do, in every way of pooling; an empty text still has its last token."""
    transformer = Transformer(str(PRESETS / "tiny-embed"), model_kwargs={"dtype": torch.float32})
    pooling = Pooling(WIDTH, pooling_mode=tuple(MODES), include_prompt=False)
    theirs = SentenceTransformer(modules=[transformer, pooling], device="cpu", prompts=PROMPTS)
    theirs.save(str(tmp_path / "folder"))
    ours = load(export_model(tmp_path / "folder", tmp_path / "bundle", verify=None).path)
    for options in ({}, {"prompt_name": "query"}, {"prompt": "Represent the text for a long search: "}):
        expected = theirs.encode(TEXTS, **options)
        error = 2e-5 * np.abs(expected).max()
        np.testing.assert_allclose(ours.embed(TEXTS, **options), expected, atol=error)
        with Engine(ours) as engine:
            np.testing.assert_allclose(engine.embed(TEXTS, **options), expected, atol=error)
    pooling.include_prompt = True
    assert np.abs(theirs.encode(TEXTS, **options) - expected).max() > 1e-2, "the control: a prompt that is pooled"
    assert np.abs(ours.embed(TEXTS) - ours.embed(TEXTS, **options)).max() > 1e-2, "the prompt is read"


def test_another_prompt_is_another_vector(prompted):
    ours = prompted.ours.embed(TEXTS, prompt_name="query")
    assert np.abs(ours - prompted.ours.embed(TEXTS)).max() > 1e-2


@pytest.mark.parametrize("dimensions", [1, 48, WIDTH])
def test_vectors_are_cut_as_in_the_library(prompted, dimensions):
    expected = prompted.theirs.encode(TEXTS, truncate_dim=dimensions)
    np.testing.assert_allclose(prompted.ours.embed(TEXTS, dimensions=dimensions), expected, atol=1e-5)
    assert prompted.ours.embed(TEXTS[0], dimensions=dimensions).shape == (dimensions,)


def test_vectors_are_cut_where_the_folder_says_so(folders, tmp_path):
    folder = tmp_path / "cut"
    shutil.copytree(folders("mean").folder, folder)
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": {}, "truncate_dim": 24}))
    expected = SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    ours = load(export_model(folder, tmp_path / "bundle").path)
    assert expected.shape == (len(TEXTS), 24)
    np.testing.assert_allclose(ours.embed(TEXTS), expected, atol=1e-5)
    assert ours.embed(TEXTS, dimensions=8).shape == (len(TEXTS), 8)
    with pytest.raises(RequestError, match="dimensions is 25; it must be between 1 and 24"):
        ours.embed(TEXTS, dimensions=25)


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        (
            TEXTS,
            {"prompt_name": "qury"},
            "prompt_name is 'qury'; the model's prompts are 'query', 'document', 'clustering'",
        ),
        (TEXTS, {"prompt_name": "query", "prompt": "q"}, "prompt and prompt_name are both given. Give one of them"),
        ([5, 6], {"prompt": "query: "}, "a prompt goes before texts, and not before pairs or token ids"),
        (TEXTS, {"prompt": 5}, "prompt is 5"),
        (TEXTS, {"dimensions": 0}, "dimensions is 0; it must be between 1 and 128"),
        (TEXTS, {"dimensions": 129}, "dimensions is 129; it must be between 1 and 128"),
        (TEXTS, {"dimensions": "8"}, "dimensions is '8'"),
    ],
)
def test_prompts_and_sizes_that_a_model_lacks_are_refused(prompted, texts, options, message):
    with pytest.raises(RequestError, match=message):
        prompted.ours.embed(texts, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompts": ["query: "]}, "prompts = .*; it must be an object of texts"),
        ({"prompts": {"query": 1}}, "prompts = .*; it must be an object of texts"),
        ({"prompts": PROMPTS, "default_prompt_name": "passage"}, "default_prompt_name = 'passage'; it must be one of"),
    ],
)
def test_prompts_that_make_no_sense_are_refused(tmp_path, options, message):
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(options))
    with pytest.raises(ConfigError, match=rf"config_sentence_transformers\.json has {message}"):
        read_prompts(tmp_path)
