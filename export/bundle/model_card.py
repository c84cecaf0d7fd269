"""README.md of a bundle: what it is, its sizes, how to run it."""

import json
import shlex
from pathlib import Path
from typing import Any

from edgeformer.accounting import account, cache_element_bytes
from edgeformer.config import (
    AudioStem,
    ClassificationHead,
    DecoderConfig,
    EncoderConfig,
    MaskedLMHead,
    PoolingHead,
    Seq2SeqConfig,
    StackConfig,
)
from edgeformer.deployment import DEPLOYMENTS
from edgeformer.export.bundle.ort_format import OPERATORS
from edgeformer.manifest import Manifest

BERT_MASK = "[MASK]"


def model_card(manifest: Manifest, parity: str, folder: Path | None = None) -> str:
    """Write the card of a bundle; parity is a paragraph about its verification, folder has its tokenizer and config."""
    warning = ""
    if manifest.random_weights is not None:
        warning = (
            f"\n**The weights are random (seed {manifest.random_weights}), not trained:** what it says is noise. "
            "It is here to try the tools.\n"
        )
    match manifest.task:
        case "causal-lm":
            examples = _decoder_examples(manifest)
        case "seq2seq-lm":
            examples = _seq2seq_examples(manifest)
        case "encoder":
            examples = _encoder_examples(manifest, _mask_token(folder))
    if DEPLOYMENTS[manifest.deployment].ort_format:
        examples += _ON_PHONES
    return f"""# {manifest.name}

{manifest.source}, exported to ONNX by edgeformer {manifest.versions["edgeformer"]}: {manifest.written_in},
{manifest.precision}.
{warning}
| | |
|---|---|
{_sizes(manifest)}

{parity}

## Run it

In a terminal: `{first_line(manifest, ".", folder)}`. In Python, without torch:

{examples}"""


def first_line(manifest: Manifest, shown: str | Path, folder: Path | None) -> str:
    """A line to try a bundle with. shown: how it names the folder. folder: where its tokenizer and config are."""
    name = shlex.quote(str(shown))
    match manifest.model:
        case EncoderConfig(head=None | PoolingHead()):
            return f'edgeformer embed {name} "A cat sleeps." "A kitten naps." "Stocks fell."'
        case EncoderConfig(head=MaskedLMHead()):
            return f'edgeformer run {name} "The capital of France is {_mask_token(folder)}."'
        case Seq2SeqConfig(encoder=EncoderConfig(audio=AudioStem())):
            return f"edgeformer run {name} recording.wav"
        case Seq2SeqConfig():
            return f'edgeformer run {name} "{_translation_prefix(folder)}The woman sees the dog."'
        case _:
            return f'edgeformer run {name} "Once upon a time, there was a little girl"'


def _mask_token(folder: Path | None) -> str:
    """What the tokenizer in a folder calls a masked word; as BERT's does, where it does not say."""
    token = _read_json(folder, "tokenizer_config.json").get("mask_token")
    return (token.get("content") if isinstance(token, dict) else token) or BERT_MASK


def _translation_prefix(folder: Path | None) -> str:
    """What a request for a translation begins with: the first of config.json, where models like T5 have some."""
    tasks = _read_json(folder, "config.json").get("task_specific_params") or {}
    prefixes = [task.get("prefix") for name, task in tasks.items() if name.startswith("translation")]
    return next(filter(None, prefixes), "")


def _read_json(folder: Path | None, name: str) -> dict[str, Any]:
    """A file of a folder; nothing where there is none."""
    path = None if folder is None else folder / name
    return json.loads(path.read_text(encoding="utf-8")) if path is not None and path.is_file() else {}


def _decoder_examples(manifest: Manifest) -> str:
    cache, dtype = manifest.cache, 'np.float16 if tensor.type == "tensor(float16)" else np.float32'
    if manifest.cache_scales is not None:
        dtype = "np.int8"
    empty, slots = _empty_cache(manifest)
    deployment = DEPLOYMENTS[manifest.deployment]
    genai = _GENAI if "onnxruntime-genai" in deployment.clients else ""
    programs = "" if deployment.ort_format else _PROGRAMS
    return f"""```python
from edgeformer.runtime import load

model = load(".")
for text in model.stream("Once upon a time", max_new_tokens=64):
    print(text, end="", flush=True)
```

With nothing but onnxruntime and numpy (token ids in, the next token id out):

```python
import numpy as np
import onnxruntime as ort

session = ort.InferenceSession("{manifest.graph}")
ids = np.array([[1, 2, 3]])
feeds = {{"input_ids": ids, "attention_mask": np.ones_like(ids)}}
for tensor in session.get_inputs()[2:]:  # {empty}: past_key_values.0.key, …
    dtype = {dtype}
    feeds[tensor.name] = np.zeros((1, {cache.num_kv_heads}, {slots}, {cache.head_dim}), dtype)
logits = session.run(["logits"], feeds)[0]
print(logits[0, -1].argmax())
```
{genai}{_javascript(manifest, _GENERATE_IN_JAVASCRIPT)}{programs}"""


_PROGRAMS = """
In C++, C# and a web page: the programs in `examples/` of edgeformer.
"""


_GENAI = """
With onnxruntime-genai:

```python
import onnxruntime_genai as og

model = og.Model(".")
params = og.GeneratorParams(model)
params.set_search_options(max_length=64)
generator = og.Generator(model, params)
generator.append_tokens([1, 2, 3])
while not generator.is_done():
    generator.generate_next_token()
print(generator.get_sequence(0))
```
"""


_ON_PHONES = f"""
## On a phone

Every graph is one `.ort` file, with its weights in it. onnxruntime opens it as it opens an ONNX file, and so does a
build of it that has no other kernels than these graphs need:

```sh
./build.sh --config MinSizeRel --minimal_build \\
    --include_ops_by_config {OPERATORS} --enable_reduced_operator_type_support
```

with `--android` or `--ios` and what they want to know; see onnxruntime.ai/docs/build/custom.html.
"""


# transformers.js chooses by config.json, which a module of the user's own has not, and starts with an empty cache.
_GENERATE_IN_JAVASCRIPT = """const generate = await pipeline("text-generation", ".");
const [{ generated_text }] = await generate("Once upon a time", { max_new_tokens: 64 });
console.log(generated_text);"""


# It has no beams.
_TRANSLATE_IN_JAVASCRIPT = """const write = await pipeline("text2text-generation", ".");
const [{ generated_text }] = await write("A text to translate or to shorten.", { max_new_tokens: 64, num_beams: 1 });
console.log(generated_text);"""


def _javascript(manifest: Manifest, use: str) -> str:
    """An example for transformers.js; nothing where it cannot load the bundle."""
    deployment = DEPLOYMENTS[manifest.deployment]
    if (manifest.model is None and manifest.backend is None) or manifest.cache_form == "static":
        return ""
    if "transformers.js" not in deployment.clients:
        return ""
    if manifest.task == "seq2seq-lm" and manifest.merged_graph is None:
        return ""
    where = "a browser names the path that the folder is served at"
    if manifest.task == "seq2seq-lm" and deployment.shared_data:
        where = "in Node, since a browser does not find weights that several graphs share"
    return f"""
In JavaScript, where transformers.js knows this type of model; {where}:

```js
import {{ pipeline }} from "@huggingface/transformers";

{use}
```
"""


def _empty_cache(manifest: Manifest) -> tuple[str, int]:
    """What a client starts with, in words, and how long that is."""
    if manifest.cache_form == "static":
        slots = min(16, manifest.context_length)
        return f"an empty cache with room for {slots} tokens", slots
    return "an empty cache", 0


def _seq2seq_examples(manifest: Manifest) -> str:
    config = manifest.model
    assert isinstance(config, Seq2SeqConfig)
    audio = config.encoder.audio
    if audio is not None:
        use = 'print(model.transcribe("recording.wav"))'
        dtype = "np.float16" if manifest.arithmetic == "fp16" else "np.float32"
        source = f"""features = np.zeros((1, {audio.mel_bins}, {2 * config.encoder.context_length}), {dtype})
mask = np.ones((1, {config.encoder.context_length}), np.int64)
read = encoder.run(None, {{"input_features": features}})"""
    else:
        use = 'print(model.generate("A text to translate or to shorten.", num_beams=4).text)'
        source = """source = np.array([[5, 6, 7, 1]])
mask = np.ones_like(source)
read = encoder.run(None, {"input_ids": source, "attention_mask": mask})"""
    empty, slots = _empty_cache(manifest)
    bos, pad = manifest.tokens.bos, manifest.tokens.pad
    start = manifest.generation.get("decoder_start_token_id", (pad or 0) if bos is None else bos)
    return f"""```python
from edgeformer.runtime import load

model = load(".")
{use}
```

With nothing but onnxruntime and numpy (token ids in, token ids out; the encoder runs once, with all that the decoder
reads of it):

```python
import numpy as np
import onnxruntime as ort

encoder = ort.InferenceSession("{manifest.encoder_graph}")
decoder = ort.InferenceSession("{manifest.graph}")
{source}
feeds = {{"encoder_attention_mask": mask}}
for tensor, value in zip(encoder.get_outputs()[1:], read[1:]):  # present.0.encoder.key, …
    feeds[tensor.name.replace("present", "past_key_values")] = value
for tensor in decoder.get_inputs():  # {empty}: past_key_values.0.decoder.key, …
    if ".decoder." in tensor.name:
        dtype = np.float16 if tensor.type == "tensor(float16)" else np.float32
        feeds[tensor.name] = np.zeros((1, {manifest.cache.num_kv_heads}, {slots}, {manifest.cache.head_dim}), dtype)
tokens = [{start}]
for _ in range(8):
    ids, length = np.array([tokens[-1:]]), np.ones((1, len(tokens)), np.int64)
    logits, *presents = decoder.run(None, feeds | {{"input_ids": ids, "decoder_attention_mask": length}})
    tokens.append(int(logits[0, -1].argmax()))
    for tensor, value in zip(decoder.get_outputs()[1:], presents):
        feeds[tensor.name.replace("present", "past_key_values")] = value
print(tokens)
```
{"" if audio is not None else _javascript(manifest, _TRANSLATE_IN_JAVASCRIPT)}"""


def _encoder_examples(manifest: Manifest, mask: str) -> str:
    config = manifest.model
    assert isinstance(config, EncoderConfig)
    match config.head:
        case MaskedLMHead():
            use = f'print(model.fill_mask("The capital of France is {mask}."))'
            task, call = "fill-mask", f'"The capital of France is {mask}."'
        case ClassificationHead():
            use = 'print(model.classify("I like it."))'
            task, call = "text-classification", '"I like it."'
        case head:
            use = 'print(model.embed(["A cat sleeps.", "A kitten naps."]).shape)'
            task, call = "feature-extraction", f'["A cat sleeps.", "A kitten naps."]{_pooled(head)}'
    javascript = f"""const run = await pipeline("{task}", ".");
console.log(await run({call}));"""
    types = ', "token_type_ids": np.zeros_like(ids)' if config.token_types > 1 else ""
    return f"""```python
from edgeformer.runtime import load

model = load(".")
{use}
```

With nothing but onnxruntime and numpy (token ids in; texts of a batch are padded on the right):

```python
import numpy as np
import onnxruntime as ort

session = ort.InferenceSession("{manifest.graph}")
ids = np.array([[1, 2, 3], [4, 5, 0]])
mask = np.array([[1, 1, 1], [1, 1, 0]])
outputs = session.run(None, {{"input_ids": ids, "attention_mask": mask{types}}})
for tensor, value in zip(session.get_outputs(), outputs):
    print(tensor.name, value.shape)
```
{_javascript(manifest, javascript)}"""


def _pooled(head: PoolingHead | None) -> str:
    """How transformers.js makes vectors of the states as the graph does."""
    if head is None:
        return ""
    pooling = "cls" if head.pooling == "first" else "mean"
    return f', {{ pooling: "{pooling}", normalize: {str(head.normalize).lower()} }}'


def _sizes(manifest: Manifest) -> str:
    """Rows of a table; a module that is not ours tells less of itself."""
    model, cache = manifest.model, manifest.cache
    rows: dict[str, object] = (
        {} if not isinstance(model, DecoderConfig) else {"parameters": f"{account(model).parameters:,}"}
    )
    match model:
        case Seq2SeqConfig():
            rows |= {"encoder": _stack(model.encoder), "decoder": _stack(model.decoder)}
        case None:
            rows |= {
                "layers": cache.num_layers,
                "key-value heads / head size": f"{cache.num_kv_heads} / {cache.head_dim}",
            }
        case _:
            rows |= {"layers": _stack(model)}
    rows |= {"vocabulary": f"{manifest.vocab_size:,}", "context": f"{manifest.context_length:,} tokens"}
    if cache.num_layers:
        int8 = "" if manifest.cache_scales is None else ", int8"
        rows |= {"cache": f"{cache.elements(1, 1) * cache_element_bytes(manifest):,} bytes a token{int8}"}
    return "\n".join(f"| {name} | {value} |" for name, value in rows.items())


def _stack(config: StackConfig) -> str:
    attention = config.blocks[0].attention
    grouped = (
        "" if attention.num_kv_heads == attention.num_heads else f" ({attention.num_kv_heads} for keys and values)"
    )
    return (
        f"{len(config.blocks)} layers of {config.hidden_size}, {attention.num_heads} heads of "
        f"{attention.head_dim}{grouped}"
    )
