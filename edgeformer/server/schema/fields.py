"""The table of all fields of requests, of OpenAI's API, llama.cpp's server and vLLM, and what is done with each.

A field is done; or ignored, since it changes nothing about an answer; or refused, since it would change it, unless
its value changes nothing. `null` is always as good as no field. A field that is not here is refused as unknown.
The reference is generated of it, beside the other servers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic_core import PydanticCustomError

from edgeformer.options.generation import OPTIONS

Status = Literal["done", "ignored", "refused"]

SERVERS = {"O": "OpenAI", "L": "llama-server", "V": "vLLM", "A": "Anthropic"}
"""The other servers, by the letters of `ApiField.servers`."""


@dataclass(frozen=True)
class ApiField:
    """The treatment of a field.

    Attributes:
        servers: letters of those that have it.
        note: why it is ignored or refused, or what is done.
        neutral: values of a refused field that change nothing.
        equals: the name of another field; a value equal to it changes nothing.
        details: what the error has for a client that goes on without the field.
    """

    status: Status
    servers: str
    note: str = ""
    neutral: tuple[Any, ...] = ()
    equals: str = ""
    details: Mapping[str, Any] | None = None

    def changes(self, value: Any, body: Mapping[str, Any]) -> bool:
        """Return whether a value of the field would change the answer to a request."""
        if self.status == "ignored" or value is None or (self.equals and value == body.get(self.equals, 1)):
            return False
        return not any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in self.neutral)


def _done(servers: str, note: str = "") -> ApiField:
    return ApiField("done", servers, note)


def _ignored(servers: str, note: str) -> ApiField:
    return ApiField("ignored", servers, note)


def _refused(servers: str, note: str, *neutral: Any, equals: str = "") -> ApiField:
    return ApiField("refused", servers, note, neutral, equals)


ONE_TIER = "there is one tier"
NOT_STORED = "nothing is stored; send the whole conversation"
TEXT_ONLY = "answers are text"

FIELDS: dict[str, ApiField] = {
    "model": _done("OLVA"),
    "messages": _done("OLVA"),
    "prompt": _done("OLV", "of /v1/completions and /tokenize; no templates are stored for /v1/responses"),
    "input": _done("OLV"),
    "instructions": _done("OLV"),
    "documents": _done("V", "of /v1/rerank"),
    "query": _done("LV"),
    "instruction": _done("", "of /v1/rerank, for models whose template reads one"),
    "top_n": _done("LV"),
    "return_documents": _done("V"),
    "tokens": _done("LV"),
    "dimensions": _done("OV"),
    "encoding_format": _done("OLV"),
    "source_language": _done("", "of models that translate"),
    "target_language": _done("", "of models that translate"),
    # length and stops
    "max_tokens": _done("OLVA", "-1 is what the context leaves; 0 only scores the prompt, with echo"),
    "max_completion_tokens": _done("OLV"),
    "max_output_tokens": _done("OLV"),
    "n_predict": _done("L", "max_tokens by another name"),
    "stop": _done("OLV", "a text that is exactly one special token stops at its id"),
    "include_stop_str_in_output": _refused("V", "the text that stops is never part of an answer", False),
    "t_max_predict_ms": _refused("L", "no answer ends by a clock; use max_tokens", 0, -1),
    "n_indent": _refused("L", "lines are not indented", 0),
    # sampling
    "top_k": _done("LVA", "-1 keeps all, as 0"),
    "random_seed": _done("", "seed, by the name that Mistral's API has"),
    "repeat_penalty": _done("L", "repetition_penalty by another name"),
    "repeat_last_n": _refused("L", "penalties look at the whole text", -1),
    "dynatemp_range": _refused("L", "the temperature does not follow the entropy", 0),
    "dynatemp_exponent": _ignored("L", "it does nothing without dynatemp_range"),
    "mirostat": _refused("L", "there is no such sampler; use top_p", 0),
    "mirostat_tau": _ignored("L", "it does nothing without mirostat"),
    "mirostat_eta": _ignored("L", "it does nothing without mirostat"),
    "min_keep": _refused("L", "filters keep one token at least", 0, 1),
    "tfs_z": _refused("L", "there is no such filter; use typical_p", 1),
    "top_n_sigma": _refused("L", "there is no such filter; use top_p", -1),
    "adaptive_target": _refused("L", "there is no such sampler; use top_p", -1),
    "adaptive_decay": _ignored("L", "it does nothing without adaptive_target"),
    "backend_sampling": _ignored("L", "where tokens are chosen changes none of them"),
    "watermarking": _refused("V", "texts carry no marks", False),
    "repetition_detection": _refused("V", "no answer is cut for it; use dry_multiplier", {}),
    "samplers": _refused("L", "filters run in one order", []),
    "allowed_token_ids": _refused("V", "use structured output", []),
    "bad_words": _refused("V", "logit_bias bans tokens", []),
    "logits_processors": _refused("V", "no code of a client runs here", []),
    "use_beam_search": _refused("V", "no token of a beam is final before the search ends", False),
    "length_penalty": _refused("V", "it is of beam search", 1),
    "early_stopping": _refused("V", "it is of beam search", False),
    # choices and streams
    "n": _done("OLV"),
    "n_cmpl": _refused("L", "n asks for several choices", 1, equals="n"),
    "best_of": _refused("OV", "answers are not ranked; use n", 1, equals="n"),
    "stream": _done("OLVA"),
    "stream_options": _done("OLV"),
    "echo": _done("OV", "of /v1/completions; with logprobs it scores the prompt"),
    "suffix": _refused("OV", "use /infill, where a model fills in the middle", ""),
    # log-probabilities
    "logprobs": _done("OLV"),
    "top_logprobs": _done("OLV", "of chats and of /v1/responses"),
    "n_probs": _refused("L", "logprobs asks for them", 0),
    "logprob_token_ids": _refused("V", "the likeliest tokens have log-probabilities; use top_logprobs"),
    "return_token_offsets": _refused("V", "`text_offset` of completions' logprobs has them", False),
    "return_prompt_text": _refused("V", "/tokenize and /detokenize have it", False),
    "prompt_logprobs": _refused("V", "use echo and logprobs of /v1/completions", 0),
    "post_sampling_probs": _refused("L", "log-probabilities are of the model's own distribution", False),
    "return_tokens_as_token_ids": _refused("V", "tokens are texts", False),
    "return_token_ids": _refused("V", "/tokenize has them", False),
    "return_tokens": _refused("L", "/tokenize has them", False),
    # form of the answer
    "response_format": _done("OLV", "also as llama.cpp writes it, with `schema` beside `type`"),
    "text": _done("OLV", "`format` of /v1/responses; `verbosity` is ignored"),
    "json_schema": _done("L", "response_format by another name"),
    "guided_json": _done("V", "response_format by another name"),
    "guided_regex": _done("V", "in Rust's syntax"),
    "guided_choice": _done("V"),
    "structured_outputs": _done("V", "its `json`, `regex` and `choice`"),
    "grammar": _refused("L", "grammars of GBNF are not read; use response_format or guided_regex", ""),
    "grammar_lazy": _refused("L", "grammars of GBNF are not read; use tools", False),
    "grammar_triggers": _refused("L", "grammars of GBNF are not read; use tools", []),
    "guided_grammar": _refused("V", "use response_format or guided_regex", ""),
    "structural_tag": _refused("V", "use response_format or tools"),
    "guided_decoding_backend": _ignored("V", "llguidance is the only one"),
    "guided_whitespace_pattern": _refused("V", "white space is bounded"),
    "skip_special_tokens": _done("V", "false shows special tokens as texts"),
    "spaces_between_special_tokens": _ignored("V", "no spaces are put between them"),
    "verbosity": _ignored("OL", "models are not told how much to write"),
    "modalities": _refused("O", TEXT_ONLY, ["text"]),
    "audio": _refused("O", TEXT_ONLY),
    "response_fields": _refused("L", "an answer has all its fields", []),
    "image_data": _refused("L", "pictures are parts of messages", []),
    "mm_processor_kwargs": _refused("V", "the numbers of a processor are the bundle's; see detail", {}),
    # tools
    "tools": _done("OLVA"),
    "tool_choice": _done("OLVA", 'also `allowed_tools`; `any` is `required`, and {"type": "auto"} is `auto`'),
    "parallel_tool_calls": _done("OLV"),
    "functions": _refused("O", "deprecated by OpenAI; use tools", []),
    "function_call": _refused("O", "deprecated by OpenAI; use tool_choice", "none", "auto"),
    "max_tool_calls": _refused("O", "no tool runs on the server"),
    "web_search_options": _refused("O", "nothing is searched"),
    "chat_format": _refused("L", "the chat template says how an answer is read; see --tool-format"),
    "chat_parser": _refused("L", "the chat template says how an answer is read; see --tool-format", ""),
    "preserved_tokens": _refused("L", "skip_special_tokens false shows special tokens", []),
    "parse_tool_calls": _refused("L", "calls are always read where there are tools", True),
    # the prompt
    "add_generation_prompt": _refused("LV", "use continue_final_message to go on with the last message", True),
    "continue_final_message": _done("V"),
    "add_special_tokens": _done("V", "of /tokenize; the chat template writes those of a chat"),
    "chat_template": _refused("LV", "templates of clients are not run"),
    "truncate_prompt_tokens": _done(
        "V", "of completions their last tokens, of embeddings their first; -1 is all that fit"
    ),
    "truncation_side": _refused("V", "completions lose their first tokens, embeddings their last"),
    "padding": _refused("V", "no prompt is padded", "do_not_pad"),
    "prompt_embeds": _refused("V", "prompts are texts or token ids"),
    "truncation": _ignored("O", "a conversation that does not fit is refused"),
    "context_management": _refused("O", "a conversation is answered as it is", []),
    "input_prefix": _done("L", "of /infill"),
    "input_suffix": _done("L", "of /infill"),
    "input_extra": _done("L", "of /infill"),
    # thinking
    "chat_template_kwargs": _done("LV", "variables of the chat template; those that it does not read are refused"),
    "enable_thinking": _done("", "of Qwen; where the chat template can switch thinking"),
    "thinking": _done("A", "its `type` and `budget_tokens`"),
    "reasoning": _done("O", "its `effort`, and OpenRouter's `enabled` and `max_tokens`"),
    "reasoning_effort": _done("OLV", "where the chat template reads it; none switches thinking off"),
    "thinking_token_budget": _done("V", "thinking_budget by another name"),
    "reasoning_budget_tokens": _done("L", "thinking_budget by another name"),
    "reasoning_budget_start_tag": _refused("L", "the marks are those of the model", ""),
    "reasoning_budget_end_tag": _refused("L", "the marks are those of the model", ""),
    "reasoning_budget_message": _refused("L", "thinking ends with its mark alone", ""),
    "reasoning_budget_arm_immediately": _ignored("L", "thinking is counted from its mark on"),
    "reasoning_control": _refused("L", "thinking is limited by a budget", False),
    "thinking_forced_open": _refused("L", "the chat template says where thinking begins", False),
    "reasoning_format": _ignored("L", "what a model thinks comes as `reasoning_content`"),
    "include_reasoning": _ignored("V", "what a model thinks comes as `reasoning_content`"),
    # bookkeeping
    "metadata": _ignored("OVA", "labels of stored answers; nothing is stored"),
    "client_metadata": _ignored("", "labels, of Codex"),
    "user": _ignored("OV", "names the end user; nobody is told"),
    "chat_id": _ignored("", "bookkeeping of Open WebUI"),
    "safe_prompt": _refused("", "no prompt of the server's is put before a conversation", False),
    "prompt_mode": _refused("", "no prompt of the server's is put before a conversation; use reasoning_effort"),
    "background_options": _ignored("O", "nothing runs in the background"),
    "image": _refused("O", "no answer has pictures", {}),
    "access_programs": _refused("O", "there are no programs of access", []),
    "safety_identifier": _ignored("O", "names the end user; nobody is told"),
    "store": _ignored("O", "nothing is stored"),
    "service_tier": _ignored("OA", ONE_TIER),
    "priority": _ignored("V", "requests are answered in their order"),
    "request_id": _ignored("V", "the server gives each request an id, in the header x-request-id"),
    "prediction": _ignored("O", "a guess that makes the same answer come sooner"),
    "prompt_lookup_num_tokens": _done("", "how many tokens to draft at a time"),
    "prompt_cache_key": _ignored("O", "a hint; prefixes that are kept are found by their tokens"),
    "prompt_cache_retention": _ignored("O", "a hint; prefixes are kept while there is room"),
    "prompt_cache_options": _ignored("O", "a hint; prefixes are kept while there is room"),
    "cache_prompt": _ignored("L", "prefixes are kept while there is room"),
    "cache_salt": _ignored("V", "a prefix that is kept changes no answer"),
    "cache_control": _ignored("A", "a hint; prefixes are kept while there is room"),
    "session_id": _ignored("V", "prefixes are found by their tokens"),
    "speculative.n_min": _ignored("L", "drafts change no answer; see prompt_lookup_num_tokens"),
    "speculative.n_max": _ignored("L", "drafts change no answer; see prompt_lookup_num_tokens"),
    "speculative.p_min": _ignored("L", "drafts change no answer; see prompt_lookup_num_tokens"),
    "speculative.type": _ignored("L", "drafts change no answer; see prompt_lookup_num_tokens"),
    "speculative.ngram_size_n": _ignored("L", "drafts change no answer; see prompt_lookup_num_tokens"),
    "speculative.ngram_size_m": _ignored("L", "drafts change no answer; see prompt_lookup_num_tokens"),
    "speculative.ngram_m_hits": _ignored("L", "drafts change no answer; see prompt_lookup_num_tokens"),
    "stream_interval": _ignored("V", "a stream has an event for each token"),
    "sse_ping_interval": _ignored("L", "a stream is not silent for long"),
    "id_slot": _ignored("L", "the engine chooses a row"),
    "n_discard": _ignored("L", "a prompt is never shifted out of the context"),
    "n_keep": _ignored("L", "a prompt is never shifted out of the context"),
    "n_cache_reuse": _ignored("L", "prefixes are found by their tokens"),
    "timings_per_token": _ignored("L", "durations are in /metrics and in the log"),
    "return_progress": _ignored("L", "a stream begins with its first token"),
    "keep_alive": _ignored("", "of Ollama; see --models-dir"),
    "ttl": _ignored("", "of LM Studio; see --models-dir"),
    "lora": _refused("L", "name the adapter in model, as FOLDER:ADAPTER", []),
    "kv_transfer_params": _refused("V", "caches stay in the process"),
    "ec_transfer_params": _refused("V", "caches stay in the process"),
    "routed_experts_prompt_start": _ignored("V", "answers do not say which experts computed them"),
    "return_mm_kwargs": _ignored("V", "an answer has none of its prompt"),
    "media_io_kwargs": _refused("V", "pictures are read as the bundle says", {}),
    "use_activation": _refused("V", "scores and vectors are as the model's own configuration says", True),
    "embed_dtype": _refused("V", "vectors are float32", "float32"),
    "endianness": _refused("V", "base64 is of little-endian numbers", "native", "little"),
    "vllm_xargs": _refused("V", "there are no others", {}),
    "background": _refused("O", "an answer belongs to its request", False),
    "conversation": _refused("O", NOT_STORED),
    "previous_response_id": _refused("O", f"{NOT_STORED} as input"),
    "previous_response": _refused("V", f"{NOT_STORED} as input"),
    "previous_input_messages": _refused("V", f"{NOT_STORED} as input"),
    "enable_response_messages": _refused("V", "an answer has its items alone", False),
    "include": _done("O", "of /v1/responses; what an answer never has is left out"),
    "moderation": _refused("O", "there is no moderation"),
}
"""Fields of requests, in groups; options of generation that need no words are added as they are declared."""

FIELDS |= {option.api: _done(option.servers) for option in OPTIONS.values() if option.api and option.api not in FIELDS}

MESSAGE_FIELDS: dict[str, ApiField] = {
    "system": _done("A"),
    "stop_sequences": _done("A", "stop by another name"),
    "container": _refused("A", "the server runs no tools of its own"),
    "context_management": _done("A", "clearing what was thought, which is the chat template's affair"),
    "mcp_servers": _refused("A", "the server runs no tools of its own", []),
    "output_config": _done("AV", "`format`, and `effort` where the chat template reads it"),
    "inference_geo": _ignored("A", "the server is where it is"),
    "speed": _ignored("A", "there is one speed"),
    "diagnostics": _ignored("A", "what was found in a cache is in `usage`"),
    "user_profile_id": _ignored("A", "names the end user; nobody is told"),
    "thread": ApiField(
        "refused", "A", NOT_STORED, details={"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    ),
    "compaction": _refused("A", "a conversation is answered as it is"),
    "workspace_id": _ignored("A", "there are no workspaces"),
    "betas": _ignored("A", "the fields of a request say what it wants"),
    "billing_policy": _ignored("A", "nothing is billed"),
    "fallback_credit_token": _ignored("A", "nothing is billed"),
    "fallbacks": _refused("A", "the model that is named answers", []),
}
"""Fields of /v1/messages that no other route has."""

PARTS: dict[str, dict[str, ApiField]] = {
    "message": {
        "extra_content": _ignored("", "bookkeeping of Google's servers"),
        "annotations": _ignored("O", "of an answer that is sent back"),
        "audio": _refused("O", TEXT_ONLY),
        "function_call": _refused("O", "deprecated by OpenAI; use tool_calls"),
        "cache_control": FIELDS["cache_control"],
        "id": _ignored("", "of an answer that is sent back"),
        "index": _ignored("", "kept by collectors of streams"),
        "phase": _ignored("O", "of an answer that is sent back"),
        "prefix": _refused("", "only a last message of the assistant is continued", False),
        "provider_specific_fields": _ignored("", "bookkeeping of LiteLLM"),
        "reasoning_details": _ignored("", "bookkeeping of OpenRouter"),
        "status": _ignored("O", "of an answer that is sent back"),
        "thinking_blocks": _ignored("", "bookkeeping of LiteLLM, beside `reasoning_content`"),
        "tool_name": _ignored("", "bookkeeping of Ollama"),
    },
    "part": {
        "annotations": _ignored("O", "of an answer that is sent back"),
        "logprobs": _ignored("O", "of an answer that is sent back"),
        "cache_control": FIELDS["cache_control"],
        "citations": _ignored("A", "of an answer that is sent back"),
        "id": _ignored("", "of an answer that is sent back"),
        "prompt_cache_breakpoint": FIELDS["prompt_cache_options"],
    },
    "block": {
        "cache_control": FIELDS["cache_control"],
        "caller": _ignored("A", "the model alone calls"),
        "citations": _ignored("A", "of an answer that is sent back"),
        "data": _ignored("A", "of redacted thinking"),
        "signature": _ignored("A", "of an answer that is sent back"),
    },
    "tool call": {
        "index": _ignored("OV", "of a stream"),
        "extra_content": _ignored("", "bookkeeping of Google's servers"),
        "cache_control": FIELDS["cache_control"],
        "provider_specific_fields": _ignored("", "bookkeeping of LiteLLM"),
    },
    "function of a call": {"parsed_arguments": _ignored("O", "of the client's `parse`")},
    "tool": {
        "cache_control": FIELDS["cache_control"],
        "allowed_callers": _ignored("OA", "the model alone calls"),
        "async": _refused("O", "the client answers calls in its next request", False),
        "defer_loading": _refused("OA", "tools are in the prompt", False),
        "eager_input_streaming": _ignored("A", "calls come whole"),
        "input_examples": _ignored("A", "examples of arguments"),
        "output_schema": _ignored("O", "what a tool returns is text"),
    },
    "response_format": {},
    "text": {"verbosity": FIELDS["verbosity"]},
    "thinking": {"display": _ignored("A", "what a model thinks comes as it is")},
    "stream_options": {
        "continuous_usage_stats": _refused("V", "the usage is in the last event", False),
        "include_obfuscation": _ignored("O", "streams are not padded against listeners on the wire"),
    },
    "document": {
        "title": _ignored("V", "only the text of a document is scored"),
        "id": _ignored("V", "documents are named by their index"),
    },
}
"""Fields of the parts of a request that are not done, by the part."""


def keep_known(data: Mapping[str, Any], known: frozenset[str], table: Mapping[str, ApiField]) -> dict[str, Any]:
    """Return the fields of a request or a part of one that the server has, without those that are null.

    known: names of fields that are done. table: of the others. Raises PydanticCustomError for a field that must not be
    ignored; its type is the code of the error, and its context has the field.
    """
    kept = {}
    for name, value in data.items():
        if name in known:
            if value is not None:
                kept[name] = value
            continue
        field = table.get(name)
        if field is None or field.status == "done":
            if value in (None, [], {}, "") or (not value and field is not None):  # the default of another route
                continue
            shown = name.encode("ascii", "backslashreplace").decode()  # it may have half of a character
            raise PydanticCustomError("unknown_parameter", "is no field of this request", {"field": shown})
        if field.changes(value, data):
            raise PydanticCustomError(
                "unsupported_parameter",
                "is not supported: {note}. Leave it out",
                {"field": name, "note": field.note, "details": field.details},
            )
    return kept
