"""Checkpoints with a layer of multi-token prediction, and what it drafts by the formula of the paper, in float64.

The oracle is written here: h' = W [RMSNorm(·); RMSNorm(·)] of the state of a token and the embedding of the next one,
a block of transformers' own class over all h', a norm, and the model's head (arXiv 2412.19437, section 2.2, formulas 21
to 23). The names of tensors and the order of the two are those of vllm/model_executor/models/qwen3_5_mtp.py,
mimo_mtp.py, deepseek_mtp.py, glm4_moe_mtp.py and ernie_mtp.py; that ERNIE's states are not normalized is from
ernie/modeling_moe_pp.py of PaddlePaddle/ERNIE. transformers itself has the layer of DeepSeek-V3 and GLM-4.5
(`MtpLayer`), which is a second oracle.
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
LATENT = {
    "num_key_value_heads": 4, "q_lora_rank": 24, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16,
    "v_head_dim": 12, "head_dim": 8,
}  # fmt: skip
ROUTED = {"n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_shared_experts": 1}
BEHIND = "model.layers.4."
BEHIND_PARTS = tuple(BEHIND + name for name in ("eh_proj", "enorm", "hnorm", "shared_head.norm"))
COPIES = {
    f"{BEHIND}embed_tokens.weight": "model.embed_tokens.weight",
    f"{BEHIND}shared_head.head.weight": "lm_head.weight",
}
"""Tensors beside the layer of DeepSeek-V3 and GLM-4.5, by the ones that they are copies of."""
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
    "deepseek_v3": (
        "deepseek_v3",
        LATENT | ROUTED | {"first_k_dense_replace": 1, "n_group": 2, "topk_group": 1},
        {"num_nextn_predict_layers": 1}, BEHIND, BEHIND_PARTS, 0.0,
    ),
    "glm4_moe": (
        "glm4_moe", ROUTED | {"first_k_dense_replace": 1, "use_qk_norm": True, "attention_bias": True},
        {"num_nextn_predict_layers": 1}, BEHIND, BEHIND_PARTS, 0.0,
    ),
    "glm4_moe_lite": (
        "glm4_moe_lite", LATENT | ROUTED, {"num_nextn_predict_layers": 1}, BEHIND, BEHIND_PARTS, 0.0,
    ),
    "ernie4_5_moe": (
        "ernie4_5_moe",
        {"moe_num_experts": 6, "moe_k": 2, "moe_intermediate_size": 32, "moe_num_shared_experts": 1,
         "moe_layer_start_index": 1, "tie_word_embeddings": False},
        {"num_nextn_predict_layers": 1}, "model.mtp_block.0.",
        ("model.mtp_linear_proj.0", "model.mtp_emb_norm.0", "model.mtp_hidden_norm.0", "model.norm"), 0.0,
    ),
}  # fmt: skip


def like_layer(folder):
    """The number of the layer of a model whose block the layer's is like: the last one with attention, ERNIE's first.

    ERNIE's has the number 0 where it is made, so it is dense.
    """
    config = json.loads((folder / "config.json").read_text())
    if config["model_type"] == "ernie4_5_moe":
        return 0
    types = config.get("layer_types") or ["full_attention"] * config["num_hidden_layers"]
    return max(index for index, kind in enumerate(types) if kind == "full_attention")


def add_layer(folder, family, seed=7):
    """Add random tensors of the layer to a checkpoint, and its fields to config.json."""
    _, _, fields, block, (projection, *norms), offset = MODELS[family]
    path, generator = folder / "model.safetensors", torch.Generator().manual_seed(seed)
    tensors, source = load_file(path), f"model.layers.{like_layer(folder)}."
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
    scales = {f"{norm}.weight": (1 - offset + 0.3 * noise((size,))).to(dtype) for norm in norms}
    added |= {name: scale for name, scale in scales.items() if name not in tensors}
    if block == BEHIND:
        added |= {copy: tensors[name].clone() for copy, name in COPIES.items()}
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
        source = f"model.layers.{like_layer(folder)}."
        others = ("mtp.", "model.mtp_", BEHIND)
        trunk = {name: tensor for name, tensor in stored.items() if not name.startswith(others)}
        layer = {name.replace(block, source, 1): stored[name] for name in stored if name.startswith(block)}
        layer = {name: tensor for name, tensor in layer.items() if name in trunk}
        self.model = load_model(config, trunk)
        # The block stands in the place of one of the model's, for transformers knows the names of its tensors there.
        self.block = load_model(config, trunk | layer).model.layers[like_layer(folder)]
        self.hidden_first, self.eps = family == "mimo", self.model.config.rms_norm_eps
        self.normalized = family != "ernie4_5_moe"
        if not self.normalized:
            self.model.model.norm = torch.nn.Identity()
        self.weight = stored[f"{projection}.weight"].double()
        self.scales = [stored[f"{norm}.weight"].double() + offset for norm in norms]

    def norm(self, x, index):
        return x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt() * self.scales[index]

    @torch.no_grad()
    def states(self, tokens):
        """The states of the model behind its final norm, or of ERNIE before it, [n, E]."""
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
        found = (found[0] if isinstance(found, tuple) else found)[0]
        normed = self.norm(found, 2)
        return normed if self.normalized else found, self.model.lm_head(normed)

    def draft(self, text, count):
        """The tokens that are drafted behind a text, and the logits that chose each [count, V]."""
        tokens, states, chosen, logits = list(text[1:]), self.states(text[:-1]), [], []
        while len(chosen) < count:
            found, scores = self.run(tokens, states)
            logits.append(scores[-1])
            chosen.append(int(scores[-1].argmax()))
            tokens, states = [*tokens, chosen[-1]], torch.cat((states, found[-1:]))
        return chosen, torch.stack(logits)
