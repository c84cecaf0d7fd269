"""SmolVLM and SmolVLM2: Idefics3 with names of tokens in the tokenizer.

Source: transformers/models/smolvlm/modeling_smolvlm.py, processing_smolvlm.py.
"""

from collections.abc import Mapping
from typing import Any

from edgeformer.families.picture_text import Marks, PictureTextFamily
from edgeformer.families.picture_text.idefics3 import PROCESSOR_FIELDS, TENSORS, read


def marks(tokenizer_config: Mapping[str, Any]) -> Marks:
    """Return the texts of tokens around pictures, as the tokenizer names them."""
    places = ("extra_special_tokens", "model_specific_special_tokens")
    named = [each for each in (tokenizer_config.get(place) for place in places) if isinstance(each, dict)]

    def text(name: str, default: str) -> str:
        found = [each[name] for each in (*named, tokenizer_config) if each.get(name) is not None]
        token = found[0] if found else default
        return str(token.get("content") if isinstance(token, dict) else token)

    return Marks(
        picture=text("image_token", "<image>"),
        border=text("fake_image_token", "<fake_token_around_image>"),
        whole=text("global_image_token", "<global-img>"),
        tile="<row_{row}_col_{column}>",
    )


FAMILY = PictureTextFamily(
    summary="SmolVLM: pictures in tiles, and text; videos are left out",
    read=read,
    tensors=TENSORS,
    marks=marks,
    processor="tiles",
    processor_fields=(*PROCESSOR_FIELDS, "video_processor"),
)
