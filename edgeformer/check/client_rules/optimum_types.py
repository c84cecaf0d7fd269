"""The model_types that transformers < 4.58 knows, which Optimum requires; it does not open later types.

Source: transformers 4.57.6, the maps of `models/auto/modeling_auto.py` for causal, masked, sequence-to-sequence and
speech models and for classification. optimum-onnx 0.1 requires transformers < 4.58.
"""

_NAMES = """
albert apertus arcee aria_text bamba bart bert bert-generation big_bird bigbird_pegasus biogpt bitnet blenderbot
blenderbot-small bloom blt camembert canine code_llama codegen cohere cohere2 convbert cpmant ctrl data2vec-text
dbrx deberta deberta-v2 deepseek_v2 deepseek_v3 dia diffllama distilbert doge dots1 electra emu3 encoder-decoder
ernie ernie4_5 ernie4_5_moe ernie_m esm exaone4 falcon falcon_h1 falcon_mamba flaubert flex_olmo fnet fsmt funnel
fuyu gemma gemma2 gemma3 gemma3_text gemma3n gemma3n_text git glm glm4 glm4_moe got_ocr2 gpt-sw3 gpt2 gpt_bigcode
gpt_neo gpt_neox gpt_neox_japanese gpt_oss gptj gptsan-japanese granite granite_speech granitemoe granitemoehybrid
granitemoeshared helium hunyuan_v1_dense hunyuan_v1_moe ibert jamba jetmoe kyutai_speech_to_text layoutlm layoutlmv2
layoutlmv3 led lfm2 lilt llama llama4 llama4_text longcat_flash longformer longt5 luke m2m_100 mamba mamba2 marian
markuplm mbart mega megatron-bert minimax ministral mistral mixtral mllama mobilebert modernbert modernbert-decoder
moonshine moshi mpnet mpt mra mt5 musicgen musicgen_melody mvp nemotron nezha nllb-moe nystromformer olmo olmo2
olmo3 olmoe open-llama openai-gpt opt pegasus pegasus_x perceiver persimmon phi phi3 phi4_multimodal phimoe plbart
pop2piano prophetnet qdqbert qwen2 qwen2_audio qwen2_moe qwen3 qwen3_moe qwen3_next recurrent_gemma reformer rembert
roberta roberta-prelayernorm roc_bert roformer rwkv seamless_m4t seamless_m4t_v2 seed_oss smollm3
speech-encoder-decoder speech_to_text speech_to_text_2 speecht5 squeezebert stablelm starcoder2 switch_transformers
t5 t5gemma tapas transfo-xl trocr umt5 vaultgemma voxtral wav2vec2 whisper xglm xlm xlm-prophetnet xlm-roberta
xlm-roberta-xl xlnet xlstm xmod yoso zamba zamba2
"""

TYPES = frozenset(_NAMES.split())
