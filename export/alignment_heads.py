"""Read from a speech model's files which heads say where a token is spoken.

Source: `alignment_heads` of generation_config.json, `median_filter_width` of config.json, as in transformers' Whisper.
"""

from edgeformer.config import ModelConfig
from edgeformer.errors import ExportError, shown
from edgeformer.export.importers.opened_model import Origin
from edgeformer.manifest.graph_forms import FORMS, AlignmentGraph, AlignmentHead

DEFAULT_WIDTH = 7
"""Positions of the median filter where config.json names none. Source: `WhisperConfig` of transformers."""


def read_alignment(origin: Origin, config: ModelConfig | None) -> AlignmentGraph | None:
    """Return the alignment graph that a model is to have; None where its files name no heads.

    Raises ExportError for heads that the model does not have, and for a filter that has no middle.
    """
    named = origin.generation.get("alignment_heads")
    if not named or config is None or not config.is_speech:
        return None
    blocks = config.output_stack.blocks
    count = blocks[0].cross_attention.num_heads  # type: ignore[union-attr]
    heads = []
    for each in named if isinstance(named, list) else [named]:
        pair = each if isinstance(each, list) and all(type(number) is int for number in each) else []
        if len(pair) != 2 or not (0 <= pair[0] < len(blocks) and 0 <= pair[1] < count):
            raise ExportError(
                f"generation_config.json has {shown(each)} in alignment_heads; each must be [layer, head] of "
                f"{len(blocks)} layers of {count} heads. Correct it, or take alignment_heads out."
            )
        heads.append(AlignmentHead(layer=pair[0], head=pair[1]))
    width = (origin.hf_config or {}).get("median_filter_width", DEFAULT_WIDTH)
    if type(width) is not int or width < 1 or width % 2 == 0:
        raise ExportError(
            f"config.json has median_filter_width = {shown(width)}; it must be a positive odd number, such as "
            f"{DEFAULT_WIDTH}."
        )
    return AlignmentGraph(file=FORMS["alignment"].file, heads=tuple(heads), median_filter_width=width)
