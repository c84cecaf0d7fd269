"""The base of all requests and of their parts."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, ClassVar, get_args

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError

from edgeformer.server.schema.fields import ApiField, keep_known


class Body(BaseModel):
    """A request, or a part of one. A field that is null is left out, as clients write the ones that they have not.

    FIELDS: what is done with fields that it does not have. TYPES: the types that it may have, and why there are no
    others; they are looked at first, as those of another type have other fields.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    FIELDS: ClassVar[Mapping[str, ApiField]] = {}
    TYPES: ClassVar[tuple[Sequence[str], str]] = (), ""

    @model_validator(mode="before")
    @classmethod
    def _keep_known(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        allowed, reason = cls.TYPES
        if allowed and isinstance(data.get("type"), str) and data["type"] not in allowed:
            context = {"field": "type", "shown": repr(data["type"][:60]), "reason": reason}
            raise PydanticCustomError("wrong_type", "is {shown}; {reason}", context)
        if cls.model_config["extra"] == "ignore":
            return {name: value for name, value in data.items() if value is not None}
        kept = keep_known(cls.renamed(data), _names(cls), cls.FIELDS)
        return {name: _whole(value) if name in _whole_names(cls) else value for name, value in kept.items()}

    @classmethod
    def renamed(cls, data: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of a request by the names that they have here."""
        return data


@cache
def _names(kind: type[Body]) -> frozenset[str]:
    return frozenset(field.alias or name for name, field in kind.model_fields.items())


@cache
def _whole_names(kind: type[Body]) -> frozenset[str]:
    """Return the names of fields that are whole numbers."""
    types = {name: {field.annotation, *get_args(field.annotation)} for name, field in kind.model_fields.items()}
    return frozenset(name for name, each in types.items() if int in each and float not in each)


def _whole(value: Any) -> Any:
    """Return a whole number that a client wrote as 5.0, which is the same number of JSON, as an integer."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
