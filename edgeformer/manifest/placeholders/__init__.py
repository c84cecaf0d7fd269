"""Placeholders of pictures: the tokens that stand for a picture in a prompt.

A file is a kind: its fields in the manifest, the tokens that a picture becomes, and its marks as texts, which a family
knows and a tokenizer encodes at export.
"""

from edgeformer.manifest.placeholders.enclosed import EnclosedPlaceholder
from edgeformer.manifest.placeholders.grid import GridPlaceholder
from edgeformer.manifest.placeholders.named_tiles import NamedTilesPlaceholder
from edgeformer.manifest.placeholders.repeated import RepeatedPlaceholder
from edgeformer.manifest.placeholders.rows import RowsPlaceholder
from edgeformer.manifest.placeholders.tiles import TiledPlaceholder

Placeholder = (
    GridPlaceholder
    | RepeatedPlaceholder
    | TiledPlaceholder
    | EnclosedPlaceholder
    | RowsPlaceholder
    | NamedTilesPlaceholder
)
"""The kinds of placeholders, told apart by `kind`."""
