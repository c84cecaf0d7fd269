"""The texts that a verification feeds: natural ones in several languages, and random tokens."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgeformer.runtime.text.tokenizer import Tokenizer

SEED = 0

TEXTS = {
    "English": "The ferry left at seven in the morning, and by noon the island had sunk below the horizon. Nobody on "
    "board had thought of bread; there were nineteen of them, a goat, and 2,450 litres of lamp oil.",
    "Chinese": "船在早上七点离开，到中午时小岛已经沉到地平线以下。船上没有人想到面包；他们有十九个人、一只山羊。",
    "Arabic": "غادرت العبارة في السابعة صباحا، وبحلول الظهر كانت الجزيرة قد اختفت خلف الأفق. لم يفكر أحد في الخبز.",
    "French and German": "Le bac partit à sept heures ; l'île disparut. Niemand an Bord hatte an Brot gedacht.",
    "code": "def ferry(passengers: list[str], hour: int = 7) -> dict[str, int]:\n    # even the goat pays 🐐\n"
    "    return {name: 3 * hour + len(name) for name in passengers if name != ''}\n",
    "chat": "system: You are brief.\nuser: When does the ferry leave?\nassistant: At seven.\nuser: And the goat?\n",
}


def random_tokens(length: int, vocab_size: int, salt: int = 0) -> NDArray[np.int64]:
    """Return seeded token ids, int64 [length], from the whole vocabulary; each salt gives other ones."""
    return np.random.default_rng((SEED, salt)).integers(0, vocab_size, length)


def text_samples(
    tokenizer_folder: Path, length: int, vocab_size: int, names: Iterable[str] = TEXTS
) -> list[NDArray[np.int64]]:
    """Return the token ids of the named texts, each cut or repeated to `length`, so that they are computed together.

    A text with tokens beyond the model's vocabulary, which a tokenizer may have, is left out.
    """
    tokenizer = Tokenizer(tokenizer_folder)
    tokens = [np.array(tokenizer.encode(TEXTS[name]), np.int64) for name in names]
    return [np.resize(ids, length) for ids in tokens if len(ids) and ids.max() < vocab_size]
