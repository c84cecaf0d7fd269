"""The base of all requests and of their parts."""

from pydantic import BaseModel, ConfigDict


class Body(BaseModel):
    """A request, or a part of one."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)
