"""Generate text about pictures: a decoder-only language model with a tower in front of it."""

from edgeformer.runtime.tasks.tower_text import TowerTextLM
from edgeformer.runtime.tasks.vision.picture_prompts import PicturePrompts


class PictureTextLM(PicturePrompts, TowerTextLM):
    """A decoder-only language model that reads pictures, too: `images` of `generate`, `stream`, `chat` and `forward`.

    What it computes of a picture is kept for further questions (`features`), and found again by its pixels.
    """
