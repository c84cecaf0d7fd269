"""The fields of transformers' `GenerationConfig`, as generation_config.json and older config.json files hold them.

Exports read them, and the runtime generates by them. Source: transformers 5.23, generation/configuration_utils.py.
"""

from collections.abc import Mapping
from typing import Any

GENERATION_FIELDS = (
    "bad_words_ids", "begin_suppress_tokens", "decoder_start_token_id", "do_sample", "early_stopping",
    "forced_bos_token_id", "forced_decoder_ids", "forced_eos_token_id", "lang_to_id", "length_penalty", "max_length",
    "max_new_tokens", "min_length", "min_new_tokens", "min_p", "no_repeat_ngram_size", "no_timestamps_token_id",
    "num_beams", "repetition_penalty", "suppress_tokens", "task_specific_params", "task_to_id", "temperature", "top_k",
    "top_p", "typical_p",
)  # fmt: skip
"""Fields that the runtime reads; Whisper and models for several tasks have more than `GenerationConfig`."""

UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "constraints": (), "diversity_penalty": (0,), "dola_layers": (), "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1,), "exponential_decay_length_penalty": (), "force_words_ids": (),
    "guidance_scale": (1,), "max_time": (), "num_beam_groups": (1,), "num_return_sequences": (1,),
    "penalty_alpha": (0,), "renormalize_logits": (False,), "sequence_bias": (), "stop_strings": (),
    "token_healing": (False,), "watermarking_config": (),
}  # fmt: skip
"""Fields that change what is generated and that the runtime lacks, with the values at which they change nothing."""

UNSUPPORTED_SAMPLING: dict[str, tuple[Any, ...]] = {
    "epsilon_cutoff": (0,), "eta_cutoff": (0,), "top_h": (),
}  # fmt: skip
"""Fields of the same kind that only sampling reads."""

WITHOUT_EFFECT_ON_TOKENS = (
    "assistant_confidence_threshold", "assistant_early_exit", "assistant_ensemble_weight", "assistant_lookbehind",
    "cache_config", "cache_implementation", "compile_config", "continuous_batching_config", "disable_compile",
    "is_assistant", "low_memory", "max_cache_len", "max_matching_ngram_size", "num_assistant_tokens",
    "num_assistant_tokens_schedule", "output_logits", "output_scores", "prefill_chunk_size",
    "prompt_lookup_num_tokens", "remove_invalid_values", "return_dict_in_generate", "speculation_type",
    "target_lookbehind", "use_mtp",
)  # fmt: skip
"""Fields that say how to compute or what to return. remove_invalid_values changes logits that are no numbers alone."""


def unsupported_fields(data: Mapping[str, Any]) -> str:
    """List the fields that change what is generated and that the runtime does not have: `max_time = 5, top_h = 0.4`."""
    neutral = UNSUPPORTED | (UNSUPPORTED_SAMPLING if data.get("do_sample") else {})
    found = [name for name, values in neutral.items() if data.get(name) and data[name] not in values]
    beams = data.get("num_beams")
    if data.get("do_sample") and isinstance(beams, int) and beams > 1:
        found.append("num_beams")
    return ", ".join(f"{name} = {data[name]!r}" for name in sorted(found))
