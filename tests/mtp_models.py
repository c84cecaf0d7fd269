"""Checkpoints with a layer of multi-token prediction, and what it drafts by the formula of the paper, in float64.

transformers runs no such layer, so the oracle is written here: h' = W [RMSNorm(·); RMSNorm(·)] of the state of a token
and the embedding of the next one, a block of transformers' own class over all h', a norm, and the model's head
(arXiv 2412.19437, section 2.2, formulas 21 to 23). The names of tensors and the order of the two are those of
vllm/model_executor/models/qwen3_5_mtp.py and mimo_mtp.py.
"""

import json
import tempfile
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file

CONTEXT = 96
SIZES = {
    "vocab_size": 131, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": CONTEXT, "bos_token_id": 1,
    "eos_token_id": 130,
}  # fmt: skip
LINEAR = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 16,
}  # fmt: skip
EXPERTS = {
    "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32,
}  # fmt: skip
# By family: transformers' class to make it of, further sizes, fields of config.json, the beginning of the names of the
# block's tensors, those of W and the norms of embedding, state and result, and the offset of weights of norms.
MODELS = {
    "qwen3_5_text": (
        "qwen3_5_text", LINEAR, {"mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": False}, "mtp.layers.0.",
        ("mtp.fc", "mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.norm"), 1.0,
    ),
    "qwen3_5_moe_text": (
        "qwen3_5_moe_text", LINEAR | EXPERTS, {"mtp_num_hidden_layers": 1}, "mtp.layers.0.",
        ("mtp.fc", "mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.norm"), 1.0,
    ),
    "qwen3_next": (
        "qwen3_next", LINEAR | EXPERTS, {}, "mtp.layers.0.",
        ("mtp.fc", "mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.norm"), 1.0,
    ),
    "mimo": (
        "qwen2", {}, {"model_type": "mimo", "num_nextn_predict_layers": 1, "use_mrope": False}, "model.mtp_layers.0.",
        tuple(f"model.mtp_layers.0.{name}" for name in
              ("input_proj", "token_layernorm", "hidden_layernorm", "final_layernorm")), 0.0,
    ),
}  # fmt: skip


def attention_layer(folder):
    """The number of the last layer of a model with attention."""
    config = json.loads((folder / "config.json").read_text())
    types = config.get("layer_types") or ["full_attention"] * config["num_hidden_layers"]
    return max(index for index, kind in enumerate(types) if kind == "full_attention")


def add_layer(folder, family, seed=7):
    """Add random tensors of the layer to a checkpoint, and its fields to config.json."""
    _, _, fields, block, (projection, *norms), offset = MODELS[family]
    path, generator = folder / "model.safetensors", torch.Generator().manual_seed(seed)
    tensors, source = load_file(path), f"model.layers.{attention_layer(folder)}."
    dtype = next(iter(tensors.values())).dtype

    def noise(shape):
        return torch.randn(shape, generator=generator)

    added = {}
    for name, tensor in tensors.items():
        if name.startswith(source):
            drawn = noise(tensor.shape)
            drawn = drawn / tensor.shape[-1] ** 0.5 if tensor.dim() == 2 else 1 - offset + 0.1 * drawn
            added[block + name.removeprefix(source)] = drawn.to(dtype)
    size = tensors["model.norm.weight"].shape[0]
    added[f"{projection}.weight"] = (noise((size, 2 * size)) / (2 * size) ** 0.5).to(dtype)
    added |= {f"{norm}.weight": (1 - offset + 0.3 * noise((size,))).to(dtype) for norm in norms}
    save_file({**tensors, **added}, path, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | fields))
    return folder


def make_folder(make_model, family, seed=0, **options):
    """Save a random model of a family with such a layer; return its folder."""
    made_of, sizes, *_ = MODELS[family]
    return add_layer(make_model(made_of, seed, **{**SIZES, **sizes, **options}), family)


def load_model(config, tensors):
    """Load a model of transformers from tensors in its own float64."""
    with tempfile.TemporaryDirectory() as folder:
        save_file(tensors, Path(folder) / "model.safetensors", metadata={"format": "pt"})
        (Path(folder) / "config.json").write_text(json.dumps(config))
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float64, attn_implementation="eager", experts_implementation="eager"
        )
    return model.eval()


class Formula:
    """Compute in float64 the drafts of a checkpoint's layer: by the paper, around a block of transformers."""

    def __init__(self, folder: Path, family):
        made_of, _, _, block, (projection, *norms), offset = MODELS[family]
        config = json.loads((folder / "config.json").read_text()) | {"model_type": made_of}
        stored = load_file(folder / "model.safetensors")
        source = f"model.layers.{attention_layer(folder)}."
        trunk = {name: tensor for name, tensor in stored.items() if not name.startswith(("mtp.", "model.mtp_"))}
        layer = {name.replace(block, source, 1): stored[name] for name in stored if name.startswith(block)}
        layer = {name: tensor for name, tensor in layer.items() if name in trunk}
        self.model = load_model(config, trunk)
        # The block stands in the place of one of the model's, for transformers knows the names of its tensors there.
        self.block = load_model(config, trunk | layer).model.layers[attention_layer(folder)]
        self.hidden_first, self.eps = family == "mimo", self.model.config.rms_norm_eps
        self.weight = stored[f"{projection}.weight"].double()
        self.scales = [stored[f"{norm}.weight"].double() + offset for norm in norms]

    def norm(self, x, index):
        return x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt() * self.scales[index]

    @torch.no_grad()
    def states(self, tokens):
        """The states of the model behind its final norm, [n, E]."""
        return self.model.model(torch.tensor([tokens])).last_hidden_state[0]

    @torch.no_grad()
    def run(self, tokens, states):
        """The states that the layer returns for states [n, E] and the tokens behind them, and its logits, [n, V]."""
        embedded = self.norm(self.model.model.embed_tokens(torch.tensor(tokens)), 0)
        states = self.norm(states, 1)
        pair = (states, embedded) if self.hidden_first else (embedded, states)
        x = (torch.cat(pair, -1) @ self.weight.T)[None]
        positions = torch.arange(len(tokens))[None]
        mask = torch.full((len(tokens), len(tokens)), -torch.inf, dtype=torch.float64).triu(1)[None, None]
        angles = self.model.model.rotary_emb(x, positions)
        found = self.block(x, position_embeddings=angles, attention_mask=mask, position_ids=positions)
        found = self.norm((found[0] if isinstance(found, tuple) else found)[0], 2)
        return found, self.model.lm_head(found)

    def draft(self, text, count):
        """The tokens that are drafted behind a text, and the logits that chose each [count, V]."""
        tokens, states, chosen, logits = list(text[1:]), self.states(text[:-1]), [], []
        while len(chosen) < count:
            found, scores = self.run(tokens, states)
            logits.append(scores[-1])
            chosen.append(int(scores[-1].argmax()))
            tokens, states = [*tokens, chosen[-1]], torch.cat((states, found[-1:]))
        return chosen, torch.stack(logits)
