"""The fields of requests that llama-server and vLLM have, by route, as read from their sources, for the reference.

A field that is not in the server's own table would be refused as unknown without a reason: a test holds the table
complete.
"""

SOURCES = {
    "llama-server": "[llama.cpp](https://github.com/ggml-org/llama.cpp), `tools/server/README.md` at `00dc8057` and "
    "`server-task.cpp` at `00efb3e1`",
    "vLLM": "[vLLM](https://github.com/vllm-project/vllm), `protocol.py` of chats and completions at `002032ee`, "
    "responses at `010a69ce`, messages at `00589e56`, pooling at `020638a6` and scores at `004706d8`",
}
"""Where the fields were read, with the commits of the files."""

_LLAMA_OPTIONS = """
    timings_per_token stream stream_options cache_prompt return_tokens return_progress max_tokens n_predict
    max_completion_tokens n_indent n_keep n_discard n_cmpl n n_cache_reuse t_max_predict_ms response_fields top_k top_p
    min_p top_n_sigma xtc_probability xtc_threshold typical_p temperature dynatemp_range dynatemp_exponent repeat_last_n
    repeat_penalty frequency_penalty presence_penalty dry_multiplier dry_base dry_allowed_length dry_penalty_last_n
    dry_sequence_breakers mirostat mirostat_tau mirostat_eta adaptive_target adaptive_decay seed n_probs min_keep
    backend_sampling post_sampling_probs speculative.n_min speculative.n_max speculative.p_min speculative.type
    speculative.ngram_size_n speculative.ngram_size_m speculative.ngram_m_hits logprobs lora json_schema grammar
    grammar_lazy grammar_triggers chat_format chat_parser preserved_tokens reasoning_format thinking_forced_open
    parse_tool_calls reasoning_budget_tokens reasoning_budget_start_tag reasoning_budget_end_tag
    reasoning_budget_message reasoning_budget_arm_immediately logit_bias ignore_eos stop samplers id_slot
    sse_ping_interval model
"""

_VLLM_OPTIONS = """
    model frequency_penalty logit_bias logprobs max_tokens n presence_penalty response_format seed stop stream
    stream_options temperature top_p thinking_token_budget user use_beam_search top_k min_p repetition_penalty
    watermarking length_penalty stop_token_ids include_stop_str_in_output ignore_eos min_tokens skip_special_tokens
    spaces_between_special_tokens truncate_prompt_tokens truncation_side prompt_logprobs logprob_token_ids
    allowed_token_ids bad_words echo add_special_tokens structured_outputs priority request_id session_id
    return_tokens_as_token_ids return_token_ids routed_experts_prompt_start return_token_offsets return_mm_kwargs
    cache_salt kv_transfer_params ec_transfer_params vllm_xargs repetition_detection stream_interval
"""

_VLLM_POOLING = """
    model user truncate_prompt_tokens padding truncation_side request_id priority mm_processor_kwargs cache_salt
    use_activation
"""

_FIELDS = {
    "llama-server": {
        "/v1/chat/completions": _LLAMA_OPTIONS + "messages tools tool_choice response_format parallel_tool_calls "
        "add_generation_prompt chat_template_kwargs top_logprobs modalities reasoning_effort reasoning_control",
        "/v1/completions": _LLAMA_OPTIONS + "prompt",
        "/v1/responses": "model input instructions previous_response_id tools tool_choice text max_output_tokens "
        "stream temperature top_p reasoning",
        "/v1/messages": "model messages max_tokens system temperature top_p top_k stop_sequences stream tools "
        "tool_choice",
        "/infill": _LLAMA_OPTIONS + "input_prefix input_suffix input_extra prompt",
        "/v1/embeddings": "model input encoding_format",
        "/v1/rerank": "model query documents top_n",
    },
    "vLLM": {
        "/v1/chat/completions": _VLLM_OPTIONS + "messages top_logprobs max_completion_tokens tools tool_choice "
        "reasoning_effort include_reasoning parallel_tool_calls add_generation_prompt continue_final_message documents "
        "chat_template chat_template_kwargs media_io_kwargs mm_processor_kwargs return_prompt_text",
        "/v1/completions": _VLLM_OPTIONS + "prompt suffix prompt_embeds",
        "/v1/responses": "background include input instructions max_output_tokens max_tool_calls metadata model "
        "logit_bias parallel_tool_calls previous_response_id prompt reasoning service_tier store stream temperature "
        "text tool_choice tools top_logprobs top_p top_k truncation user skip_special_tokens "
        "include_stop_str_in_output prompt_cache_key request_id mm_processor_kwargs priority cache_salt "
        "enable_response_messages previous_input_messages previous_response structured_outputs repetition_penalty seed "
        "stop ignore_eos vllm_xargs",
        "/v1/messages": "model messages max_tokens metadata output_config stop_sequences stream system temperature "
        "tool_choice tools top_k top_p kv_transfer_params chat_template_kwargs",
        "/v1/embeddings": _VLLM_POOLING + "input add_special_tokens encoding_format embed_dtype endianness dimensions",
        "/v1/rerank": _VLLM_POOLING + "query documents top_n",
    },
}

FIELDS_OF_SERVERS: dict[str, dict[str, tuple[str, ...]]] = {
    server: {route: tuple(dict.fromkeys(text.split())) for route, text in routes.items()}
    for server, routes in _FIELDS.items()
}
"""Fields by server and route."""
