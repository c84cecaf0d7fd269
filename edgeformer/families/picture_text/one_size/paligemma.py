"""PaliGemma 1 and 2: SigLIP's tower, one matrix, and a Gemma 1 or 2 whose prompts attend both ways.

Its processor puts the begin token behind the pictures, and a line break behind the prompt. Positions are counted from 1
there, which rotations do not see. Source: transformers/models/paligemma/modeling_paligemma.py, processing_paligemma.py.
"""

from collections.abc import Mapping
from typing import Any

from edgeformer.config.projectors import LinearProjector
from edgeformer.errors import ConfigError
from edgeformer.families._family import Fields
from edgeformer.families.picture_text import PictureTextFamily, Seeing
from edgeformer.families.picture_text.one_size.gemma3 import TOWER_TENSORS, UNREAD_TENSORS, read_siglip
from edgeformer.manifest.placeholders.prompt_text import PromptText
from edgeformer.manifest.placeholders.repeated import RepeatedMarks

DEFAULTS: dict[str, Any] = {
    "hidden_size": 1152, "intermediate_size": 4096, "num_hidden_layers": 27, "num_attention_heads": 16,
    "image_size": 224, "patch_size": 14, "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6,
    "vision_use_head": False,
}  # fmt: skip
"""Fields of the tower of transformers' class."""


def read(fields: Fields) -> Seeing:
    """Read the tower and the projector."""
    fields.ignore("image_token_index", "image_token_id", "projection_dim", "use_bidirectional_attention")
    vision = read_siglip(fields, DEFAULTS)
    return Seeing(
        tower=vision,
        feature_layers=(len(vision.blocks),),
        projector=LinearProjector(bias=True),
        bidirectional="prompt",
    )


def marks(tokenizer_config: Mapping[str, Any]) -> RepeatedMarks:
    """Return the texts of tokens around pictures. Raises ConfigError where the tokenizer names no begin token."""
    token = tokenizer_config.get("bos_token")
    begin = token.get("content") if isinstance(token, dict) else token
    if not isinstance(begin, str):
        raise ConfigError("tokenizer_config.json has no bos_token, which PaliGemma has behind the pictures.")
    text = PromptText(spelled="<image>", written="<image>", after_last=begin, end="\n", adds_special_tokens=False)
    return RepeatedMarks(text=text)


FAMILY = PictureTextFamily(
    summary="PaliGemma 1 and 2: pictures of one size and a question about them, which attend to each other",
    read=read,
    tensors={**TOWER_TENSORS, "projector.output": "multi_modal_projector.linear"},
    marks=marks,
    processor="fixed_size",
    processor_fields=("auto_map", "chat_template", "processor_class"),
    ignored_tensors=UNREAD_TENSORS,
)
