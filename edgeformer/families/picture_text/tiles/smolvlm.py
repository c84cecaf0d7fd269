"""SmolVLM and SmolVLM2: Idefics3 with names of tokens in the tokenizer.

Source: transformers/models/smolvlm/modeling_smolvlm.py, processing_smolvlm.py.
"""

from collections.abc import Mapping
from typing import Any

from edgeformer.families.picture_text import PictureTextFamily, named_token
from edgeformer.families.picture_text.tiles.idefics3 import PROCESSOR_FIELDS, TENSORS, read
from edgeformer.manifest.placeholders.tiles import TiledMarks


def marks(tokenizer_config: Mapping[str, Any]) -> TiledMarks:
    """Return the texts of tokens around pictures, as the tokenizer names them."""
    return TiledMarks(
        picture=named_token(tokenizer_config, "image_token", "<image>"),
        border=named_token(tokenizer_config, "fake_image_token", "<fake_token_around_image>"),
        whole=named_token(tokenizer_config, "global_image_token", "<global-img>"),
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
