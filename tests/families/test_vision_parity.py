"""Every family of towers of pictures: random models of transformers' own classes, in eager PyTorch and as bundles.

The oracle is transformers' eager module over the same checkpoint, in float64, on the pixel values of its own processor.
Error: max |Δ| / max |expected|. The models are in `vision_rows.py`.
"""

import functools
import json
from dataclasses import replace
from types import SimpleNamespace
from typing import get_args, get_type_hints

import numpy as np
import pytest
import torch
import transformers
from exported_twice import export_twice
from safetensors.torch import load_file, save_file
from vision_rows import SHAPES, TOWERS, inputs_of

from edgeformer.checkpoints.source import open_source
from edgeformer.config import FeedForwardConfig, Grid, PictureTower
from edgeformer.errors import ConfigError, ExportError, WeightsError
from edgeformer.export import export_model
from edgeformer.export.importers.checkpoint import open_checkpoint
from edgeformer.export.importers.pictures.picture_comparison import compare_pictures
from edgeformer.export.reference.reference import Reference
from edgeformer.families import family_names, load_family
from edgeformer.models.model_spec import model_spec_of
from edgeformer.runtime import load
from edgeformer.transformers_backend.float64 import computing_in_float64

EAGER, LIMITS = 1e-6, {"fp32": 1e-5, "fp16": 5e-3}
MODELS = [(family, name) for family, row in TOWERS.items() for name in row]
OUTPUTS = ("last_hidden_state", "pooler_output", "image_embeds", "logits")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Return a function that returns a model by family and name, each made once."""

    @functools.cache
    def of(family, name):
        return make(family, name, tmp_path_factory.mktemp(family))

    return of


def make(family, name, folder):
    """Save a seeded random model with its processor, and run it on three pictures."""
    tower = TOWERS[family][name]
    torch.manual_seed(list(TOWERS).index(family) * 10 + list(TOWERS[family]).index(name))
    kind = getattr(transformers, tower.kind)
    model = kind(transformers.CONFIG_MAPPING[family](**tower.options)).eval()
    with torch.no_grad():
        # transformers starts with flat attention, norms of one and biases of zero, which would hide many faults.
        for parameter_name, parameter in model.named_parameters():
            noise = torch.randn_like(parameter)
            if parameter.dim() == 1 or "norm" in parameter_name or "embed" in parameter_name:
                parameter.add_(0.2 * noise)
            else:
                parameter.copy_(noise / parameter[0].numel() ** 0.5)
    model.save_pretrained(folder)
    processor = tower.processor(**tower.picture)
    processor.save_pretrained(folder)
    pictures = [np.random.default_rng(seed).integers(0, 256, (*SHAPES[seed], 3), np.uint8) for seed in range(3)]
    inputs = inputs_of(processor, pictures)
    model = kind.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager")
    with torch.no_grad(), computing_in_float64():  # DINOv2 interpolates positions in float32
        found = model(**inputs)
    expected = {each: found[each].numpy() for each in OUTPUTS if found.get(each) is not None}
    return SimpleNamespace(
        folder=folder, pictures=pictures, inputs=inputs, expected=expected, name=f"{family} {name}"
    )  # fmt: skip


def error(actual, expected):
    assert actual.shape == expected.shape
    return np.abs(actual - expected).max() / np.abs(expected).max()


def eager(model, config=None):
    """Return the outputs of our module in float64 by name; config: a changed one for the same weights."""
    source = open_source(model.folder)
    spec = model_spec_of(config or source.config)
    outputs = Reference(spec, source.weights()).forward(*model.inputs.values())
    return dict(zip(spec.graphs[0].outputs, (each.numpy() for each in outputs), strict=True))


def worst(found, model):
    """Return the largest error of the outputs that transformers has, too."""
    both = ((own(name, found[name], model), own(name, each, model)) for name, each in model.expected.items())
    return max(error(*pair) for pair in both)


def own(name, values, model):
    """Return the states of patches that do not pad; other outputs as they are."""
    mask = model.inputs.get("pixel_attention_mask")
    if name != "last_hidden_state" or mask is None:
        return values
    return np.concatenate([row[:count] for row, count in zip(values, mask.sum(1).tolist(), strict=True)])


@pytest.mark.parametrize(("family", "name"), MODELS)
def test_the_module_is_that_of_transformers(models, family, name):
    model = models(family, name)
    assert worst(eager(model), model) <= EAGER


def block(**change):
    """Return a change of every block of a config."""
    return lambda config: replace(config, blocks=tuple(replace(each, **change) for each in config.blocks))


def feed_forward(**change):
    """Return a change of the network of every block."""

    def changed(config):
        network = config.blocks[0].feed_forward
        assert isinstance(network, FeedForwardConfig)
        return block(feed_forward=replace(network, **change))(config)

    return changed


NEIGHBOURS = {
    ("vit", "labels", "the mean of patches, not the first state"): lambda config: replace(
        config, classifier=replace(config.classifier, poolings=("patches",))
    ),
    ("vit", "wide", "rows for columns"): lambda config: replace(
        config, patches=replace(config.patches, height=40, width=24), trained_grid=Grid(rows=5, columns=3)
    ),
    ("deit", "teacher", "the class token alone"): lambda config: replace(
        config, classifier=replace(config.classifier, distilled=False)
    ),
    ("dinov2", "gated", "another activation"): feed_forward(activation="gelu"),
    ("clip_vision_model", "projected", "the exact GELU"): feed_forward(activation="gelu", beta=1.0),
    ("clip_vision_model", "projected", "no norm before the projection"): lambda config: replace(
        config, pooler=replace(config.pooler, norm=None)
    ),
    ("siglip_vision_model", "pooled", "fewer heads in the pooling"): lambda config: replace(
        config, pooler=replace(config.pooler, num_heads=2)
    ),
    ("siglip2_vision_model", "pooled", "fewer heads in the pooling"): lambda config: replace(
        config, pooler=replace(config.pooler, num_heads=2)
    ),
    ("siglip", "labels", "the first patch alone"): lambda config: replace(
        config, blocks=config.blocks[:1] * 2, classifier=replace(config.classifier, poolings=("patches",)),
        final_norm=replace(config.final_norm, eps=1.0),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("family", "name", "neighbour"), NEIGHBOURS)
def test_the_comparison_sees_a_neighbouring_model(models, family, name, neighbour):
    model, change = models(family, name), NEIGHBOURS[family, name, neighbour]
    config = change(open_source(model.folder).config)
    if neighbour == "rows for columns":
        turned = {"pixel_values": model.inputs["pixel_values"].transpose(2, 3)}
        model = SimpleNamespace(**{**vars(model), "inputs": turned})
    assert worst(eager(model, config), model) > 1000 * EAGER


EXPORTED_ALWAYS = (
    ("vit", "labels"), ("dinov2", "interpolated"), ("siglip_vision_model", "pooled"),
    ("siglip2_vision_model", "pooled"),
)  # fmt: skip
"""Models whose graphs differ most from each other; the exports of the others are slow."""
CASES = [
    pytest.param(family, name, precision, marks=() if (family, name) in EXPORTED_ALWAYS else pytest.mark.slow)
    for family, name in MODELS
    for precision in (LIMITS if (family, name) == ("vit", "labels") or name == "projected" else ["fp32"])
]


@pytest.mark.parametrize(("family", "name", "precision"), CASES)
def test_a_bundle_computes_what_transformers_does(models, tmp_path, family, name, precision):
    """From the same pictures, so that the processor is compared, too; alone and as a batch."""
    model = models(family, name)
    bundle = export_model(model.folder, tmp_path / "bundle", precision=precision, verify="quick").path
    ours = load(bundle)
    for found, expected in zip(ours.values_of(model.pictures), model.inputs["pixel_values"].numpy(), strict=True):
        found = found if "spatial_shapes" not in model.inputs else found.reshape(-1, found.shape[-1])
        assert np.array_equal(found, expected[: len(found)])
    assert worst(ours.run(model.pictures), model) <= LIMITS[precision]
    for row, picture in enumerate(model.pictures):
        rows = slice(row, row + 1)
        inputs, expected = ({name: each[rows] for name, each in of.items()} for of in (model.inputs, model.expected))
        alone = SimpleNamespace(inputs=inputs, expected=expected)
        assert worst(ours.run([picture]), alone) <= LIMITS[precision]


IN_OTHER_OP_SETS = [
    pytest.param(family, name, op_set, marks=() if (family, name) == ("vit", "labels") else pytest.mark.slow)
    for family, name in EXPORTED_ALWAYS
    for op_set in ("standard", "portable")
]


@pytest.mark.parametrize(("family", "name", "op_set"), IN_OTHER_OP_SETS)
def test_every_op_set_computes_what_transformers_does(models, tmp_path, family, name, op_set):
    model = models(family, name)
    ours = load(export_model(model.folder, tmp_path / "bundle", ops=op_set, verify="quick").path)
    assert worst(ours.run(model.pictures), model) <= LIMITS["fp32"]


MISREAD = {
    "mean and std swapped": lambda read: replace(read, mean=read.std, std=read.mean),
    "another filter": lambda read: replace(read, resize=replace(read.resize, resample="nearest")),
    "height and width swapped": lambda read: replace(
        read, resize=replace(read.resize, size=replace(read.resize.size, height=40, width=24))
    ),
    "no scale": lambda read: replace(read, scale=1.0),
    "colours turned round": lambda read: replace(read, mean=read.mean[::-1]),
}


@pytest.mark.parametrize("fault", MISREAD)
def test_a_processor_that_is_read_wrong_is_refused(models, tmp_path, fault):
    """The graph is right from pixel values on: transformers' own processor is the other reader."""
    model = models("vit", "wide")
    means = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.25, 0.3]}
    folder = changed(model, tmp_path / "model", "preprocessor_config.json", **means)
    source = open_source(folder)
    assert compare_pictures(folder, source.pictures) == ()
    wrong = replace(source, pictures=MISREAD[fault](source.pictures))
    with pytest.raises(ExportError, match="edgeformer does not make of a picture what ViTImageProcessorPil"):
        open_checkpoint(wrong, compared=wrong)


def test_a_processor_that_transformers_cannot_read_is_said(models, tmp_path):
    folder = changed(models("vit", "labels"), tmp_path / "model", "preprocessor_config.json")
    source = open_source(folder)
    (folder / "preprocessor_config.json").write_text("{")
    [warning] = compare_pictures(folder, source.pictures)
    assert warning.startswith("transformers cannot read the image processor, so its pixel values were not compared")


@pytest.mark.slow
def test_warnings_of_pictures_are_the_same_from_another_process(models, tmp_path):
    kind = {"image_processor_type": "ViTFeatureExtractor"}
    folder = changed(models("vit", "labels"), tmp_path / "model", "preprocessor_config.json", **kind)
    here, apart = export_twice(folder, tmp_path)
    assert here == apart
    assert apart[1][0].startswith("transformers cannot read the image processor, so its pixel values were not compared")


def test_every_family_of_towers_has_at_least_three_models_here():
    returned = {name: get_type_hints(load_family(name).read_config)["return"] for name in family_names()}
    towers = {name for name, config in returned.items() if (get_args(config) or (config,))[0] in get_args(PictureTower)}
    assert {family for family, row in TOWERS.items() if len(row) >= 3} == towers


def changed(model, folder, file, **change):
    """Return a copy of a model's folder with other fields in a file."""
    folder.mkdir()
    for path in model.folder.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    content = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps(content | change))
    return folder


def test_the_tower_of_a_whole_checkpoint_is_read(tmp_path):
    """openai/clip-vit-… say CLIPModel; with another class in config.json, the tower alone is read."""
    torch.manual_seed(3)
    tower = TOWERS["clip"]["labels"]
    whole = transformers.CLIPModel(transformers.CLIPConfig(**tower.options, projection_dim=12)).eval()
    whole.save_pretrained(tmp_path / "clip")
    tower.processor(**tower.picture).save_pretrained(tmp_path / "clip")
    model = SimpleNamespace(folder=tmp_path / "clip")
    other = changed(model, tmp_path / "text", "config.json", architectures=["CLIPTextModelWithProjection"])
    with pytest.raises(
        ConfigError,
        match=r"architectures = \['CLIPTextModelWithProjection'\]; edgeformer has CLIPModel, CLIPVis",
    ):
        open_source(other)
    folder = changed(model, tmp_path / "tower", "config.json", architectures=["CLIPVisionModelWithProjection"])
    values = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    with torch.no_grad():
        expected = whole.double().get_image_features(pixel_values=values).pooler_output.numpy()
    model = SimpleNamespace(folder=folder, inputs={"pixel_values": values})
    assert error(eager(model)["image_embeds"], expected) <= EAGER


@pytest.mark.parametrize(
    ("file", "change", "said"),
    [
        ("config.json", {"use_mask_tokens": True}, "does not know: use_mask_tokens = True"),
        ("config.json", {"architectures": ["ViTForMaskedImageModeling"]}, "edgeformer has ViTModel, ViTForImageClass"),
        ("config.json", {"num_channels": 4}, "num_channels = 4, which is not supported here; supported: 3"),
        ("config.json", {"pooler_act": "nothing"}, "pooler_act = 'nothing'"),
        ("config.json", {"image_size": 4}, "PatchStem.height is 4; it must be that of a patch or more"),
        ("preprocessor_config.json", {"size": 40}, "makes pictures of 40 × 40 pixels, and the model reads 32 × 32"),
    ],
)
def test_what_a_tower_does_not_compute_is_refused(models, tmp_path, file, change, said):
    with pytest.raises(ConfigError, match=said):
        open_source(changed(models("vit", "labels"), tmp_path / "changed", file, **change))
    with pytest.raises(ConfigError, match="pictures, which always have all their patches; leave context_length out"):
        open_source(models("vit", "labels").folder, context_length=8)
    with pytest.raises(ConfigError, match="reads pictures, and pooling is for the states of texts"):
        open_source(models("vit", "labels").folder, pooling="mean")


def test_a_tensor_of_another_name_is_not_ignored(models, tmp_path):
    folder = changed(models("vit", "labels"), tmp_path / "hub", "config.json")
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {"vit.embeddings.register_tokens": torch.zeros(2)}, folder / "model.safetensors")
    with pytest.raises(WeightsError, match="unexpected: vit.embeddings.register_tokens"):
        open_source(folder).weights()
