"""README.md of a bundle: what it is, its sizes, how to run it."""

from edgeformer.accounting import account
from edgeformer.manifest import Manifest


def model_card(manifest: Manifest, parity: str) -> str:
    """Write the card of a bundle; parity is a paragraph about its verification."""
    model, attention = manifest.model, manifest.model.blocks[0].attention
    numbers = account(model, manifest.precision)
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
| parameters | {numbers.parameters:,} |
| layers | {len(model.blocks)} |
| hidden size | {model.hidden_size} |
| heads / key-value heads / head size | {attention.num_heads} / {attention.num_kv_heads} / {attention.head_dim} |
| vocabulary | {model.vocab_size:,} |
| context | {model.context_length:,} tokens |
| cache | {numbers.cache_bytes_per_token:,} bytes a token |

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
    feeds[tensor.name] = np.zeros((1, {attention.num_kv_heads}, 0, {attention.head_dim}), dtype)
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
