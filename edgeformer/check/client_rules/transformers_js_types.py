"""The model_types that transformers.js knows, by task, and the field of config.json with a decoder's layers.

Source: transformers.js 4.3.2, the maps MODEL_FOR_… of `src/models/registry.js` and getNormalizedConfig of
`src/configs.js`; a test compares them with the package where it is installed.
"""

VERSION = "4.3.2"


def _types(names: str) -> frozenset[str]:
    return frozenset(names.split())


CAUSAL_LM = _types(
    """
    afmoe apertus arcee bloom codegen cohere cohere2 deepseek_v3 deepseek_v4 ernie4_5 exaone falcon falcon_h1 gemma
    gemma2 gemma3 gemma3_text gemma3n gemma4 glm glm_moe_dsa gpt2 gpt_bigcode gpt_neo gpt_neox gpt_oss gptj granite
    granitemoehybrid helium hrm_text hunyuan_v1_dense jais lfm2 lfm2_moe lfm3 llama llama4_text mbart ministral
    ministral3 mistral mistral4 mobilellm modernbert-decoder mpt nanochat nemotron_h olmo olmo2 olmo3 olmo_hybrid
    openelm opt phi phi3 phi3_v qwen2 qwen2_5_vl qwen2_moe qwen2_vl qwen3 qwen3_5 qwen3_5_moe qwen3_5_text qwen3_moe
    qwen3_next qwen3_vl qwen3_vl_moe smollm3 solar_open stablelm starcoder2 trocr vaultgemma youtu zaya
    """
)
"""Decoders."""

SEQ2SEQ_LM = _types(
    """
    bart blenderbot blenderbot-small cohere_asr lite-whisper longt5 m2m_100 marian mbart moonshine mt5 speecht5 t5
    whisper
    """
)
"""Encoder-decoders for text and for speech."""

MASKED_LM = _types(
    """
    albert bert camembert convbert deberta deberta-v2 distilbert electra esm eurobert mobilebert modernbert mpnet
    neobert roberta roformer squeezebert xlm xlm-roberta
    """
)
"""Masked language models."""

CLASSIFICATION = _types(
    """
    albert bart bert camembert convbert deberta deberta-v2 distilbert electra esm eurobert mbart mobilebert modernbert
    mpnet neobert roberta roformer squeezebert xlm xlm-roberta
    """
)
"""Text classifiers."""

TOKEN_CLASSIFICATION = _types(
    """
    bert camembert convbert deberta deberta-v2 distilbert electra esm eurobert modernbert mpnet neobert
    openai_privacy_filter roberta roformer xlm xlm-roberta
    """
)
"""Classifiers of tokens."""

QUESTION_ANSWERING = _types(
    """
    albert bert camembert convbert deberta deberta-v2 distilbert electra mobilebert mpnet neobert roberta roformer
    squeezebert xlm xlm-roberta
    """
)
"""Models that find answers in texts."""

_BY_KEY = {
    "decoder_layers": "bart blenderbot blenderbot-small lite-whisper m2m_100 marian mbart speecht5 whisper",
    "decoder_num_hidden_layers": "moonshine",
    "n_layer": "bloom codegen gpt2 gpt_bigcode gptj jais",
    "n_layers": "mpt",
    "num_decoder_layers": "longt5 mt5 t5",
    "num_layers": "exaone gpt_neo",
    "num_transformer_layers": "openelm",
}

LAYERS = {model_type: key for key, types in _BY_KEY.items() for model_type in types.split()}
"""Field with the number of layers of the decoder, by model_type, where it is not num_hidden_layers."""

IMAGE_TEXT = _types(
    """
    florence2 gemma3 gemma3n gemma4 glm_ocr idefics3 lfm2_vl lfm3_vl lighton_ocr llava llava_onevision llava_qwen2
    mistral3 moondream1 paligemma qwen2_5_vl qwen2_vl qwen3_5 qwen3_5_moe qwen3_vl qwen3_vl_moe smolvlm
    """
)
"""Models of pictures and text."""

AUDIO_TEXT = _types("granite_speech ultravox voxtral voxtral_realtime")
"""Models of sound and text."""

TEXT_CONFIG = _types(
    """
    gemma3 gemma3n gemma4 glm_ocr granite_speech idefics3 lfm2_vl lfm3_vl lighton_ocr llava llava_onevision mistral3
    paligemma qwen2_5_vl qwen3_5 qwen3_5_moe qwen3_vl qwen3_vl_moe smolvlm ultravox voxtral voxtral_realtime
    """
)
"""Types whose caches follow from the nested text_config."""

OWN_GRAPHS = _types("gemma3n gemma4 phi3_v")
"""Decoders that are read from other graphs than model.onnx, with the embedding in one of its own."""

OTHER_CACHES = _types("deepseek_v4 trocr zaya")
"""Types whose caches are of a kind that edgeformer does not have."""
