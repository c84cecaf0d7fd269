"""The model card of a bundle, README.md: what it is, its sizes, how to run it. model_card.md.jinja has its words."""

import functools
import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jinja2

from edgeformer.client_files.encoder_examples import EMBEDDING, EXAMPLES, SEEING, SEEING_VECTORS, Example
from edgeformer.client_files.genai import genai_obstacle
from edgeformer.config import (
    DecoderConfig,
    DualEncoderConfig,
    EncoderConfig,
    PictureEncoderConfig,
    PictureTextConfig,
    PictureTower,
    PoolingHead,
    Seq2SeqConfig,
    SoundTextConfig,
    StackConfig,
    Task,
    TowerTextConfig,
)
from edgeformer.contract.tensors import past_names
from edgeformer.manifest.accounting import account, cache_element_bytes
from edgeformer.manifest.deployment import DEPLOYMENTS, OPERATORS_FILE
from edgeformer.manifest.manifest import TOWER_TASKS, Manifest

TEMPLATE = Path(__file__).with_suffix(".md.jinja")
BERT_MASK = "[MASK]"
"""The token that BERT's tokenizer has for a masked word."""
SLOTS = 16
"""Tokens that the buffer of a static cache in an example has room for."""


def model_card(manifest: Manifest, parity: str, folder: Path | None = None) -> str:
    """Return the model card of a bundle.

    parity: a paragraph about its verification. folder: has its tokenizer and config.json.
    """
    config = manifest.model
    is_static = manifest.plan.cache_form == "static"
    slots = min(SLOTS, manifest.context_length) if is_static else 0
    values: dict[str, Any] = {
        "manifest": manifest,
        "deployment": DEPLOYMENTS[manifest.plan.deployment],
        "parity": parity,
        "sizes": _sizes(manifest),
        "first_line": first_line(manifest, ".", folder),
        "slots": slots,
        "first_state": next(iter(past_names(manifest.cache)), ""),
        "empty_cache": f"an empty cache with room for {slots} tokens" if is_static else "an empty cache",
        "cache_dtype": 'np.float16 if tensor.type == "tensor(float16)" else np.float32',
        "numpy_lacks": _type_that_numpy_lacks(manifest),
        "genai_obstacle": genai_obstacle(manifest.cache),
        "transformers_js_where": _transformers_js_where(manifest),
        "operators": OPERATORS_FILE,
    }
    if manifest.cache_scales is not None:
        values["cache_dtype"] = "np.int8"
    values |= CARDS[manifest.task].values(manifest, config, folder)
    return _template().render(values)


@functools.cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8"))


def _type_that_numpy_lacks(manifest: Manifest) -> str | None:
    """Return the type of a decoder's cache if numpy has none like it."""
    if manifest.cache_scales is not None:
        return "float8e4m3fn" if manifest.cache_scales.precision == "fp8" else None
    return "bfloat16" if manifest.plan.arithmetic == "bf16" else None


def first_line(manifest: Manifest, shown: str | Path, folder: Path | None) -> str:
    """Return a command to try a bundle with. shown: how it names the folder. folder: has its tokenizer and config."""
    name = shlex.quote(str(shown))
    return CARDS[manifest.task].first_line(name, manifest.model, folder)


def _decoder_first_line(name: str, config: DecoderConfig | None, folder: Path | None) -> str:
    return f'edgeformer run {name} "Once upon a time, there was a little girl"'


def _decoder_values(manifest: Manifest, config: DecoderConfig | None, folder: Path | None) -> dict[str, Any]:
    return {}


def _seq2seq_first_line(name: str, config: Seq2SeqConfig, folder: Path | None) -> str:
    if config.is_speech:
        return f"edgeformer run {name} recording.wav"
    if config.sees_pictures:
        return f"edgeformer run {name} --image line.png"
    return f'edgeformer run {name} "{_translation_prefix(folder)}The woman sees the dog."'


def _seq2seq_values(manifest: Manifest, config: Seq2SeqConfig, folder: Path | None) -> dict[str, Any]:
    use = 'print(model.generate("A text to translate or to shorten.", num_beams=4).text)'
    if config.is_speech:
        use = 'print(model.transcribe("recording.wav"))'
    if config.sees_pictures:
        use = 'print(model.generate("line.png").text)'
    bos, pad = manifest.tokens.bos, manifest.tokens.pad
    start = manifest.generation.get("decoder_start_token_id", (pad or 0) if bos is None else bos)
    return {"python_use": use, "audio": config.encoder.audio, "start": start}


def _encoder_example(config: EncoderConfig) -> Example:
    return EXAMPLES[config.head.outputs[0].gives] if config.head is not None else EMBEDDING


def _encoder_first_line(name: str, config: EncoderConfig, folder: Path | None) -> str:
    return _encoder_example(config).command.format(name=name, mask=_mask_token(folder))


def _encoder_values(manifest: Manifest, config: EncoderConfig, folder: Path | None) -> dict[str, Any]:
    example, mask = _encoder_example(config), _mask_token(folder)
    call = example.call.format(mask=mask) + (_pooled(config.head) if isinstance(config.head, PoolingHead) else "")
    return {
        "python_use": example.python.format(mask=mask),
        "javascript_task": example.task,
        "javascript_call": call,
    }


def _picture_encoder_first_line(name: str, config: PictureEncoderConfig, folder: Path | None) -> str:
    gives = config.head.outputs[0].gives if config.head is not None else None
    return SEEING.get(gives, SEEING_VECTORS).command.format(name=name, mask=_mask_token(folder))


def _picture_encoder_values(manifest: Manifest, config: PictureEncoderConfig, folder: Path | None) -> dict[str, Any]:
    gives = config.head.outputs[0].gives if config.head is not None else None
    use = SEEING.get(gives, SEEING_VECTORS).python.format(mask=_mask_token(folder))
    return _encoder_values(manifest, config, folder) | {"python_use": use}


def _vision_first_line(name: str, config: PictureTower, folder: Path | None) -> str:
    if config.classifier is None:
        return f"edgeformer embed {name} --image cat.jpg --image dog.jpg"
    return f"edgeformer run {name} --image cat.jpg"


def _picture_inputs(config: PictureTower) -> dict[str, Any]:
    """Return what a program without our runtime gives to the graph: pictures of one size, or patches of any."""
    return {"patches": config.patches} if config.kind == "vision" else {"patch_numbers": config.patches.inputs}


def _vision_values(manifest: Manifest, config: PictureTower, folder: Path | None) -> dict[str, Any]:
    labels = config.classifier is not None
    use = 'print(model.classify("cat.jpg", top_k=3))' if labels else 'print(model.embed(["cat.jpg", "dog.jpg"]).shape)'
    task = "image-classification" if labels else "image-feature-extraction"
    return {"python_use": use, "javascript_task": task, "javascript_call": '"cat.jpg"', **_picture_inputs(config)}


def _picture_text_first_line(name: str, config: PictureTextConfig, folder: Path | None) -> str:
    if config.bidirectional == "prompt":  # such a model holds no conversation
        return f'edgeformer run {name} --image cat.jpg "<image>What is in the picture?"'
    return f'edgeformer run {name} --chat --image cat.jpg "What is in the picture?"'


def _picture_text_values(manifest: Manifest, config: PictureTextConfig, folder: Path | None) -> dict[str, Any]:
    if config.bidirectional == "prompt":
        return {
            "python_use": 'print(model.generate("<image>What is in the picture?", images=["cat.jpg"]).text)',
        }
    parts = '[{"type": "image"}, {"type": "text", "text": "What is in the picture?"}]'
    use = f'message = {{"role": "user", "content": {parts}}}\n'
    return {"python_use": use + 'print(model.chat([message], images=["cat.jpg"]).finish().text)'}


def _sound_text_first_line(name: str, config: SoundTextConfig, folder: Path | None) -> str:
    return f'edgeformer run {name} --chat --audio recording.wav "What is said?"'


def _sound_text_values(manifest: Manifest, config: SoundTextConfig, folder: Path | None) -> dict[str, Any]:
    parts = '[{"type": "audio"}, {"type": "text", "text": "What is said?"}]'
    use = f'message = {{"role": "user", "content": {parts}}}\n'
    return {"python_use": use + 'print(model.chat([message], sounds=["recording.wav"]).finish().text)'}


def _dual_first_line(name: str, config: DualEncoderConfig, folder: Path | None) -> str:
    return f"edgeformer run {name} --image cat.jpg --label cat --label dog"


def _dual_values(manifest: Manifest, config: DualEncoderConfig, folder: Path | None) -> dict[str, Any]:
    return {
        "python_use": 'print(model.classify("cat.jpg", ["cat", "dog"]))',
        "javascript_task": "zero-shot-image-classification",
        "javascript_call": '"cat.jpg", ["cat", "dog"]',
        **_picture_inputs(config.vision),
    }


class Card(NamedTuple):
    """The sentences and values of the card of one kind of model.

    Attributes:
        first_line: a command to try a bundle with, of its name in a shell, its config, and the folder of its tokenizer.
        values: further values of the template, of its manifest, its config and that folder.
        has_parameters: whether the table of sizes has the number of parameters.
    """

    first_line: Callable[[str, Any, Path | None], str]
    values: Callable[[Manifest, Any, Path | None], dict[str, Any]]
    has_parameters: bool = False


CARDS: dict[Task, Card] = {
    "causal-lm": Card(_decoder_first_line, _decoder_values, has_parameters=True),
    "seq2seq-lm": Card(_seq2seq_first_line, _seq2seq_values),
    "encoder": Card(_encoder_first_line, _encoder_values),
    "image-text-encoder": Card(_picture_encoder_first_line, _picture_encoder_values, has_parameters=True),
    "image-text-to-text": Card(_picture_text_first_line, _picture_text_values, has_parameters=True),
    "audio-text-to-text": Card(_sound_text_first_line, _sound_text_values, has_parameters=True),
    "vision-encoder": Card(_vision_first_line, _vision_values, has_parameters=True),
    "dual-encoder": Card(_dual_first_line, _dual_values, has_parameters=True),
}
"""The cards of all kinds of models. A decoder has no config where its module is not edgeformer's."""


def _transformers_js_where(manifest: Manifest) -> str:
    """Say where transformers.js finds the bundle; nothing where it cannot load it."""
    deployment = DEPLOYMENTS[manifest.plan.deployment]
    is_seq2seq = manifest.task == "seq2seq-lm"
    if (
        "transformers.js" not in deployment.clients
        or (manifest.model is None and manifest.provenance.backend is None)
        or manifest.plan.cache_form == "static"
        or (manifest.cache.num_layers and not manifest.cache.elements_per_token)  # it counts tokens by keys
        or (is_seq2seq and "merged" not in manifest.graphs)
        or manifest.task in TOWER_TASKS  # whose pipelines were not tried
    ):
        return ""
    if is_seq2seq and deployment.shared_data:
        return "in Node, since a browser does not find weights that several graphs share"
    return "a browser names the path that the folder is served at"


def _mask_token(folder: Path | None) -> str:
    """Return the mask token of the tokenizer in a folder; BERT's, where it names none."""
    token = _read_json(folder, "tokenizer_config.json").get("mask_token")
    return (token.get("content") if isinstance(token, dict) else token) or BERT_MASK


def _translation_prefix(folder: Path | None) -> str:
    """Return the first prefix of a translation task in config.json, where models like T5 have some."""
    tasks = _read_json(folder, "config.json").get("task_specific_params") or {}
    prefixes = [task.get("prefix") for name, task in tasks.items() if name.startswith("translation")]
    return next(filter(None, prefixes), "")


def _read_json(folder: Path | None, name: str) -> dict[str, Any]:
    path = None if folder is None else folder / name
    return json.loads(path.read_text(encoding="utf-8")) if path is not None and path.is_file() else {}


def _pooled(head: PoolingHead) -> str:
    """Return the options with which transformers.js pools states as the graph does."""
    names = {"first": "cls", "mean": "mean", "last": "last_token"}
    if head.layers or not isinstance(head.pooling, str) or head.pooling not in names:
        return ', { pooling: "none" } /* a vector for every token: transformers.js does not pool as this model does */'
    cut = "" if head.dimensions is None else f" /* the model's vector is the first {head.dimensions} numbers */"
    return f', {{ pooling: "{names[head.pooling]}", normalize: {str(head.normalize).lower()} }}{cut}'


def _sizes(manifest: Manifest) -> dict[str, object]:
    """Return the rows of the table of sizes; a module that is not ours tells less of itself."""
    model, cache = manifest.model, manifest.cache
    rows: dict[str, object] = {}
    if model is None:
        rows["layers"] = cache.num_layers
        if cache.key_value is not None:
            rows["key-value heads / head size"] = f"{cache.key_value.num_kv_heads} / {cache.key_value.head_dim}"
    else:
        if CARDS[model.task].has_parameters:
            rows["parameters"] = f"{account(model).parameters:,}"
        rows |= {name or "layers": _stack(stack) for name, stack in model.stacks.items()}
    if manifest.pictures is None or manifest.vocab_size:
        rows |= {"vocabulary": f"{manifest.vocab_size:,}", "context": f"{manifest.context_length:,} tokens"}
    if manifest.pictures is not None and model is not None:
        tokens = model.picture_tokens if isinstance(model, TowerTextConfig) else model.input_stack.context_length
        rows["pictures"] = manifest.pictures.described(tokens)
    if manifest.provenance.left_out is not None:
        rows["left out"] = "; ".join(map(str, manifest.provenance.left_out))
    if cache.num_layers:
        kind = "" if manifest.plan.cache_precision is None else f", {manifest.plan.cache_precision}"
        rows["cache"] = f"{cache.elements_per_token * cache_element_bytes(manifest).tokens:,} bytes a token{kind}"
        if cache.recurrent:
            rows["states of fixed size"] = f"{cache.size_in_bytes(cache_element_bytes(manifest), 1, 0):,} bytes a text"
    return rows


def _stack(config: StackConfig) -> str:
    if not config.attentions:
        return f"{len(config.blocks)} layers of {config.hidden_size}, without attention"
    attention = config.attentions[0]
    is_grouped = attention.num_kv_heads != attention.num_heads
    grouped = f" ({attention.num_kv_heads} for keys and values)" if is_grouped else ""
    return (
        f"{len(config.blocks)} layers of {config.hidden_size}, {attention.num_heads} heads of "
        f"{attention.head_dim}{grouped}"
    )
