"""The fields of transformers' `GenerationConfig`, as generation_config.json and older config.json files hold them.

Each field is in one of the tables below: the runtime does what transformers does, refuses the field, or need not read
it. Exports read them, and the runtime generates by them. Source: transformers 5.23, generation/configuration_utils.py.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from edgeformer.options.generation import OPTIONS, SAMPLING_NAMES

MODEL_FIELDS = (
    "decoder_start_token_id", "do_sample", "forced_decoder_ids", "lang_to_id", "no_timestamps_token_id",
    "task_specific_params", "task_to_id",
)  # fmt: skip
"""Fields that say how a model begins, or what it was made for; Whisper has most of them."""

GENERATION_FIELDS = tuple(sorted([*MODEL_FIELDS, *(name for name, option in OPTIONS.items() if option.in_file)]))
"""Fields that the runtime reads."""

SPEECH_FIELDS = (
    "alignment_heads", "compression_ratio_threshold", "condition_on_prev_tokens", "logprob_threshold",
    "max_initial_timestamp_index", "no_speech_threshold", "prev_sot_token_id", "return_timestamps",
)  # fmt: skip
"""More fields that a speech model is transcribed by, and that no other model has."""

UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "constraints": ([],), "diversity_penalty": (0,), "dola_layers": (), "force_words_ids": ([],),
    "guidance_scale": (1,), "max_time": (), "num_beam_groups": (0, 1), "num_return_sequences": (1,),
    "penalty_alpha": (0,), "stop_strings": ([], ""), "token_healing": (False,), "watermarking_config": ({},),
}  # fmt: skip
"""Fields that change what is generated and that the runtime lacks, with the values at which they change nothing.

`generate` has arguments for two of them: `stop`, which leaves the text out that ends it, and num_return_sequences.
"""

WITHOUT_EFFECT_ON_TOKENS = {
    name: reason
    for reason, names in {
        "It chooses the kind or size of cache, and all kinds give the same tokens.": (
            "cache_config", "cache_implementation", "max_cache_len", "use_cache",
        ),
        "It says how transformers runs the model.": (
            "compile_config", "continuous_batching_config", "disable_compile", "low_memory", "prefill_chunk_size",
        ),
        "It says what transformers returns beside the tokens.": (
            "output_attentions", "output_hidden_states", "output_logits", "output_scores", "return_dict_in_generate",
        ),
        "Assisted generation is faster and keeps the tokens, or their distribution; it needs an assistant.": (
            "assistant_confidence_threshold", "assistant_early_exit", "assistant_ensemble_weight",
            "assistant_lookbehind", "is_assistant", "max_matching_ngram_size", "num_assistant_tokens",
            "num_assistant_tokens_schedule", "prompt_lookup_num_tokens", "speculation_type", "target_lookbehind",
            "use_mtp",
        ),
        "The bundle's manifest holds these tokens; exports read them from the same files.": (
            "bos_token_id", "eos_token_id", "pad_token_id",
        ),
        "It says where the file comes from.": ("_from_model_config", "transformers_version"),
    }.items()
    for name in names
}  # fmt: skip
"""Fields that change no token, with the reason."""


def unsupported_fields(data: Mapping[str, Any]) -> str:
    """List the fields that change what is generated and that the runtime does not have: `max_time = 5`."""
    found = [name for name, values in UNSUPPORTED.items() if data.get(name) is not None and data[name] not in values]
    beams = data.get("num_beams")
    if data.get("do_sample") and isinstance(beams, int) and beams > 1:
        found.append("num_beams")
    return _listed(data, sorted(found))


def requested_fields(data: Mapping[str, Any]) -> str:
    """List the fields that ask for other tokens than those of a greedy call without options: `do_sample = True`."""
    options = {name: option for name, option in OPTIONS.items() if option.in_file and data.get(name) is not None}
    names = options.keys() - (set() if data.get("do_sample") else SAMPLING_NAMES)
    found = {name for name in names if data[name] not in (options[name].default, [])}
    found |= {name for name, values in UNSUPPORTED.items() if data.get(name) is not None and data[name] not in values}
    return _listed(data, [*(["do_sample"] if data.get("do_sample") else []), *sorted(found)])


def _listed(data: Mapping[str, Any], names: Iterable[str]) -> str:
    return ", ".join(f"{name} = {data[name]!r}" for name in names)
