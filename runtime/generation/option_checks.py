"""Check the options of generation: each by its type and its range, as `edgeformer.options.generation` declares them."""

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from edgeformer.documents.option import Option
from edgeformer.errors import RequestError
from edgeformer.options.generation import (
    OPTIONS,
    EarlyStopping,
    JsonSchema,
    SequenceBiases,
    Texts,
    TokenBiases,
    TokenIds,
    TokenSequences,
)
from edgeformer.runtime.request_values import flag, integer, is_list, number, shown, token_ids


def option_value(option: Option, value: Any) -> Any:
    """Return the value of an option with numbers of Python, and tuples for lists, so that equal configs are equal.

    Raises RequestError, with the option as its field, for another type, and for a number outside the option's range.
    """
    if value is option.default or (value is None and option.is_optional):
        return value
    checked = CHECKS[option.value_type](option.name, value)
    if option.range and checked not in option.range:
        raise _error(option.name, f"is {checked}; it must be {option.range}.")
    return checked


def _error(name: str, text: str) -> RequestError:
    return RequestError(f"{name} {text}", field=name)


def _string(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise _error(name, f"is {shown(value)}; it must be a text.")
    if any("\ud800" <= letter <= "\udfff" for letter in value):
        raise _error(name, f"is {shown(value)}, which has half of a character (a lone surrogate).")
    return value


def _texts(name: str, value: Any) -> tuple[str, ...]:
    """Return a text or texts as a tuple."""
    if not isinstance(value, str) and not (is_list(value) and all(isinstance(text, str) for text in value)):
        raise _error(name, f"is {shown(value)}; it must be a text or a list of texts.")
    return (value,) if isinstance(value, str) else tuple(value)


def _early_stopping(name: str, value: Any) -> Any:
    if not isinstance(value, bool) and value != "never":
        raise _error(name, f'is {value!r}; it must be true, false or "never".')
    return value


def _json_schema(name: str, value: Any) -> str:
    """Return a JSON schema as JSON; it comes as such, or as a mapping. A text must be a JSON object."""
    try:
        text = json.dumps(value) if isinstance(value, Mapping) else value
        if isinstance(text, str) and isinstance(json.loads(text), dict):
            return text
    except (TypeError, ValueError) as error:
        raise _error(name, f"is {shown(value)}, which is no JSON: {error}.") from None
    raise _error(name, f"is {shown(value)}; it must be a JSON schema: a mapping, or a JSON object as text.")


def _token_ids(name: str, value: Any) -> tuple[int, ...]:
    ids = tuple(token_ids(name, value))
    if any(id < 0 for id in ids):
        option = name.partition("[")[0]
        raise _error(option, f"has the token id {min(ids)}; ids must be 0 or larger.")
    return ids


def _token_sequences(name: str, value: Any) -> tuple[tuple[int, ...], ...]:
    if not is_list(value):
        raise _error(name, f"is {shown(value)}; it must be a list of lists of token ids.")
    words = tuple(_token_ids(f"{name}[{index}]", word) for index, word in enumerate(value))
    if not all(words):
        raise _error(name, "has an empty sequence; each must have at least one token id.")
    return words


def _pairs(name: str, value: Any, expected: str) -> list[Any]:
    """Return pairs, which may be a mapping."""
    pairs = list(value.items()) if isinstance(value, Mapping) else value
    if not is_list(pairs) or not all(is_list(pair) and len(pair) == 2 for pair in pairs):
        raise _error(name, f"is {shown(value)}; it must be {expected}.")
    return list(pairs)


def _token_biases(name: str, value: Any) -> tuple[tuple[int, float], ...]:
    """Return the biases of tokens as pairs in the order of their ids."""
    pairs = _pairs(name, value, "a mapping of token ids to numbers")
    try:
        biases = {integer(f"a token of {name}", token): bias for token, bias in pairs}
    except RequestError as error:
        raise RequestError(str(error), field=name) from None
    checked = tuple((token, number(f"{name}[{token}]", bias)) for token, bias in sorted(biases.items()))
    for token, bias in checked:
        if math.isnan(bias) or bias == math.inf:
            raise _error(name, f"of token {token} is {bias}; it must be a finite number, or -inf (ban).")
    _token_ids(name, list(biases))
    return checked


def _sequence_biases(name: str, value: Any) -> tuple[tuple[tuple[int, ...], float], ...]:
    pairs = _pairs(name, value, "a list of pairs, token ids and their bias")
    checked = tuple(
        (_token_ids(f"{name}[{index}][0]", words), float(number(f"{name}[{index}][1]", bias)))
        for index, (words, bias) in enumerate(pairs)
    )
    if not all(words and math.isfinite(bias) for words, bias in checked):
        raise _error(name, "has an empty sequence or a bias that is not finite.")
    return checked


def _decay(name: str, value: Any) -> tuple[int, float]:
    if not is_list(value) or len(value) != 2:
        raise _error(name, f"is {shown(value)}; it must be a pair: a number of new tokens, and a factor.")
    start, factor = integer(f"{name}[0]", value[0]), float(number(f"{name}[1]", value[1]))
    if not start >= 0 < factor < math.inf:
        raise _error(
            name, f"is {(start, factor)}; it must be a number of new tokens, 0 or larger, and a factor above 0."
        )
    return start, factor


CHECKS: dict[Any, Callable[[str, Any], Any]] = {
    bool: flag,
    int: integer,
    float: number,
    str: _string,
    Texts: _texts,
    TokenIds: _token_ids,
    TokenSequences: _token_sequences,
    TokenBiases: _token_biases,
    SequenceBiases: _sequence_biases,
    tuple[int, float]: _decay,
    JsonSchema: _json_schema,
    EarlyStopping: _early_stopping,
}
"""Functions that check a value, by the type of its option."""

for _option in OPTIONS.values():
    assert _option.value_type in CHECKS, f"{_option.name} has the type {_option.value_type}, which nothing checks"
