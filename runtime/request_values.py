"""Check what calls are given: texts, token ids and options. Errors name the argument, its value and what is right.

Nothing is converted in silence: True is no number, "5" no token id, and 1.5 no count. Numbers of numpy are numbers.
"""

import json
import os
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from threading import TIMEOUT_MAX
from typing import Any

import numpy as np

from edgeformer.errors import RequestError

INTEGERS = (
    "max_new_tokens", "max_length", "top_k", "seed", "no_repeat_ngram_size", "min_length", "min_new_tokens",
    "encoder_no_repeat_ngram_size", "forced_bos_token_id", "forced_eos_token_id", "num_beams", "top_logprobs",
    "dry_allowed_length", "dry_penalty_last_n", "prompt_lookup_num_tokens", "max_matching_ngram_size",
    "num_assistant_tokens",
)  # fmt: skip
NUMBERS = (
    "temperature", "top_p", "min_p", "typical_p", "xtc_probability", "xtc_threshold", "repetition_penalty",
    "presence_penalty", "frequency_penalty", "dry_multiplier", "dry_base", "length_penalty", "top_h", "epsilon_cutoff",
    "eta_cutoff", "encoder_repetition_penalty",
)  # fmt: skip
FLAGS = ("logprobs", "ignore_eos", "remove_invalid_values", "renormalize_logits")
OPTIONAL = {"max_new_tokens", "max_length", "seed", "forced_bos_token_id", "forced_eos_token_id"}
"""Options that may be None."""

MOST_ROWS = 65_536
"""Rows of one call at most. What rows need is known before it is allocated, but each is an object of Python, too."""

LONGEST_SECONDS = TIMEOUT_MAX / 2
"""The longest time that a lock waits is TIMEOUT_MAX from now; a larger number of seconds is taken for this one."""


def shown(value: Any) -> str:
    """Return a value as errors show it, cut where it is long."""
    text = repr(value)
    return f"{text[:60]}… ({type(value).__name__})" if len(text) > 60 else f"{text} ({type(value).__name__})"


def integer(name: str, value: Any) -> int:
    """Return an integer of Python or numpy as Python's. Raises RequestError for anything else, such as True or 2.0."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
        raise RequestError(f"{name} is {shown(value)}; it must be a whole number.")
    return int(value)


def number(name: str, value: Any) -> float:
    """Return a number of Python or numpy as Python's. Raises RequestError for anything else; NaN is out of range."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise RequestError(f"{name} is {shown(value)}; it must be a number.")
    return value if isinstance(value, int | float) else value.item()


def count(name: str, value: Any, least: int = 1, most: int | None = None) -> int:
    """Return a whole number within bounds as Python's. Raises RequestError for anything else."""
    found = integer(name, value)
    if found < least or (most is not None and found > most):
        bounds = f"at least {least}" if most is None else f"between {least} and {most:,}"
        raise RequestError(f"{name} is {found}; it must be {bounds}.")
    return found


def flag(name: str, value: Any) -> bool:
    """Return True or False. Raises RequestError for anything else: no other value is taken for one of them."""
    if not isinstance(value, bool):
        raise RequestError(f"{name} is {shown(value)}; it must be True or False.")
    return value


def seconds(name: str, value: Any) -> float | None:
    """Return a time in seconds, or None for no limit. Raises RequestError for anything else, and for NaN."""
    if value is None:
        return None
    found = number(name, value)
    if not found >= 0:
        raise RequestError(f"{name} is {found}; it must be a time in seconds, or None for no limit.")
    return min(found, LONGEST_SECONDS)


def path(name: str, value: Any, kind: str = "folder") -> Path:
    """Return the path of a `kind`. Raises RequestError for anything but a text or a Path."""
    if not isinstance(value, str | os.PathLike) or not isinstance(os.fspath(value), str):
        raise RequestError(f"{name} is {shown(value)}; it must be the path of a {kind}, as a text or a Path.")
    try:
        os.fsencode(value)
    except UnicodeEncodeError:
        raise RequestError(f"{name} is {shown(value)}, which no file of this system can be named.") from None
    return Path(value)


def text(name: str, value: Any) -> str:
    """Return a text. Raises RequestError for anything else, and for one with a lone surrogate."""
    if not isinstance(value, str):
        raise RequestError(f"the {name} is {shown(value)}; it must be a text.")
    checked = text_or_ids(name, value)
    assert isinstance(checked, str)
    return checked


def functions(name: str, value: Any) -> Sequence[Any]:
    """Return a list of functions. Raises RequestError for anything else."""
    if not is_list(value) or not all(callable(each) for each in value):
        raise RequestError(f"{name} is {shown(value)}; it must be a list of functions.")
    functions: Sequence[Any] = value
    return functions


def mapping(name: str, value: Any) -> Mapping[str, Any]:
    """Return a mapping. Raises RequestError for anything else."""
    if not isinstance(value, Mapping):
        raise RequestError(f"{name} is {shown(value)}; it must be a mapping of names to values.")
    return value


def is_list(value: Any) -> bool:
    """Return whether a value is a list, a tuple, a range or an array with an axis; a text is none."""
    if isinstance(value, np.ndarray):
        return value.ndim > 0
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview)


def token_ids(name: str, value: Any) -> list[int]:
    """Return token ids as Python's integers. Raises RequestError for anything but a list of whole numbers."""
    if not is_list(value):
        raise RequestError(f"{name} is {shown(value)}; it must be a list of token ids.")
    if isinstance(value, list) and all(type(each) is int for each in value):
        return list(value)  # as tokenizers give them, without a name for each
    return [integer(f"{name}[{place}]", each) for place, each in enumerate(value)]


def text_or_ids(name: str, value: Any) -> str | list[int]:
    """Return a text, or token ids as Python's integers. Raises RequestError for anything else.

    A text with a lone surrogate, which is half of a character and no UTF-8, is refused, too.
    """
    if isinstance(value, str):
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            found = value[error.start]
            raise RequestError(
                f"the {name} has the lone surrogate {found!r} at character {error.start}, which is half of a "
                "character. It comes of text that was cut or read with errors='surrogateescape'."
            ) from None
        return value
    if not is_list(value):
        hint = " Decode it first: data.decode()." if isinstance(value, bytes | bytearray) else ""
        raise RequestError(f"the {name} is {shown(value)}; it must be a text or a list of token ids.{hint}")
    return token_ids(f"the {name}", value)


def option_values(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a `GenerationConfig` with numbers of Python, checked for their types; ranges come later."""
    checked = dict(options)
    for name in (*INTEGERS, *NUMBERS):
        if checked[name] is not None or name not in OPTIONAL:
            checked[name] = (integer if name in INTEGERS else number)(name, checked[name])
    for name in FLAGS:
        flag(name, checked[name])
    for name in ("regex", "grammar"):
        if checked[name] is not None and not isinstance(checked[name], str):
            raise RequestError(f"{name} is {shown(checked[name])}; it must be a text.")
    checked["json_schema"] = _json_schema(checked["json_schema"])
    checked["logit_bias"] = _biases(checked["logit_bias"])
    for name in ("suppress_tokens", "begin_suppress_tokens"):
        checked[name] = tuple(token_ids(name, checked[name]))
    if not is_list(checked["bad_words_ids"]):
        raise RequestError(
            f"bad_words_ids is {shown(checked['bad_words_ids'])}; it must be a list of lists of token ids."
        )
    words = enumerate(checked["bad_words_ids"])
    checked["bad_words_ids"] = tuple(tuple(token_ids(f"bad_words_ids[{place}]", word)) for place, word in words)
    checked["sequence_bias"] = _sequence_biases(checked["sequence_bias"])
    checked["exponential_decay_length_penalty"] = _decay(checked["exponential_decay_length_penalty"])
    for name in ("stop", "dry_sequence_breakers"):
        checked[name] = _texts(name, checked[name])
    return checked


def _texts(name: str, value: Any) -> tuple[str, ...]:
    """Return a text or texts as a tuple."""
    if not isinstance(value, str) and not (is_list(value) and all(isinstance(text, str) for text in value)):
        raise RequestError(f"{name} is {shown(value)}; it must be a text or a list of texts.")
    return (value,) if isinstance(value, str) else tuple(value)


def _json_schema(value: Any) -> str | None:
    """Return a JSON schema as JSON; it comes as such, or as a mapping. A text must be a JSON object."""
    if value is None:
        return None
    try:
        text = json.dumps(value) if isinstance(value, Mapping) else value
        if isinstance(text, str) and isinstance(json.loads(text), dict):
            return text
    except (TypeError, ValueError) as error:
        raise RequestError(f"json_schema is {shown(value)}, which is no JSON: {error}.") from None
    raise RequestError(f"json_schema is {shown(value)}; it must be a JSON schema: a mapping, or a JSON object as text.")


def _biases(value: Any) -> tuple[tuple[int, float], ...]:
    """Return the biases of tokens as pairs in the order of their ids; they come as a mapping, or as such pairs."""
    pairs = list(value.items()) if isinstance(value, Mapping) else value
    if not is_list(pairs) or not all(is_list(pair) and len(pair) == 2 for pair in pairs):
        raise RequestError(f"logit_bias is {shown(value)}; it must be a mapping of token ids to numbers.")
    biases = {integer("a token of logit_bias", token): bias for token, bias in pairs}
    return tuple((token, number(f"logit_bias[{token}]", bias)) for token, bias in sorted(biases.items()))


def _sequence_biases(value: Any) -> tuple[tuple[tuple[int, ...], float], ...]:
    """Return the pairs of sequence_bias, which may be a mapping as in transformers."""
    name = "sequence_bias"
    pairs = list(value.items()) if isinstance(value, Mapping) else value
    if not is_list(pairs) or not all(is_list(pair) and len(pair) == 2 for pair in pairs):
        raise RequestError(f"{name} is {shown(value)}; it must be a list of pairs, token ids and their bias.")
    return tuple(
        (tuple(token_ids(f"{name}[{place}][0]", words)), float(number(f"{name}[{place}][1]", bias)))
        for place, (words, bias) in enumerate(pairs)
    )


def _decay(value: Any) -> tuple[int, float] | None:
    name = "exponential_decay_length_penalty"
    if value is None:
        return None
    if not is_list(value) or len(value) != 2:
        raise RequestError(f"{name} is {shown(value)}; it must be a pair: a number of new tokens, and a factor.")
    return integer(f"{name}[0]", value[0]), float(number(f"{name}[1]", value[1]))


def nearest(name: str, known: Sequence[str]) -> str:
    """Return a sentence that proposes the most similar of the known names, with a space before it; or nothing."""
    similar = get_close_matches(name, known, n=1)
    return f" Did you mean {similar[0]}?" if similar else ""
