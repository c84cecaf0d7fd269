"""Fields of config.json that change nothing a model computes: bookkeeping of transformers, and marks of other tools.

Every entry has its reason. A field that is in no table, and that the family does not read, may change what the model
computes, and is refused. A field that no family reads is absent where it is null, or an empty object or list.
"""

from collections.abc import Mapping
from typing import Any

from edgeformer.options.generation_fields import GENERATION_FIELDS, UNSUPPORTED, WITHOUT_EFFECT_ON_TOKENS

WITHOUT_EFFECT = {
    name: reason
    for reason, names in {
        "It says how texts are generated; generation_defaults reads it.": (
            *GENERATION_FIELDS, *UNSUPPORTED, *WITHOUT_EFFECT_ON_TOKENS,
        ),
        "It says which file or class this is, and what wrote it.": (
            "_commit_hash", "_from_auto", "_model_name_or_path", "_name_or_path", "architectures", "auto_map",
            "is_composition", "model_name", "model_type", "transformers.js_config", "transformers_version",
        ),
        "It is a token, a tokenizer or a length of texts; the tokenizer and the manifest have it.": (
            "bos_token", "bos_token_id", "cls_token_id", "eos_token", "eos_token_id", "eos_token_ids", "mask_token_id",
            "max_seq_length", "max_sequence_length", "model_max_length", "pad_token_id", "sep_token_id",
            "tokenizer_class", "tokenizer_model_max_length", "tokenizer_padding_side", "unk_token_id",
        ),
        "It chooses a kernel, a device or the type of weights, and all of them mean the same product.": (
            "_attn_implementation", "_attn_implementation_autoset", "_attn_implementation_internal",
            "_experts_implementation", "_experts_implementation_internal", "_flash_attn_2_enabled",
            "attn_implementation", "chunk_size_feed_forward", "dtype", "experts_implementation", "torch_dtype",
            "base_model_ep_plan", "base_model_pp_plan", "base_model_tp_plan", "device_map", "torchscript",
            "use_bfloat16", "use_flash_attn", "use_flash_attention_2", "xla_device",
        ),
        "It is of training.": (
            "attention_dropout", "attn_pdrop", "classifier_dropout", "deepspeed_config", "embd_pdrop", "hidden_dropout",
            "resid_pdrop", "gradient_checkpointing",
            "initializer_range", "loss_type", "neftune_noise_alpha",
            "router_aux_loss_coef", "tf_legacy_loss", "use_gradient_checkpointing",
        ),
        "It names the classes of a head, or what it is trained for; the shape of the head says how many there are.": (
            "_num_labels", "finetuning_task", "id2label", "label2id", "num_labels", "problem_type",
        ),
        "It says what transformers returns beside the logits, or for how many tokens of a prompt.": (
            "num_logits_to_keep", "output_attentions", "output_hidden_states", "output_past", "output_router_logits",
            "keys_to_ignore_at_inference", "return_dict", "use_cache", "use_return_dict",
        ),
        "It is of one task of transformers 2 to 4, and no module reads it.": ("prefix",),
        "sentence-transformers does it to logits; the source of a model reads it.": (
            "sbert_ce_default_activation_function", "sentence_transformers",
        ),
    }.items()
    for name in names
}  # fmt: skip
"""Reasons by the names of fields that have no effect, whatever their value."""

TOOLS = {
    "axolotl": "Axolotl", "llamafactory": "LLaMA-Factory", "mergekit": "mergekit", "ms_swift": "ms-swift",
    "peft_": "PEFT", "swift_": "ms-swift", "trl_": "TRL", "unsloth": "Unsloth",
}  # fmt: skip
"""Tools by the beginnings of the fields in which they say that they made a file; transformers reads none of them."""

NEUTRAL: dict[str, tuple[Any, ...]] = {
    # Of transformers 2 to 4, in many files whether or not a model reads them.
    "add_cross_attention": (False,), "is_decoder": (False,), "is_encoder_decoder": (False,),
    "tie_encoder_decoder": (False,),
    # Something that a model may have, and that this one says it has not.
    "attention_bias": (False,), "attention_chunk_size": (0,), "is_causal": (True,), "mlp_bias": (False,),
    "num_experts": (0,), "num_local_experts": (0,), "num_nextn_predict_layers": (0,), "o_bias": (False,),
    "qkv_bias": (False,), "use_bidirectional_attention": (False,), "use_mrope": (False,), "use_qk_norm": (False,),
    "use_dynamic_ntk": (False,), "use_logn_attn": (False,), "use_sliding_window": (False,), "pretraining_tp": (1,),
    "rope_interleaved": (False,), "use_bias": (False,),
}  # fmt: skip
"""Fields that a family may not read, with the values at which they change nothing."""

WINDOWS = ("max_window_layers", "sliding_window")
"""Fields that have no effect where `use_sliding_window` is false."""


def is_neutral(name: str, data: Mapping[str, Any]) -> bool:
    """Return whether a field of a config.json changes nothing, also for a family that does not read it.

    data: config.json, with what the family takes for absent fields.
    """
    value = data[name]
    if value is None or value == {} or value == [] or name in WITHOUT_EFFECT or name.startswith(tuple(TOOLS)):
        return True
    if name in WINDOWS:
        return data.get("use_sliding_window") is False
    if name == "layer_types":  # all of the one kind that a model without the field and without windows has
        windows = data.get("sliding_window") is not None and data.get("use_sliding_window") is not False
        return not windows and value == ["full_attention"] * (data.get("num_hidden_layers") or 0)
    return any(type(value) is type(known) and value == known for known in NEUTRAL.get(name, ()))
