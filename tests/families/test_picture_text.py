"""Every family of pictures and text: random models of transformers' own classes, in eager PyTorch and as bundles.

The oracle is transformers' module over the same checkpoint in float64, with the pixel values and the ids of its own
processor. Error: max |Δlogit| / max |logit|. The models are in `picture_text_rows.py`.
"""

import functools
import json
import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from picture_text_rows import IMAGE, MARKS, MODELS, save
from PIL import Image
from safetensors.torch import load_file, save_file
from slow_rows import slow_unless
from tower_models import error, exporter

from edgeformer import ops
from edgeformer.check import check
from edgeformer.checkpoints.source import open_source
from edgeformer.cli.main import cli
from edgeformer.client_files.model_card import model_card
from edgeformer.config import PatchWindows
from edgeformer.errors import ConfigError, ExportError, ParityError, RequestError
from edgeformer.export import export_model, verify
from edgeformer.export.importers.checkpoint import open_checkpoint
from edgeformer.export.importers.library_comparison import compare_modules
from edgeformer.export.importers.pictures import placeholders
from edgeformer.export.importers.pictures.library_processor import library_processor
from edgeformer.export.importers.pictures.picture_comparison import compare_pictures
from edgeformer.export.reference.reference import CastWeights
from edgeformer.families import read_model_config
from edgeformer.families.picture_text import family_named, seeing_names, with_tower
from edgeformer.layers import linear
from edgeformer.layers.attention.attention import Context
from edgeformer.manifest.accounting import account
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.pictures.grid import GridProcessor
from edgeformer.manifest.pictures.longest_edge import LongestEdgeProcessor
from edgeformer.models.decoder import Decoder
from edgeformer.models.pictures import projectors
from edgeformer.models.pictures.comparison import positions_in_float32, static_masks
from edgeformer.models.pictures.grid_vision import GridVisionEncoder, PatchPlaces
from edgeformer.models.pictures.picture_text import PictureText
from edgeformer.models.pictures.projectors import MergedPatches, PooledPatches
from edgeformer.runtime import Engine, load
from edgeformer.runtime.measure.evaluation.exact_match import evaluate
from edgeformer.runtime.measure.evaluation.questions import read_questions
from edgeformer.runtime.media.pictures.positions import positions_of
from edgeformer.runtime.media.pictures.processors import new_processor
from edgeformer.runtime.media.pictures.processors.any_resolution import AnyResolution
from edgeformer.runtime.media.pictures.processors.aspect_tiles import AspectTiles
from edgeformer.runtime.media.pictures.processors.grid import GridPatches
from edgeformer.runtime.media.pictures.processors.longest_edge import LongestEdge
from edgeformer.runtime.media.pictures.processors.processor import Processor
from edgeformer.runtime.media.pictures.processors.tiles import Tiles
from edgeformer.runtime.prefixes import prefix_cache
from edgeformer.runtime.prefixes.prefix_cache import PrefixCache
from edgeformer.runtime.steps import memory, picture_blocks, picture_rows
from edgeformer.runtime.steps.picture_rows import PictureRows, picture_numbers
from edgeformer.transformers_backend.float64 import computing_in_float64

LIMIT = 1e-5
GEMMA3, PALIGEMMA = ("gemma3", "a window in a block"), ("paligemma", "two with windows")
GEMMA4 = ("gemma4", "blocks")
CASES = [(family, name) for family, models in MODELS.items() for name in models]
FIRST = [(family, next(iter(models))) for family, models in MODELS.items()]
"""One model of each family, read by default; the others are slow."""
EXPORTED_ALWAYS = (
    ("smolvlm", "tiles"), ("internvl", "norms"), ("llava", "layers"), ("llava_onevision", "shrunk"), GEMMA3, PALIGEMMA,
    ("lfm2_vl", "tiles"), ("mistral3", "squares"), ("qwen2_vl", "squares"), ("qwen3_vl", "deepstack"), GEMMA4,
)  # fmt: skip
EXPORTED = slow_unless(EXPORTED_ALWAYS, CASES)
VERIFIED = {("smolvlm", "tiles"), GEMMA3, ("qwen2_vl", "squares"), GEMMA4}
"""Models whose exports are verified by default, one of each kind of tower; by night, those of all others are."""
PROMPT = "{0}{0} What is left of {0}"
PICTURES = [np.random.default_rng(index).integers(0, 256, (30 + 30 * index, 50, 3), np.uint8) for index in range(3)]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Return a function that returns a model by family and name, each made once."""

    @functools.cache
    def of(family, name):
        folder = tmp_path_factory.mktemp(family)
        module = save(family, name, folder)
        return SimpleNamespace(folder=folder, module=module, processor=library_processor(folder))

    return of


@pytest.fixture(scope="module")
def bundles(models, tmp_path_factory):
    """Return a function that returns the folder of a model's bundle, each made once."""
    return exporter(models, tmp_path_factory, set(EXPORTED_ALWAYS) - VERIFIED)


def theirs(model, prompt, pictures):
    """Return what transformers' processor makes of a prompt, and logits [S, V] of its module in float64."""
    encoded = model.processor(text=[prompt], images=[pictures] if pictures else None, return_tensors="pt")
    types = () if {"image_grid_thw", "image_position_ids"} & encoded.keys() else ("mm_token_type_ids",)
    encoded = {
        name: value.double() if value.is_floating_point() else value
        for name, value in encoded.items()
        if name not in ("attention_mask", *types)
    }
    with torch.no_grad(), computing_in_float64(), positions_in_float32(model.module):
        masks = {}
        if pictures and model.module.config.model_type == "gemma4_unified":
            masks = static_masks(model.module, encoded["input_ids"], encoded["mm_token_type_ids"])
        out = model.module(**encoded, **masks)
    return encoded, out.logits[0].numpy()


def test_every_family_has_three_models():
    seeing = [name for name in seeing_names() if family_named(name).processor != "log_mel" and name != "modernvbert"]
    assert {family: len(models) >= 3 for family, models in MODELS.items()} == dict.fromkeys(seeing, True)


REAL = {
    "HuggingFaceTB--SmolVLM-256M-Instruct": (256_484_928, 64, (12,)),
    "google--gemma-3-4b-it": (4_300_079_472, 256, (27,)),
    "mistralai--Mistral-Small-3.1-24B-Instruct-2503": (23_340_272_640, None, (24,)),
    "llava-hf--llava-1.5-7b-hf": (7_050_828_800, 576, (23,)),
    "Qwen--Qwen2-VL-2B-Instruct": (2_208_985_600, None, (32,)),
    "Qwen--Qwen2.5-VL-3B-Instruct": (3_754_622_976, None, (32,)),
    "Qwen--Qwen3.5-0.8B": (852_985_920, None, (12,)),
}


@pytest.mark.parametrize("name", REAL)
def test_published_configs_are_read_whole(name):
    data = json.loads((Path(__file__).parent / "real_configs" / f"{name}.json").read_text())
    _, config = with_tower(data, *read_model_config(data))
    assert (account(config).parameters, config.picture_tokens, config.feature_layers) == REAL[name]


@pytest.mark.parametrize(("family", "name"), slow_unless({*FIRST, *EXPORTED_ALWAYS}, CASES))
def test_module_pixels_and_ids_are_those_of_transformers(models, family, name):
    source = open_source(models(family, name).folder)
    compared = compare_modules(source, source.weights())
    assert compared.reason is None and compared.difference < 1e-12
    warned = compare_pictures(source.folder, source.pictures)
    assert warned == () or (family in ("lfm2_vl", "gemma4_unified") and "torchvision" in warned[0].lower())
    placeholder = placeholders.read_placeholder(source, source.config, source.folder)
    assert placeholders.compare_prompts(source, placeholder, source.folder) == ()


@pytest.mark.parametrize(("family", "name"), EXPORTED)
def test_a_bundle_answers_as_transformers_does(models, bundles, family, name):
    model, runtime = models(family, name), load(bundles(family, name), "cpu", 1)
    mark = MARKS.get(family, "<image>")
    whole = runtime.whole_prompts  # such a prompt has a picture
    shorter = [(f"{mark}a", PICTURES[index : index + 1]) for index in (1, 2)]
    for few, pictures in [*([] if whole else [("What is left?", [])]), *shorter]:
        encoded, expected = theirs(model, few, pictures)
        ids = runtime.see(few, pictures).shown if pictures else encoded["input_ids"][0].tolist()
        assert ids == encoded["input_ids"][0].tolist()
        assert error(runtime.forward(few if pictures else ids, pictures), expected) <= LIMIT
    prompt = PROMPT.format(mark)
    encoded, expected = theirs(model, prompt, PICTURES)
    ids = encoded["input_ids"][0]
    assert runtime.see(prompt, PICTURES).shown == ids.tolist()
    assert error(runtime.forward(prompt, PICTURES), expected) <= LIMIT
    with torch.no_grad(), positions_in_float32(model.module):
        written = model.module.generate(
            **encoded, attention_mask=torch.ones_like(ids[None]), do_sample=False, max_new_tokens=8,
            eos_token_id=None, pad_token_id=0, **({"cache_implementation": "static", "disable_compile": True}
                                                  if family == "gemma4_unified" else {}),
        )[0, len(ids) :]  # fmt: skip
    options = {"max_new_tokens": 8, "ignore_eos": True}
    assert runtime.generate(prompt, images=PICTURES, **options).token_ids == written.tolist()
    assert runtime.stream(prompt, images=PICTURES, **options).finish().token_ids == written.tolist()
    assert len(runtime.features) == (5 if family == "llava_onevision" else 3)  # two of them in both of its ways
    other, pictures = shorter[0] if whole else ("no picture", [])
    both = runtime.generate([prompt, other], images=[PICTURES, pictures], **options)
    alone = runtime.generate(other, images=pictures, **options)
    assert [each.token_ids for each in both] == [written.tolist(), alone.token_ids]
    if family == "smolvlm":  # a bundle is verified as its export was
        assert verify(bundles(family, name), model.folder, mode="quick").passed


def test_a_prompt_of_paligemma_is_about_a_picture(models, bundles):
    folder = bundles(*PALIGEMMA)
    runtime = load(folder, "cpu", 1)
    for call in (runtime.generate, lambda prompt: runtime.generate(prompt, images=[]), runtime.encode):
        with pytest.raises(RequestError, match="reads prompts with a picture"):
            call("no picture")
    with pytest.raises(ConfigError, match="text model is not exported by itself: its prompts attend both ways"):
        export_model(models(*PALIGEMMA).folder, folder.parent / "text", text_only=True)
    said = [finding.problem for finding in check(folder).clients["onnxruntime-genai"]]
    assert any("It reads prompts causally, and what a paligemma sees attends both ways" in each for each in said)
    # The same prompt is found again, and no beginning of it, because every key depends on all of it.
    seen = [runtime.see(f"<image>{text}", PICTURES[:1]) for text in ("one", "one", "one more")]
    assert seen[0].tokens == seen[1].tokens and not set(seen[0].tokens) & set(seen[2].tokens)
    assert min(seen[0].tokens) >= runtime.manifest.vocab_size
    ends = {
        picture_blocks.prefix_end(seen[0].tokens, n, runtime.manifest.vocab_size) for n in range(len(seen[0].tokens))
    }
    assert ends == {0}


@pytest.mark.parametrize("case", [EXPORTED_ALWAYS[0], GEMMA4])
def test_the_text_graph_is_that_of_the_text_model_alone(models, bundles, tmp_path, case):
    family, name = case
    export_model(models(family, name).folder, tmp_path / "text", text_only=True, verify=None)
    text, whole = Manifest.read(tmp_path / "text"), Manifest.read(bundles(family, name))
    assert (text.task, whole.task) == ("causal-lm", "image-text-to-text")
    assert text.provenance.text_model_of.model_type == family and "vision_encoder" not in text.graphs
    prompt = "What is left?"
    tokens = [load(folder, "cpu", 1).generate(prompt, max_new_tokens=8, ignore_eos=True).token_ids for folder in
              (tmp_path / "text", bundles(family, name))]  # fmt: skip
    assert tokens[0] == tokens[1]
    nodes = [load_nodes(folder / manifest.graph) for folder, manifest in
             ((tmp_path / "text", text), (bundles(family, name), whole))]  # fmt: skip
    assert nodes[0] == nodes[1]


def load_nodes(path):
    import onnx

    return [node.SerializeToString() for node in onnx.load(path, load_external_data=False).graph.node]


@pytest.fixture
def smolvlm(bundles):
    """Return the model of tiles in the runtime."""
    return load(bundles(*EXPORTED_ALWAYS[0]), "cpu", 1)


def test_a_chat_has_pictures_where_its_parts_say(smolvlm):
    spelled = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Is <image> red?"}]}]
    options = {"max_new_tokens": 4, "ignore_eos": True}
    first = smolvlm.chat(spelled, images=PICTURES[:1], **options).finish()
    again = smolvlm.chat(spelled, images=PICTURES[:1], **options).finish()
    other = smolvlm.chat(spelled, images=PICTURES[1:2], **options).finish()
    assert (first.token_ids, first.cached_tokens) == (again.token_ids, 0)
    assert again.cached_tokens == first.prompt_tokens - 1  # and not those of another picture:
    assert other.cached_tokens < 8 and other.token_ids != first.token_ids


def test_a_prompt_without_a_placeholder_is_a_message(bundles, tmp_path):
    Image.fromarray(PICTURES[0]).save(tmp_path / "a.png")
    line = ["run", str(bundles(*EXPORTED_ALWAYS[0])), "--image", str(tmp_path / "a.png"), "--max-new-tokens", "4"]

    def run(*more):
        result = CliRunner().invoke(cli, [*line, "--json", *more])
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    asked = run("Is it red?")
    assert asked["prompt_tokens"] == run("--chat", "Is it red?")["prompt_tokens"]
    assert asked["prompt_tokens"] > run("<image>Is it red?")["prompt_tokens"]  # which is continued as it stands


def test_questions_about_pictures_are_scored(smolvlm, tiny_llama_bundle, tmp_path):
    Image.fromarray(PICTURES[0]).save(tmp_path / "a.png")
    data = {"skill": "a", "prompt": "<image> left of", "answer": " red"}
    (tmp_path / "questions.jsonl").write_text(
        "\n".join(json.dumps(data | more) for more in ({"image": "a.png"}, {"prompt": "left of"}))
    )
    asked = read_questions(tmp_path / "questions.jsonl")
    asked.append(replace(asked[0], image=PICTURES[1]))
    found = evaluate(smolvlm, asked).answers
    tokens = [smolvlm.tokenizer.encode(each.prompt + each.answer) for each in asked]
    for answer, ids, images in zip(found, tokens, (PICTURES[:1], [], PICTURES[1:2]), strict=True):
        logits = smolvlm.forward(ids, images)[-answer.tokens :].astype(np.float64)
        wanted = [*ids[1 - answer.tokens :], *smolvlm.manifest.tokens.eos]
        chances = [row[token] - np.logaddexp.reduce(row) for row, token in zip(logits, wanted, strict=True)]
        assert answer.nats == pytest.approx(-sum(chances), abs=1e-3)
    assert found[0].nats != pytest.approx(found[2].nats, abs=1e-3)  # another picture
    with pytest.raises(RequestError, match="some questions have a picture, and this model reads none"):
        evaluate(load(tiny_llama_bundle, "cpu", 1), asked)
    (tmp_path / "questions.jsonl").write_text(json.dumps(data | {"image": 3}))
    with pytest.raises(RequestError, match="line 1: image is 3; it must be the path of a file"):
        read_questions(tmp_path / "questions.jsonl")


def test_a_picture_is_read_once(smolvlm):
    with patch.object(Tiles, "values", autospec=True, side_effect=Tiles.values) as values:
        for prompt in ("<image> one", "<image> two"):
            smolvlm.generate(prompt, images=[PICTURES[0]], max_new_tokens=2)
    assert values.call_count == 1
    smolvlm.features.max_bytes = 0
    assert smolvlm.picture_features(PICTURES[1]).shape[1] == 40
    assert len(smolvlm.features) == 1


def test_penalties_see_the_placeholder_alone(smolvlm):
    result = smolvlm.generate(
        "<image> a", images=[PICTURES[0]], max_new_tokens=4, repetition_penalty=1.5, prompt_lookup_num_tokens=3
    )
    assert len(result.token_ids) > 0


@pytest.mark.parametrize(
    ("prompt", "images", "message"),
    [
        ("a <image>", (), "1 placeholder of pictures"),
        ("a", [PICTURES[0]], "no placeholders of pictures"),
        ("<image><image>", [PICTURES[0]], "2 placeholders"),
        (["<image>"], [[]], "1 placeholder"),
        (["<image>", "a"], [PICTURES[0]], "for each of the 2 prompts"),
        ("<image>", 5, "must be a list of pictures"),
        ("<image>", ["/no/such/file"], "cannot be read"),
        ([IMAGE, IMAGE], [PICTURES[0]], "2 placeholders"),
    ],
)
def test_wrong_pictures_are_refused(smolvlm, prompt, images, message):
    with pytest.raises(RequestError, match=message):
        smolvlm.generate(prompt, images=images)


def test_other_models_say_that_they_read_none(tiny_llama_bundle):
    with pytest.raises(RequestError, match="reads no pictures"):
        load(tiny_llama_bundle, "cpu", 1).generate("a", images=[PICTURES[0]])


@pytest.mark.parametrize(("family", "name"), slow_unless(FIRST, CASES))
def test_low_detail_takes_the_fewest_tokens(models, family, name):
    source = open_source(models(family, name).folder)
    placeholder = placeholders.read_placeholder(source, source.config, source.folder)
    processor = new_processor(source.pictures)
    sizes = [(1, 1), (30, 30), (90, 40), (40, 90), (300, 200)]
    high, low = (
        [len(placeholder.expanded(*each.grid(*size))) for size in sizes] for each in (processor, processor.low_detail)
    )
    assert all(few <= many for few, many in zip(low, high, strict=True))
    for size in sizes:
        pixels = np.zeros((*size, 3), np.uint8)
        assert len(processor.low_detail.values(pixels)) <= len(processor.values(pixels))


@pytest.mark.parametrize(("family", "name"), EXPORTED)
def test_an_engine_answers_as_generate_does(bundles, family, name):
    model, options = load(bundles(family, name), "cpu", 1), {"max_new_tokens": 6, "ignore_eos": True}
    mark = MARKS.get(family, "<image>")
    requests = [(PROMPT.format(mark), PICTURES), (f"{mark}?", PICTURES[1:2]), (mark * 3, PICTURES[:1] * 3)]
    if not model.whole_prompts:
        requests.append(("What is left?", []))
    expected = [model.generate(prompt, images=images, **options).token_ids for prompt, images in requests]
    for chunk in (256, 3):  # which is shorter than what attends both ways
        with patch.object(memory, "PREFILL_CHUNK", chunk), Engine(model, max_rows=3) as engine:
            streams = [engine.submit(prompt, images=images, **options) for prompt, images in requests * 2]
            assert [stream.finish().token_ids for stream in streams] == expected * 2


def fault(owner, name, changed):
    """Return a context in which a method returns what is changed of its result."""
    original = getattr(owner, name)
    return patch.object(owner, name, lambda *given: changed(original(*given)))


PIXEL_FAULTS = {
    "order of tiles of any resolution": fault(
        AnyResolution, "values", lambda values: values[[0, 2, 1, *range(3, len(values))]]
    ),
    "the whole picture last": fault(AnyResolution, "values", lambda values: np.roll(values, -1, 0)),
    "columns for rows": fault(AspectTiles, "_nearest_grid", lambda grid: grid[::-1]),
    "order of a grid's tiles": fault(AspectTiles, "values", lambda values: values[[1, 0, *range(2, len(values))]]),
    "no thumbnail": fault(AspectTiles, "values", lambda values: values[:-1]),
    "height and width swapped": fault(Tiles, "values", lambda values: values.swapaxes(2, 3)),
    "order of tiles": fault(Tiles, "values", lambda values: values[[1, 0, *range(2, len(values))]]),
    "no whole picture": fault(Tiles, "values", lambda values: values[:-1]),
    "blue for red": fault(Processor, "normalized", lambda values: values[::-1]),
}


SEEN_BY = {
    "order of tiles of any resolution": ("llava_next", "clip"),
    "the whole picture last": ("llava_next", "clip"),
    "columns for rows": ("internvl", "tiles"),
    "order of a grid's tiles": ("internvl", "tiles"),
    "no thumbnail": ("internvl", "tiles"),
}
"""The model that a fault is planted for, where it is another one."""


@pytest.mark.parametrize("name", PIXEL_FAULTS)
def test_an_export_refuses_pixels_that_are_others(models, name):
    family, model = SEEN_BY.get(name, ("idefics3", "two layers"))
    source = open_source(models(family, model).folder)
    assert compare_pictures(source.folder, source.pictures) == ()
    with PIXEL_FAULTS[name], pytest.raises(ExportError, match="does not make of a picture"):
        compare_pictures(source.folder, source.pictures)


def test_an_export_refuses_mean_for_deviation(models):
    source = open_source(models("idefics3", "two layers").folder)
    swapped = replace(source.pictures, mean=source.pictures.std, std=source.pictures.mean)
    with pytest.raises(ExportError, match="does not make of a picture"):
        compare_pictures(source.folder, swapped)


def test_an_export_refuses_ids_of_other_tiles(models):
    source = open_source(models("smolvlm", "tiles").folder)
    placeholder = placeholders.read_placeholder(source, source.config, source.folder)
    transposed = replace(placeholder, names=tuple(zip(*placeholder.names, strict=True)))
    for wrong in (transposed, replace(placeholder, rows_end=placeholder.row_end)):
        with pytest.raises(ExportError, match="prompt with pictures"):
            placeholders.compare_prompts(source, wrong, source.folder)


def test_an_export_refuses_other_ends_of_rows(models):
    source = open_source(models("mistral3", "squares").folder)
    right = placeholders.read_placeholder(source, source.config, source.folder)
    for wrong in ({"row_end": right.end}, {"end": right.row_end}):
        with pytest.raises(ExportError, match="prompt with pictures"):
            placeholders.compare_prompts(source, replace(right, **wrong), source.folder)


def test_a_published_config_of_paddleocr_is_flat(models, tmp_path):
    """Its text model's fields stand beside those of the whole, with others that transformers does not read."""
    folder = shutil.copytree(models("paddleocr_vl", "squares").folder, tmp_path / "model")
    data = json.loads((folder / "config.json").read_text())
    text = {name: value for name, value in data.pop("text_config").items() if name not in data}
    text["rope_scaling"] = text.pop("rope_parameters") | {"type": "default"}
    text["rope_theta"] = text["rope_scaling"].pop("rope_theta")
    others = {"use_3d_rope": True, "rope_is_neox_style": True, "compression_ratio": 1.0, "max_sequence_length": None}
    (folder / "config.json").write_text(json.dumps(data | text | others))
    source = open_source(folder)
    assert compare_modules(source, source.weights()).difference < 1e-12


def test_a_context_shorter_than_the_compared_pictures(models):
    """The comparison ended with an IndexError: its text with three pictures was longer than the table of positions."""
    source = open_source(models("smolvlm", "tiles").folder, context_length=8)
    assert compare_modules(source, source.weights()).difference < 1e-12


def test_experts_are_read_as_they_are_stored(models, tmp_path):
    """Published weights of Qwen3-VL's experts are transposed, and those that transformers 5 writes are not."""
    folder = shutil.copytree(models("qwen3_vl_moe", "deepstack").folder, tmp_path / "model")
    stored = load_file(folder / "model.safetensors")
    turned = {name: each.mT.contiguous() if ".experts." in name else each for name, each in stored.items()}
    assert sum(not torch.equal(turned[name], each) for name, each in stored.items()) == 2
    save_file(turned, folder / "model.safetensors", {"format": "pt"})
    for options in ({}, {"text_only": True}):
        pairs = [
            open_source(each, **options).weights() for each in (folder, models("qwen3_vl_moe", "deepstack").folder)
        ]
        assert all(torch.equal(pairs[0][name], pairs[1][name]) for name in pairs[1])
    source = open_source(folder)
    assert compare_modules(source, source.weights()).difference < 1e-12


def test_an_export_refuses_names_of_other_tiles(models):
    source = open_source(models("lfm2_vl", "tiles").folder)
    right = placeholders.read_placeholder(source, source.config, source.folder)
    transposed = tuple(
        tuple(row[place] for row in right.names if place < len(row)) for place in range(len(right.names))
    )
    for wrong in ({"names": transposed}, {"whole": right.start}, {"count": 1}, {"special_tokens": True}):
        if wrong == {"special_tokens": True}:
            source = open_source(models("lfm2_vl", "begins").folder)
            right = placeholders.read_placeholder(source, source.config, source.folder)
        with pytest.raises(ExportError, match="prompt with pictures"):
            placeholders.compare_prompts(source, replace(right, **wrong), source.folder)


MODULE_FAULTS = {
    ("llava", "clip", "another layer"): lambda config: replace(config, feature_layers=(1,)),
    ("llava", "clip", "the class token for a patch"): lambda config: replace(
        config, tower=replace(config.tower, embedding_norm=None)
    ),
    ("internvl", "tiles", "LayerScale ignored"): lambda config: replace(
        config,
        tower=replace(config.tower, blocks=tuple(replace(each, layer_scale=None) for each in config.tower.blocks)),
    ),
    ("internvl", "norms", "no norm behind all blocks"): lambda config: replace(
        config, tower=replace(config.tower, final_norm=None)
    ),
    ("internvl", "norms", "queries and keys without norms"): lambda config: replace(
        config,
        tower=replace(
            config.tower,
            blocks=tuple(
                replace(each, attention=replace(each.attention, qk_norm=None)) for each in config.tower.blocks
            ),
        ),
    ),
    ("lfm2_vl", "tiles", "corners on corners"): lambda config: replace(
        config, tower=replace(config.tower, antialiased=None)
    ),
    ("llava", "layers", "layers exchanged"): lambda config: replace(config, feature_layers=config.feature_layers[::-1]),
    ("smolvlm", "fractions", "positions without rounding"): lambda config: replace(
        config, tower=replace(config.tower, fractional=False)
    ),
}


def of_vision(**changes):
    """Return a function that changes fields of a config's tower."""
    return lambda config: replace(config, tower=replace(config.tower, **changes))


def of_axes(**changes):
    """Return a function that changes the axes of a config's positions."""
    return lambda config: replace(config, axes=replace(config.axes, **changes))


def without_bounds(block):
    return replace(
        block, attention=replace(block.attention, clamped=None), feed_forward=replace(block.feed_forward, clamped=None)
    )


MODULE_FAULTS |= {
    ("qwen2_vl", "squares", "axes that take turns"): of_axes(sections=(4, 2, 2), interleaved=True),
    ("qwen2_vl", "single patches", "height for width"): of_axes(sections=(1, 3, 2, 2)),
    ("qwen2_5_vl", "windows", "windows ignored"): of_vision(attention_windows=None),
    ("qwen2_5_vl", "windows", "larger windows"): of_vision(attention_windows=PatchWindows(squares=3, everywhere=(1,))),
    ("qwen2_5_vl", "windows", "another block sees all"): of_vision(
        attention_windows=PatchWindows(squares=2, everywhere=(2,))
    ),
    ("mistral3", "of nine", "the epsilon of the tower"): lambda config: replace(
        config, projector=replace(config.projector, norm=replace(config.projector.norm, eps=1e-5))
    ),
    ("mistral3", "squares", "no norm before the blocks"): of_vision(embedding_norm=None),
    ("paddleocr_vl", "squares", "corners on corners"): of_vision(bordered=None),
    ("paddleocr_vl", "untied", "antialiased"): of_vision(bordered=None, antialiased=True),
    ("qwen3_vl", "deepstack", "no deepstack"): lambda config: replace(config, deepstack=None),
    ("qwen3_vl", "deepstack", "states of other layers"): lambda config: replace(config, deepstack=(1, 2)),
    ("qwen3_vl", "deepstack", "axes one after the other"): of_axes(interleaved=False),
    ("qwen3_5", "hybrid", "axes one after the other"): of_axes(interleaved=False),
    ("gemma4", "clamped", "no bounds"): lambda config: replace(
        config, tower=replace(config.tower, blocks=tuple(map(without_bounds, config.tower.blocks)))
    ),
    ("gemma4", "clamped", "rows of the placeholder"): lambda config: replace(
        config, layer_input=replace(config.layer_input, token=config.layer_input.placeholder)
    ),
    ("gemma4", "large", "rows of token 0"): lambda config: replace(
        config, layer_input=replace(config.layer_input, token=0)
    ),
    ("gemma4", "clamped", "columns and rows in turn"): of_vision(axis_tables="alternating"),
    ("gemma4", "clamped", "pixels from 0 to 1"): lambda config: replace(
        config, tower=replace(config.tower, patches=replace(config.tower.patches, centred=None))
    ),
    ("gemma4", "standardized", "not standardized"): lambda config: replace(
        config, projector=replace(config.projector, standardized=None)
    ),
    ("gemma4", "standardized", "means without their factor"): lambda config: replace(
        config, projector=replace(config.projector, scale=None)
    ),
    ("gemma4_unified", "blocks", "causal pictures"): lambda config: replace(config, bidirectional=None),
    ("gemma4_unified", "blocks", "both ways in all layers"): lambda config: replace(config, bidirectional="pictures"),
    ("gemma4_unified", "blocks", "rows for columns"): of_vision(axis_tables="columns_first"),
    ("gemma4_unified", "blocks", "no norm behind positions"): of_vision(embedding_norm=None),
    ("gemma4_unified", "blocks", "another epsilon"): lambda config: replace(
        config, projector=replace(config.projector, norm=replace(config.projector.norm, eps=1e-3))
    ),
    ("gemma4", "blocks", "causal pictures"): lambda config: replace(config, bidirectional=None),
    ("gemma4", "blocks", "both ways in all layers"): lambda config: replace(config, bidirectional="pictures"),
}


@pytest.mark.parametrize(("family", "name", "wrong"), MODULE_FAULTS)
def test_an_export_refuses_a_model_that_is_another(models, family, name, wrong):
    source = open_source(models(family, name).folder)
    changed = replace(source, config=MODULE_FAULTS[family, name, wrong](source.config))
    with pytest.raises(ExportError, match="does not compute what"):
        compare_modules(changed, source.weights())


def row_by_row(places, grid, patches, square, window):
    """Return the places of patches as if they came row by row, and not in squares."""
    right = places(grid, patches, square, window)
    number = torch.arange(patches)
    return replace(right, rows=number // grid[0, 2], columns=number % grid[0, 2])


def half_pixels(self, places, grid, side):
    """Return positions of a table whose corners are not those of the picture."""
    table = self.position_embedding(torch.arange(side**2)).view(1, side, side, -1).permute(0, 3, 1, 2)
    size = tuple(grid[0, 1:].tolist())
    found = torch.nn.functional.interpolate(table, size, mode="bilinear", align_corners=False)
    return found[0][:, places.rows, places.columns].T.unsqueeze(0)


def a_layer_late(self, x, run, caches, encoder_caches=(), added=()):
    return RUN_BLOCKS(self, x, run, caches, encoder_caches, [torch.zeros_like(x), *added] if added else added)


def angles_of_rows(self, places, order):
    """Turn columns by the angles of rows."""
    found, [rotary] = ANGLES(self, places, order), self.shared.rotaries
    table, half = self.rotary_table(rotary), found[rotary].cos.shape[1] // 2
    cos, sin = (
        torch.cat((one[:, :half], each[:, 0::2][places.columns]), 1)
        for one, each in ((found[rotary].cos, table.cos), (found[rotary].sin, table.sin))
    )
    return {rotary: replace(found[rotary], cos=cos, sin=sin)}


def state_by_state(self, states):
    """Merge the states of a square one after the other, and not number by number."""
    joined, width = self.config.joined, self.merge.out_features
    x = self.norm(states).view(-1, joined * width)
    return MERGED(self, states) if joined == 1 else self.output(torch.relu(self.input(self.merge(x)))).unsqueeze(0)


def columns_by_rows(self, places, order):
    """Turn the first half of heads by rows, and the second by columns."""
    return ANGLES(self, replace(places, rows=places.columns, columns=places.rows), order)


def turned_as_a_whole(self, places, order):
    """Turn both halves of heads by columns."""
    return ANGLES(self, replace(places, rows=places.columns), order)


def means_of_others(self, states):
    """Average every ninth state."""
    return states.squeeze(0).view(self.factor**2, -1, states.shape[-1]).mean(0)


ANGLES, MERGED, WITHIN = GridVisionEncoder._angles, MergedPatches.forward, linear._within
PLACES, RUN_BLOCKS = PatchPlaces.of, Decoder.run_blocks
CODE_FAULTS = {
    ("qwen2_vl", "squares", "height and width of the grid swapped"): (
        PatchPlaces, "of", lambda grid, *others: PLACES(grid[:, [0, 2, 1]], *others),
    ),
    ("qwen2_vl", "squares", "patches row by row"): (
        PatchPlaces, "of", lambda *given: row_by_row(PLACES, *given),
    ),
    ("qwen2_5_vl", "windows", "squares left in the order of windows"): (
        PatchPlaces, "of", lambda grid, *others: replace(
            PLACES(grid, *others), restored=PLACES(grid, *others[:-1], None).restored
        ),
    ),
    ("mistral3", "of nine", "states of a square one after the other"): (MergedPatches, "forward", state_by_state),
    ("mistral3", "squares", "height and width of the grid swapped"): (
        PatchPlaces, "of", lambda grid, *others: PLACES(grid[:, [0, 2, 1]], *others),
    ),
    ("llava_pixtral", "patches", "rows and columns by the same angles"): (
        GridVisionEncoder, "_angles", angles_of_rows,
    ),
    ("qwen3_vl", "deepstack", "corners of the table beside those of the picture"): (
        GridVisionEncoder, "_interpolated", half_pixels,
    ),
    ("qwen3_vl", "of nine", "deepstack a layer late"): (Decoder, "run_blocks", a_layer_late),
    ("gemma4", "clamped", "height and width of the grid swapped"): (
        PatchPlaces, "of", lambda grid, *others: PLACES(grid[:, [0, 2, 1]], *others),
    ),
    ("gemma4", "clamped", "patches row by row"): (PatchPlaces, "of", lambda *given: row_by_row(PLACES, *given)),
    ("gemma4", "clamped", "columns turn by rows"): (GridVisionEncoder, "_angles", columns_by_rows),
    ("gemma4", "standardized", "rows turn by columns"): (GridVisionEncoder, "_angles", turned_as_a_whole),
    ("gemma4", "clamped", "means of other patches"): (PooledPatches, "_means", means_of_others),
    ("gemma4", "clamped", "bounds of what is read alone"): (
        linear, "_within", lambda x, least, most: x if x.shape[-1] in (8, 24) else WITHIN(x, least, most),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("family", "name", "wrong"), CODE_FAULTS)
def test_an_export_refuses_code_that_is_another(models, family, name, wrong):
    source = open_source(models(family, name).folder)
    with patch.object(*CODE_FAULTS[family, name, wrong]), pytest.raises(ExportError, match="does not compute what"):
        compare_modules(source, source.weights())


GRID_FAULTS = {
    "height and width swapped": fault(GridPatches, "patch_grid", lambda grid: grid[:, [0, 2, 1]]),
    "patches in another order": fault(GridPatches, "values", lambda values: values[::-1]),
    "blue for red": fault(Processor, "normalized", lambda values: values[::-1]),
    "rounded to smaller squares": fault(GridProcessor, "resized", lambda size: (size[0] - 14, size[1])),
}


@pytest.mark.parametrize("name", GRID_FAULTS)
def test_an_export_refuses_patches_that_are_others(models, name):
    source = open_source(models("qwen2_vl", "squares").folder)
    assert compare_pictures(source.folder, source.pictures) == ()
    with GRID_FAULTS[name], pytest.raises(ExportError, match="does not make of a picture"):
        compare_pictures(source.folder, source.pictures)


EDGE_FAULTS = {
    "height and width swapped": fault(LongestEdge, "patch_grid", lambda grid: grid[:, [0, 2, 1]]),
    "patches in another order": fault(LongestEdge, "values", lambda values: values[::-1]),
    "a smaller limit": fault(LongestEdgeProcessor, "resized", lambda size: (size[0] - 14, size[1])),
}


@pytest.mark.parametrize("name", EDGE_FAULTS)
def test_an_export_refuses_other_patches_of_mistral(models, name):
    source = open_source(models("mistral3", "squares").folder)
    assert compare_pictures(source.folder, source.pictures) == ()
    with EDGE_FAULTS[name], pytest.raises(ExportError, match="does not make of a picture"):
        compare_pictures(source.folder, source.pictures)


RUNTIME_FAULTS = {
    "delta 0": patch.object(picture_rows, "shift", lambda spans: 0),
    "height and width of positions swapped": patch.object(
        picture_rows, "positions_of", lambda *given: positions_of(*given)[[0, 2, 1]]
    ),
    "states behind the first blocks left out": patch.object(
        PictureRows, "embeddings", lambda self, tokens: EMBEDDINGS(self, tokens) * (np.arange(120) < 40)
    ),
}  # fmt: skip
EMBEDDINGS = PictureRows.embeddings


def rows_of_another(self, tokens):
    found = EMBEDDINGS(self, tokens)
    found[..., 40:] = np.roll(found[..., 40:], 1, -1)
    return found


FAULTS_OF_GEMMA4 = {
    "rows per layer exchanged": patch.object(PictureRows, "embeddings", rows_of_another),
    "no bounds": patch.object(linear, "_within", lambda x, least, most: x),
    "means of other patches": patch.object(PooledPatches, "_means", means_of_others),
}


@pytest.mark.parametrize("name", [None, *FAULTS_OF_GEMMA4])
def test_verification_refuses_another_gemma4(models, bundles, name):
    bundle = bundles(*GEMMA4)  # made without the fault
    with FAULTS_OF_GEMMA4[name] if name else nullcontext():
        failed = {check.name for check in verify(bundle, models(*GEMMA4).folder, mode="quick").failures()}
    assert bool(failed) == (name is not None) and all(each.startswith("pictures, ") for each in failed)


def test_what_hears_is_left_out_and_said(models, bundles):
    origin = open_checkpoint(open_source(models("gemma4", "standardized").folder)).origin
    [left_out] = origin.provenance.left_out
    assert left_out.modality == "audio" and left_out.tensors > 50
    manifest = Manifest.read(bundles(*GEMMA4))
    assert manifest.provenance.left_out is None
    card = model_card(replace(manifest, provenance=origin.provenance), "")
    assert f"| left out | {left_out} |" in card


def test_a_prompt_with_a_recording_is_refused(models):
    source = open_source(models(*GEMMA4).folder)
    placeholder = placeholders.read_placeholder(source, source.config, source.folder)
    for sound in (placeholder.sound, placeholder.video):
        with pytest.raises(RequestError, match="recordings are not heard|videos are not read"):
            placeholder.check_prompt([1, sound, 2])


@pytest.mark.parametrize("name", RUNTIME_FAULTS)
def test_verification_refuses_other_positions_and_states(models, bundles, name):
    case = "qwen3_vl", "deepstack"
    bundle = bundles(*case)  # made without the fault
    with RUNTIME_FAULTS[name]:
        report = verify(bundle, models(*case).folder, mode="quick")
    failed = {check.name for check in report.failures()}
    assert any(each.startswith("pictures, text") or each.startswith("pictures, chunks") for each in failed)
    assert all(each.startswith("pictures, ") for each in failed)


def test_pictures_of_any_size_share_the_weights_of_the_text(bundles):
    import onnx

    stored = {}
    for file in ("model", "decoder_model_merged"):
        graph = onnx.load(bundles("qwen2_vl", "squares") / f"onnx/{file}.onnx", load_external_data=False).graph
        stored[file] = {each.name: str(each.external_data) for each in graph.initializer if each.external_data}
    assert any("qkv" in name for name in stored["model"])
    assert stored["decoder_model_merged"].items() <= stored["model"].items()


@pytest.fixture
def qwen(bundles):
    """Return the model of deepstack and positions of three axes in the runtime."""
    return load(bundles("qwen3_vl", "deepstack"), "cpu", 1)


def test_another_question_about_a_picture_is_read_alone(bundles, monkeypatch):
    """The model has states, too, which cannot be cut back to the end of the picture."""
    monkeypatch.setattr(prefix_cache, "SHORTEST", 4)
    model, options = load(bundles("lfm2_vl", "tiles"), "cpu", 1), {"max_new_tokens": 4, "ignore_eos": True}

    def asked(text):
        parts = [{"type": "image"}, {"type": "text", "text": text}]
        return model.chat([{"role": "user", "content": parts}], images=PICTURES[:1], **options).finish()

    first, second = asked("Which is red?"), asked("What now?")
    question = len(model.encode("What now?"))
    left = second.prompt_tokens - second.cached_tokens
    assert first.cached_tokens == 0 and question <= left < question + 16
    model.prefix_cache.clear()
    assert asked("What now?").token_ids == second.token_ids


def test_chunks_and_batches_have_the_positions_of_one_run(qwen):
    mark, options = MARKS["qwen3_vl"], {"max_new_tokens": 5, "ignore_eos": True}
    prompts = [f"{mark}{mark} a", f"b {mark} c {mark} d {mark}", "e", mark]
    images = [PICTURES[:2], PICTURES[::-1], [], PICTURES[2:]]
    alone = [qwen.generate(prompt, images=each, **options) for prompt, each in zip(prompts, images, strict=True)]
    both = qwen.generate(prompts, images=images, **options)
    assert [each.token_ids for each in both] == [each.token_ids for each in alone]
    seen = qwen.see(prompts[1], images[1])
    whole = qwen.forward(qwen.tokenizer.encode(prompts[1]), images[1])
    for chunk in (1, 7, 64):
        decoder = qwen.new_decoder(1, len(seen.tokens))
        decoder.graph.pictures = seen.pictures
        assert error(decoder.prefill_all(0, seen.tokens, chunk=chunk), whole) < LIMIT


def test_a_chat_finds_the_same_pictures_again(qwen):
    """Positions up to the last picture depend on all pictures: another one behind them is another prefix."""
    options = {"max_new_tokens": 4, "ignore_eos": True}
    first = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Which is red?"}]}
    answer = qwen.chat([first], images=PICTURES[:1], **options).finish()
    more = [first, {"role": "assistant", "content": [{"type": "text", "text": answer.text}]}, first]
    follow = [*more[:2], {"role": "user", "content": [{"type": "text", "text": "And now?"}]}]
    again = qwen.chat(follow, images=PICTURES[:1], **options).finish()
    assert again.cached_tokens > answer.prompt_tokens - 8
    another = qwen.chat(more, images=PICTURES[:2], **options).finish()
    assert another.cached_tokens == 0
    qwen.prefix_cache.max_bytes = 0
    for messages, count, found in ((follow, 1, again), (more, 2, another)):
        qwen.prefix_cache.clear()
        assert qwen.chat(messages, images=PICTURES[:count], **options).finish().token_ids == found.token_ids


def test_a_video_is_refused(qwen):
    for prompt in ("<|vision_start|><|video_pad|><|vision_end|> a", f"{MARKS['qwen3_vl']}<|video_pad|>"):
        with pytest.raises(RequestError, match="placeholder of a video"):
            qwen.generate(prompt, images=PICTURES[: prompt.count("image_pad")])


def test_a_long_line_is_refused_before_the_tower_runs(qwen):
    with pytest.raises(RequestError, match="longer side is at most 200 times"):
        qwen.generate(MARKS["qwen3_vl"], images=[np.zeros((2, 401, 3), np.uint8)])


PATCHES = 16
"""Patches of a tile of the models that these faults are planted for."""


def without_newlines(packing):
    """Return a packing in which another state stands where a row ends."""
    ends = packing.rows[:, 0] == PATCHES
    return replace(packing, rows=np.where(ends[:, None], 0, packing.rows))


PACKING_FAULTS = {
    "rows without newlines": without_newlines,
    "tiles one after the other": lambda packing: replace(packing, rows=np.sort(packing.rows, 0)),
    "the whole picture last": lambda packing: replace(packing, rows=np.roll(packing.rows, -PATCHES, 0)),
    "weights exchanged": lambda packing: replace(packing, weights=packing.weights[:, ::-1].copy()),
}


@pytest.mark.parametrize("name", PACKING_FAULTS)
def test_an_export_refuses_other_packings(models, name):
    source = open_source(models("llava_onevision", "shrunk" if "weights" in name else "layer").folder)
    wrong = fault(AnyResolution, "packing", PACKING_FAULTS[name])
    with wrong, pytest.raises(ExportError, match="does not compute"):
        compare_modules(source, source.weights())


def test_an_export_refuses_squares_in_another_order(models):
    source = open_source(models("lfm2_vl", "tiles").folder)
    right = PatchPlaces.of

    def columns_first(grid, *others):
        return replace(right(grid, *others), rows=right(grid, *others).columns, columns=right(grid, *others).rows)

    with patch.object(PatchPlaces, "of", columns_first), pytest.raises(ExportError, match="does not compute"):
        compare_modules(source, source.weights())


@pytest.mark.parametrize("family", ["internvl", "smolvlm"])
def test_an_export_refuses_patches_in_another_order(models, family):
    source = open_source(models(family, "tiles").folder)
    right = projectors.squares

    def columns_first(states, factor):
        side = round(states.shape[1] ** 0.5)
        return right(states.unflatten(1, (side, side)).transpose(1, 2).flatten(1, 2), factor)

    with patch.object(projectors, "squares", columns_first), pytest.raises(ExportError, match="does not compute"):
        compare_modules(source, source.weights())


def test_verification_refuses_permuted_rows_of_the_projector(models, bundles):
    """The weights that a bundle is verified against are others than those that it has."""
    family, name = EXPORTED_ALWAYS[0]
    bundle, plain = bundles(family, name), CastWeights.__getitem__

    def permuted(self, key):
        value = plain(self, key)
        return value.roll(1, 0) if key == "projector.output.weight" else value

    with patch.object(CastWeights, "__getitem__", permuted):
        report = verify(bundle, models(family, name).folder, mode="quick")
    failed = {check.name for check in report.failures()}
    assert any(each.startswith("pictures, tower") for each in failed)
    assert all(each.startswith("pictures, ") for each in failed)


def read_causally():
    """A block of which each state sees the ones before it."""
    read = PictureText.read_embeddings

    def causally(self, *inputs):
        with patch.object(self, "seeing", replace(self.seeing, bidirectional=None)):
            return read(self, *inputs)

    return patch.object(PictureText, "read_embeddings", causally)


def attend_otherwise(changed):
    """Attention whose `causal` and `window` are others than the model's."""
    right = ops.group_query_attention

    def otherwise(*inputs, causal, window, **options):
        return right(*inputs, **options, **changed(causal, window))

    return patch.object(ops, "group_query_attention", otherwise)


def pool_columns_first():
    def transposed(squares):
        side = round(squares.shape[1] ** 0.5)
        return squares.unflatten(1, (side, side)).transpose(1, 2).flatten(1, 2)

    return fault(PooledPatches, "forward", transposed)


def norm_without_one():
    make = PooledPatches.__init__

    def without_one(self, config, *sizes):
        make(self, replace(config, norm=replace(config.norm, offset=0.0)), *sizes)

    return patch.object(PooledPatches, "__init__", without_one)


def read_with_windows():
    """A prompt in which windows hold, as in the pictures of Gemma 3."""
    make = Context.__init__

    def limited(self, *given, bidirectional=None, **options):
        make(self, *given, bidirectional=bidirectional and "pictures", **options)

    return patch.object(Context, "__init__", limited)


PROMPT_FAULTS = {"a causal prompt": read_causally, "windows in a prompt": read_with_windows}
BLOCK_FAULTS = {
    "a causal block": read_causally,
    "both ways in full layers alone": lambda: attend_otherwise(
        lambda causal, window: {"causal": causal or bool(window), "window": window}
    ),
    "no window in a block": lambda: attend_otherwise(
        lambda causal, window: {"causal": causal, "window": window if causal else 0}
    ),
    "squares transposed": pool_columns_first,
    "a norm without the 1": norm_without_one,
    "states scaled as embeddings": lambda: fault(PictureText, "see", lambda states: states * states.shape[-1] ** 0.5),
}


@pytest.mark.parametrize(
    ("model", "name"),
    [*((GEMMA3, each) for each in BLOCK_FAULTS), *((PALIGEMMA, each) for each in PROMPT_FAULTS)],
    ids=[*BLOCK_FAULTS, *PROMPT_FAULTS],
)
def test_planted_faults_of_blocks_are_refused(models, bundles, model, name):
    planted = (BLOCK_FAULTS | PROMPT_FAULTS)[name]
    source, bundle = open_source(models(*model).folder), bundles(*model)
    with planted(), pytest.raises(ExportError, match="does not compute what"):
        compare_modules(source, source.weights())
    with planted():
        report = verify(bundle, source.folder, mode="quick")
    failed = {check.name for check in report.failures()}
    assert failed and all(each.startswith("pictures, ") for each in failed)


@pytest.mark.parametrize(
    "fault",
    [
        # numbers that follow numbers are inside a block: two pictures side by side are one
        lambda: patch.object(
            picture_blocks, "is_inside", lambda tokens, size: np.r_[False, tokens[:-1] >= size] & (tokens >= size)
        ),
        lambda: patch.object(picture_blocks, "has_blocks", lambda manifest: False),
    ],
    ids=["neighbours as one", "cut anywhere"],
)
def test_verification_refuses_blocks_that_are_cut_elsewhere(models, bundles, fault):
    bundle = bundles(*GEMMA3)
    with fault():
        report = verify(bundle, models(*GEMMA3).folder, mode="quick")
    assert any(check.name.startswith("pictures, text with pictures") for check in report.failures())


@pytest.fixture
def gemma3(bundles):
    """Return the model of blocks in the runtime."""
    return load(bundles(*GEMMA3), "cpu", 1)


def test_a_block_is_one_run_whatever_the_chunk(gemma3):
    assert "windowed" not in gemma3.manifest.graphs  # whose caches are shorter than those that the block's graph reads
    seen = gemma3.see(PROMPT.format(MARKS["gemma3"]), PICTURES)
    size = gemma3.manifest.vocab_size
    found = []
    for chunk in (1, 2, 5, 256):
        decoder = gemma3.new_decoder(1, len(seen.tokens))
        decoder.graph.pictures = seen.pictures
        found.append(decoder.prefill_all(0, seen.tokens, chunk=chunk))
        assert error(found[-1], found[0]) <= LIMIT
    blocks = np.flatnonzero(np.array(seen.tokens) >= size).reshape(3, gemma3.config.picture_tokens)
    for first, *_, last in blocks:
        assert picture_blocks.piece_end(seen.tokens, first, 1, size) == last + 1
        assert picture_blocks.piece_end(seen.tokens, first - 2, 256, size) == first
        assert [picture_blocks.prefix_end(seen.tokens, place, size) for place in (first, last, last + 1)] == [
            first, first, last + 1,
        ]  # fmt: skip
        with pytest.raises(ValueError, match="inside a block"):
            picture_blocks.piece_end(seen.tokens, first + 1, 1, size)
    beside = np.concatenate([picture_numbers(bytes([index]), 4, size) for index in range(3)])
    assert [picture_blocks.piece_end(beside, start, 256, size) for start in (0, 4, 8)] == [4, 8, 12]


def test_prefixes_end_at_borders_of_blocks(gemma3):
    options = {"max_new_tokens": 4, "ignore_eos": True}
    spelled = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Is <start_of_image> red?"}]}]
    fresh = gemma3.chat(spelled, images=PICTURES[:1], **options).finish()
    again = gemma3.chat(spelled, images=PICTURES[:1], **options).finish()
    assert (again.token_ids, again.cached_tokens) == (fresh.token_ids, fresh.prompt_tokens - 1)
    seen = gemma3.see(gemma3.tokenizer.encode_chat(spelled), PICTURES[:1])
    first = next(place for place, token in enumerate(seen.tokens) if token >= gemma3.manifest.vocab_size)
    for inside in range(first, first + gemma3.config.picture_tokens + 1):
        cache = PrefixCache(1 << 20)
        decoder = gemma3.new_decoder(1, len(seen.tokens))
        decoder.graph.pictures = seen.pictures
        whole = decoder.prefill(0, seen.tokens).copy()
        with patch.object(prefix_cache, "SHORTEST", 1):
            decoder.lengths[0] = inside
            cache.keep(decoder, 0, seen.tokens[:inside])
            decoder.take(0)
            found = cache.restore(decoder, 0, seen.tokens).length
        assert found == (inside if inside in (first, first + gemma3.config.picture_tokens) else first)
        np.testing.assert_allclose(decoder.prefill(0, seen.tokens[found:]), whole, rtol=0, atol=1e-5)


def test_an_assistant_who_spelled_a_picture_wrote_text(gemma3):
    spelled = {"role": "assistant", "content": "I see <start_of_image>, <image_soft_token>."}
    ids = gemma3.tokenizer.encode_chat([{"role": "user", "content": [{"type": "image"}]}, spelled])
    assert ids.count(gemma3.placeholder.token) == 1
    assert gemma3.tokenizer.decode(ids, skip_special_tokens=False).count("<start_of_image>") == 2


def changed_folder(source, tmp_path, file, **fields):
    """Copy a model with other fields in one of its files."""
    folder = shutil.copytree(source, tmp_path / "model")
    data = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps(data | fields))
    return folder


@pytest.mark.parametrize(
    ("family", "file", "fields", "message"),
    [
        ("smolvlm", "preprocessor_config.json", {"do_tricks": True}, "do_tricks"),
        ("smolvlm", "preprocessor_config.json", {"image_processor_type": "ViTImageProcessor"}, "size|kind"),
        ("smolvlm", "processor_config.json", {"image_seq_len": 9}, "image_seq_len = 9"),
        ("smolvlm", "processor_config.json", {"tricks": 1}, "tricks"),
        ("smolvlm", "config.json", {"image_token_id": 5}, "image_token_id = 5"),
        ("smolvlm", "config.json", {"vision_trick": 5}, "vision_trick"),
        ("llava", "config.json", {"vision_feature_layer": 7}, "feature layer 7"),
        ("llava", "config.json", {"vision_config": {"model_type": "vit"}}, "model_type"),
        ("llava_pixtral", "config.json", {"vision_feature_select_strategy": "default"}, "select_strategy = 'default'"),
        ("mistral3", "config.json", {"vision_feature_layer": [1, 2]}, "feature layer \\[1, 2\\]"),
        ("mistral3", "preprocessor_config.json", {"size": {"height": 9, "width": 9}}, "longest_edge"),
        ("gemma4", "preprocessor_config.json", {"max_soft_tokens": 71}, "max_soft_tokens = 71"),
        ("gemma4", "preprocessor_config.json", {"pooling_kernel_size": 2}, "merge_size and temporal_patch_size"),
        ("gemma4", "config.json", {"vision_config": {"head_dim": 6}}, "head_dim = 6"),
        (
            "gemma4",
            "config.json",
            {"vision_config": {"patch_size": 3, "position_embedding_size": 100}},
            "100 positions",
        ),
    ],
)
def test_unknown_fields_are_refused_with_the_way_out(models, tmp_path, family, file, fields, message):
    name = next(iter(MODELS[family]))
    folder = changed_folder(models(family, name).folder, tmp_path, file, **fields)
    with pytest.raises(ConfigError, match=message) as refused:
        export_model(folder, tmp_path / "bundle", verify=None)
    assert "--text-only" in str(refused.value)
    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize(
    "options", [{"provider": "cuda", "precision": "fp16"}, {"deployment": "mobile"}, {"cache_precision": "int8"}]
)
def test_places_without_pictures_are_refused(models, tmp_path, options):
    with pytest.raises(ExportError, match="--text-only"):
        export_model(models(*EXPORTED_ALWAYS[0]).folder, tmp_path / "bundle", verify=None, **options)


KINDS = (
    {"precision": "int4"}, {"precision": "int8"}, {"precision": "fp16"}, {"ops": "standard"}, {"ops": "portable"},
    {"deployment": "web"}, {"ops": "standard", "cache": "static"},
)  # fmt: skip
OF_EVERY_KIND = (
    ("smolvlm", "whole"), ("internvl", "norms"), ("llava", "layers"), ("lfm2_vl", "tiles"),
    ("gemma3", "patches left out"), PALIGEMMA, ("qwen2_vl", "squares"), ("qwen2_5_vl", "windows"),
    ("qwen3_vl", "deepstack"), ("qwen3_5", "attention"), GEMMA4,
)  # fmt: skip
THREE_KINDS = [
    (*model, KINDS[(index + step) % len(KINDS)]) for index, model in enumerate(OF_EVERY_KIND) for step in (0, 1, 3)
]
"""Three kinds of bundles of each model, of the seven. Each kind has four models or more, and any two kinds have one."""


@pytest.mark.slow
@pytest.mark.parametrize(("family", "name", "options"), THREE_KINDS)
def test_every_kind_of_bundle_reads_pictures(models, tmp_path, family, name, options):
    try:
        export_model(models(family, name).folder, tmp_path / "bundle", **options)
    except ParityError as error:
        pytest.fail(str(error))
    prompt = f"{MARKS.get(family, '<image>')} a"
    found = load(tmp_path / "bundle", "cpu", 1).generate(prompt, images=[PICTURES[0]], max_new_tokens=3)
    assert found.prompt_tokens > 3
