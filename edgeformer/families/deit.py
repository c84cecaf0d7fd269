"""DeiT: a ViT with a second learned token, whose class a teacher has named.

Source: transformers/models/deit/modeling_deit.py.
"""

from collections.abc import Callable

from edgeformer.config import VisionConfig
from edgeformer.families._family import Family, Fields
from edgeformer.families._vision import Outputs, read_class, read_classifier, read_feed_forward, read_tower, vit_tensors
from edgeformer.families.vit import DEFAULTS, read_pooler


def read_config(fields: Fields, context_length: int | None) -> VisionConfig:
    """Read a DeiT config.json."""
    pooler = read_pooler(fields)
    heads: dict[str, Callable[[], Outputs]] = {
        "DeiTModel": lambda: (pooler, None),
        "DeiTForImageClassification": lambda: (None, read_classifier(fields, "first")),
        "DeiTForImageClassificationWithTeacher": lambda: (None, read_classifier(fields, "first", distilled=True)),
    }
    return read_tower(
        fields,
        context_length,
        prefix_tokens=2,
        feed_forward=read_feed_forward(fields),
        qkv_bias=fields.take("qkv_bias"),
        outputs=read_class(fields, heads, "DeiTModel")(),
    )


FAMILY = Family(
    summary="DeiT, with and without its teacher's token; labels of pictures, vectors of pictures",
    read_config=read_config,
    tensors=vit_tensors("deit")
    | {
        "prefix.1": "deit.embeddings.distillation_token",
        "classifier.output": "cls_classifier|classifier",
        "classifier.distilled": "distillation_classifier",
    },
    defaults=DEFAULTS,
    optional_prefix="deit.",
    ignored_tensors=(
        r"deit\.pooler\.dense\.(weight|bias)", r"(cls_|distillation_)?classifier\.(weight|bias)",
    ),
)  # fmt: skip
