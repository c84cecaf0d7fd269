"""The keys of genai_config.json that onnxruntime-genai knows, with the types of their values; others are errors.

Source: `src/config.cpp` of onnxruntime-genai; a test tries each key with the installed package (0.18). Parts for
images, sound and draft models are not checked.
"""

from typing import Any

INTEGER, NUMBER, BOOL = "an integer", "a number", "true or false"
TEXT, LIST, ANYTHING = "a string", "a list", "anything"
Schema = dict[str, Any]
"""Type of each key's value; for an object, the schema of its keys."""


def _all(kind: str, names: str) -> Schema:
    return dict.fromkeys(names.split(), kind)


SESSION = {
    **_all(TEXT, "log_id enable_profiling graph_optimization_level custom_ops_library"),
    **_all(INTEGER, "intra_op_num_threads inter_op_num_threads log_severity_level log_verbosity_level"),
    **_all(BOOL, "enable_cpu_mem_arena enable_mem_pattern"),
    "provider_options": LIST,
    "*": TEXT,
}
"""Session options; `*` stands for all other keys, which onnxruntime reads."""

DECODER = {
    "filename": TEXT,
    **_all(
        INTEGER,
        "hidden_size num_attention_heads num_hidden_layers num_key_value_heads head_size conv_cache_size",
    ),
    "session_options": SESSION,
    "run_options": {"*": TEXT},
    "inputs": _all(
        TEXT,
        """
        input_ids inputs_embeds attention_mask position_ids past_key_names past_value_names past_names
        cross_past_key_names cross_past_value_names past_sequence_length current_sequence_length total_sequence_length
        encoder_hidden_states encoder_attention_mask rnn_states_prev past_key_values_length cache_indirection
        cumulative_sequence_lengths past_sequence_lengths block_table block_table_windowed attention_metadata
        past_conv_names past_recurrent_names hidden_states targets lstm_hidden_state lstm_cell_state
        per_layer_inputs targets_length
        """,
    ),
    "outputs": _all(
        TEXT,
        """
        logits present_key_names present_value_names present_names output_cross_qk_names rnn_states present_conv_names
        present_recurrent_names hidden_states outputs lstm_hidden_state lstm_cell_state outputs_length
        """,
    ),
    "sliding_window": {
        **_all(INTEGER, "window_size pad_value cache_slack"),
        **_all(BOOL, "slide_key_value_cache slide_inputs"),
        "alignment": TEXT,
        "layers": LIST,
    },
    "pipeline": ANYTHING,
    **_all(LIST, "layer_types shared_initializers"),
}

MODEL = {
    **_all(TEXT, "type tokenizer_dir"),
    **_all(
        INTEGER,
        """
        vocab_size context_length pad_token_id bos_token_id decoder_start_token_id sep_token_id image_token_id
        audio_token_id boa_token_id video_token_id vision_start_token_id num_mels fft_size hop_length win_length
        subsampling_factor left_context conv_context pre_encode_cache_size sample_rate chunk_samples blank_id
        max_symbols_per_step left_context_samples right_context_samples bot_token_id eot_token_id bor_token_id
        eor_token_id
        """,
    ),
    **_all(NUMBER, "preemph log_eps norm_eps"),
    "tdt_durations": LIST,
    "eos_token_id": ANYTHING,
    "decoder": DECODER,
    **_all(ANYTHING, "encoder draft vision embedding speech joiner vad mtp"),
}

SEARCH = {
    **_all(
        INTEGER,
        """
        min_length max_length batch_size num_beams num_return_sequences top_k no_repeat_ngram_size random_seed
        """,
    ),
    **_all(
        NUMBER,
        "top_p temperature repetition_penalty length_penalty diversity_penalty chunk_size blank_penalty",
    ),
    **_all(BOOL, "do_sample past_present_share_buffer early_stopping"),
}

ROOT = {"model": MODEL, "search": SEARCH, **_all(ANYTHING, "speculative engine")}


def _types(names: str) -> frozenset[str]:
    return frozenset(names.split())


DECODER_TYPES = _types(
    """
    chatglm decoder ernie4_5 gemma gemma2 gemma3_text gemma4_text gptoss granite granitemoehybrid hunyuandensev1
    internlm2 lfm2 lfm2_moe llama mistral nemotron olmo phi phimoe phi3 phi3small qwen2 qwen3 qwen3_5_moe_text
    qwen3_5_text smollm3
    """
)
"""Types with one decoder graph, whose layers may keep keys and values and states of fixed size."""
CONV_TYPES = _types("lfm2 lfm2_moe")
"""Decoder types whose states are those of convolutions only; their genai_config.json must list the types of layers."""
OTHER_TYPES = _types(
    """
    gpt2 fara gemma3 mistral3 phi3v videochat_flash_qwen whisper marian-ssru nemotron_speech parakeet_tdt gemma4
    phi4mm decoder-pipeline
    """
)
"""Types with another kind of graphs or caches."""
PICTURE_TYPES = _types("qwen2_5_vl qwen3_vl qwen3_5 qwen3_5_moe")
"""Types with a graph for pictures, one for embeddings, and a decoder that reads these."""
