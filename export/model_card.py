"""README.md of a bundle: what it is, its sizes, how to run it."""

from edgeformer.accounting import ELEMENT_BYTES, account
from edgeformer.manifest import Manifest


def model_card(manifest: Manifest, parity: str) -> str:
    """Write the card of a bundle; parity is a paragraph about its verification."""
    if manifest.task != "causal-lm":
        return f"# {manifest.name}\n\n{parity}\n"
    cache = manifest.cache
    warning = ""
    if manifest.random_weights is not None:
        warning = (
            f"\n**The weights are random (seed {manifest.random_weights}), not trained:** the text it makes is noise. "
            "It is here to try the tools.\n"
        )
    return f"""# {manifest.name}

{manifest.source}, exported to ONNX by edgeformer {manifest.versions["edgeformer"]}: op set `{manifest.ops}` for
{manifest.provider.upper()}, {manifest.precision}.
{warning}
| | |
|---|---|
{_sizes(manifest)}

{parity}

## Run it

In a terminal: `edgeformer run . "Once upon a time"`. In Python, without torch:

```python
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
for tensor in session.get_inputs()[2:]:  # an empty cache: past_key_values.0.key, …
    dtype = np.float16 if tensor.type == "tensor(float16)" else np.float32
    feeds[tensor.name] = np.zeros((1, {cache.num_kv_heads}, 0, {cache.head_dim}), dtype)
logits = session.run(["logits"], feeds)[0]
print(logits[0, -1].argmax())
```

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


def _sizes(manifest: Manifest) -> str:
    """Rows of a table; a module that is not ours tells less of itself."""
    model, cache = manifest.model, manifest.cache
    rows = {
        "layers": cache.num_layers,
        "key-value heads / head size": f"{cache.num_kv_heads} / {cache.head_dim}",
    }
    if model is not None:
        attention = model.blocks[0].attention
        rows = {
            "parameters": f"{account(model).parameters:,}",
            "layers": cache.num_layers,
            "hidden size": model.hidden_size,
            "heads / key-value heads / head size": f"{attention.num_heads} / {cache.num_kv_heads} / {cache.head_dim}",
        }
    rows |= {
        "vocabulary": f"{manifest.vocab_size:,}",
        "context": f"{manifest.context_length:,} tokens",
        "cache": f"{cache.elements(1, 1) * ELEMENT_BYTES[manifest.precision]:,} bytes a token",
    }
    return "\n".join(f"| {name} | {value} |" for name, value in rows.items())
