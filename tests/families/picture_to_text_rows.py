"""Random models of transformers' VisionEncoderDecoderModel that write the text of a picture (TrOCR)."""

import torch
import transformers
from picture_text_rows import tokenizer

from edgeformer.transformers_backend.float64 import computing_in_float64

TOWER = {
    "hidden_size": 24, "intermediate_size": 36, "num_hidden_layers": 2, "num_attention_heads": 3, "image_size": 28,
    "patch_size": 7, "layer_norm_eps": 1e-3,
}  # fmt: skip
DECODER = {
    "vocab_size": 340, "d_model": 40, "decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 56,
    "cross_attention_hidden_size": 24, "max_position_embeddings": 40, "is_decoder": True, "pad_token_id": 1,
    "bos_token_id": 0, "eos_token_id": 2,
}  # fmt: skip
VIT, DEIT = transformers.ViTConfig, transformers.DeiTConfig
MODELS = {
    "vit": (VIT, TOWER | {"qkv_bias": False}, DECODER),
    "deit": (
        DEIT, TOWER | {"num_attention_heads": 2, "hidden_act": "relu"},
        DECODER | {
            "use_learned_position_embeddings": False, "scale_embedding": True, "layernorm_embedding": False,
            "activation_function": "relu", "tie_word_embeddings": False,
        },
    ),
    "wide pictures": (
        VIT, TOWER | {"image_size": [21, 35], "hidden_size": 40, "num_attention_heads": 5},
        DECODER | {"cross_attention_hidden_size": None, "decoder_attention_heads": 5, "decoder_layers": 1},
    ),
}  # fmt: skip


def save(name, folder):
    """Save a seeded random model with its processor and tokenizer; return transformers' module in float64."""
    kind, encoder, decoder = MODELS[name]
    torch.manual_seed(sum(map(ord, name)))
    configs = kind(**encoder), transformers.TrOCRConfig(**decoder)
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(*configs)
    config.decoder_start_token_id, config.pad_token_id, config.eos_token_id = 2, 1, 2
    config.tie_word_embeddings = False  # of the whole, as published files have it
    model = transformers.VisionEncoderDecoderModel(config)
    with torch.no_grad():
        for parameter in model.parameters():
            small = parameter.dim() == 1 or parameter.shape[-1] == 1
            parameter.add_(0.2 * torch.randn_like(parameter) * (1 if small else parameter[0].numel() ** -0.5 * 5))
    model.generation_config = transformers.GenerationConfig(
        decoder_start_token_id=2, pad_token_id=1, eos_token_id=2, bos_token_id=0
    )
    model.save_pretrained(folder)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer(), pad_token="<s>", eos_token="</s>")
    fast.save_pretrained(folder)
    size = configs[0].image_size
    height, width = (size, size) if isinstance(size, int) else size
    transformers.ViTImageProcessorPil(size={"height": height, "width": width}).save_pretrained(folder)
    with computing_in_float64():
        module = transformers.VisionEncoderDecoderModel.from_pretrained(
            folder, dtype=torch.float64, attn_implementation="eager"
        ).eval()
        positions = module.decoder.model.decoder.embed_positions
        if hasattr(positions, "weights"):  # which transformers 5 leaves on the meta device
            rows, width = positions.weights.shape
            positions.weights = positions.get_embedding(rows, width, positions.padding_idx)
    return module
