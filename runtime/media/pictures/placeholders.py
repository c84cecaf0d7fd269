"""Put what a picture becomes in the place of its placeholder, on token ids: text that spells a placeholder stays text.

[9, 5]          one picture cut into 1 × 2 tiles           [7, 31, 9, 9, 7, 32, 9, 9, 6, 7, 8, 9, 9, 7, 5]
 └ placeholder                                              └ border, name, states, … (`TiledPlaceholder`)
"""

from collections.abc import Sequence

from edgeformer.errors import RequestError
from edgeformer.manifest.placeholders.placeholder import Placeholder


def expand(tokens: Sequence[int], placeholder: Placeholder, grids: Sequence[tuple[int, ...]]) -> list[int]:
    """Return a prompt in which the n-th placeholder is the n-th picture, of so many rows and columns of tiles.

    Raises RequestError unless there is a placeholder for each picture, and for a picture of more tiles than there are
    names of.
    """
    check_count(tokens, placeholder, len(grids))
    found: list[int] = []
    rest = iter(grids)
    for token in tokens:
        found += placeholder.expanded(*next(rest)) if token == placeholder.token else [token]
    return found


def check_count(tokens: Sequence[int], placeholder: Placeholder, pictures: int) -> None:
    """Raise RequestError unless a prompt has a placeholder for each of so many pictures, and none of a video."""
    placeholder.check_prompt(tokens)
    places = list(tokens).count(placeholder.token)
    if places != pictures:
        raise RequestError(
            f"the prompt has {_counted(places, 'placeholder')} of {placeholder.medium}s (token {placeholder.token}), "
            f"and {_counted(pictures, placeholder.medium)} came with it. It needs one for each {placeholder.medium}, "
            f"where it is to be {'seen' if placeholder.medium == 'picture' else 'heard'}."
        )


def _counted(count: int, what: str) -> str:
    return f"{count or 'no'} {what}{'' if count == 1 else 's'}"
