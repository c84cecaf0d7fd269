"""ERNIE 4.5 with experts: ERNIE-4.5-21B-A3B and its relatives.

ERNIE 4.5 whose layers from moe_layer_start_index to moe_layer_end_index have experts and a shared network. Source:
transformers/models/ernie4_5_moe/modeling_ernie4_5_moe.py.
"""

from dataclasses import replace

from edgeformer.config import DecoderConfig, FeedForwardConfig, RouterConfig
from edgeformer.families import ernie4_5
from edgeformer.families._experts import expert_tensors, read_experts, shared_tensors, with_experts
from edgeformer.families._family import Family, Fields
from edgeformer.families._mtp import MTPTables
from edgeformer.families.llama import TENSORS

MODULE = "model.layers.*.mlp"
BIAS = "e_score_correction_bias"

# Fields of checkpoints that transformers ignores, with the only value that it computes.
FIXED = {"moe_gate": "topk", "moe_use_aux_free": True, "use_rmsnorm": True}

MTP = MTPTables(
    count="num_nextn_predict_layers",
    block="model.mtp_block.0.",
    parts={
        "token_norm": "model.mtp_emb_norm.0",
        "state_norm": "model.mtp_hidden_norm.0",
        "projection": "model.mtp_linear_proj.0",
        "norm": "model.norm",
    },
    normalized=False,
    like_first=True,
)
"""Where it has the layer that drafts tokens, as Baidu trained it.

Sources: `MTPLayer` and `RMSNormPipe` of ernie/modeling_moe_pp.py in github.com/PaddlePaddle/ERNIE, of names also
vllm/model_executor/models/ernie_mtp.py and SGLang's ernie4_eagle.py. The embedding stands first. States are read before
the final norm, which is applied to what the layer returns, too, for the head alone; its block is made like that of
layer 0. Engines run it otherwise: vLLM and SGLang read states behind the final norm, and apply none to the result;
Baidu's FastDeploy (ernie4_5_mtp.py) reads them there, too, and applies it. A projection that is stored transposed, as
ERNIE-4.5-300B-A47B-PT first had it (pull request 7657 of sgl-project/sglang), is refused by its shape.
"""


def sparse_layers(fields: Fields, layers: int) -> list[bool]:
    """Read which layers have experts."""
    first, last = fields.take("moe_layer_start_index"), fields.take("moe_layer_end_index")
    interval, last = fields.take("moe_layer_interval"), layers - 1 if last == -1 else last
    return [first <= layer <= last and (layer + 1) % interval == 0 for layer in range(layers)]


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read an ERNIE 4.5 MoE config.json."""
    fields.ignore("moe_capacity", "num_nextn_predict_layers")
    for name, value in FIXED.items():
        fields.choice(name, {value: None}, value)
    config = replace(ernie4_5.read_config(fields, context_length), head_bias=fields.take("use_bias", False))
    dense, width, count = config.blocks[0].feed_forward, fields.take("moe_intermediate_size"), "moe_num_shared_experts"
    assert isinstance(dense, FeedForwardConfig)
    shared = fields.take(count)
    router = RouterConfig(scoring="softmax", normalized=True, choice_bias=True, sum_floor=fields.take("moe_norm_min"))
    experts = read_experts(
        fields,
        replace(dense, bias=False),
        router,
        num_experts=64,
        intermediate_size=width,
        used_name="moe_k",
        shared=replace(dense, intermediate_size=width * shared) if shared else None,
    )
    return with_experts(config, experts, sparse_layers(fields, len(config.blocks)))


FAMILY = Family(
    summary="ERNIE 4.5 with experts: chosen with learned biases, a shared network, interleaved rotary embeddings",
    read_config=read_config,
    tensors={
        **TENSORS,
        **expert_tensors(MODULE),
        **shared_tensors(f"{MODULE}.shared_experts"),
        "blocks.*.feed_forward.router.choice_bias": f"{MODULE}.moe_statics.{BIAS}|{MODULE}.gate.moe_statics.{BIAS}",
    },
    defaults={
        "num_key_value_heads": 4, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": True,
        "moe_intermediate_size": 1536, "moe_k": 6, "moe_num_shared_experts": 2, "moe_layer_start_index": 1,
        "moe_layer_end_index": -1, "moe_layer_interval": 1, "moe_norm_min": 1e-12,
    },
    ignored_tensors=(r".*mtp.*",),  # layers that predict further tokens; transformers leaves them out, too
    mtp=MTP,
)  # fmt: skip
