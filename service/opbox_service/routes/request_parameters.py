"""RequestParameters: what a request for a model may ask beside its tensors."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, SkipValidation, WithJsonSchema
from pydantic.json_schema import SkipJsonSchema

from ..validation import Expected, Strict

__all__ = ["RequestParameters"]

MAX_TIMEOUT_US = 10**15
NO_SEQUENCES = "as sequences are not served"


class RequestParameters(Strict):
    """Parameters of a request for a model. Others are ignored: Triton's clients send some that mean nothing here."""

    model_config = ConfigDict(extra="ignore")

    binary_data_output: bool = Field(default=False, description="Whether outputs come as bytes that do not say.")
    priority: int = Field(
        default=0, ge=0, lt=1 << 64, description="1 runs first of one owner's requests, then 2, and so on; 0 runs last."
    )
    timeout: int = Field(
        default=0,
        ge=0,
        le=MAX_TIMEOUT_US,
        description="Microseconds that the request may wait for its run, after which it is answered 503; 0: any time.",
    )
    # Clients have generators that know no values of two types; "" is what Triton's clients say of a text.
    sequence_id: Annotated[
        Literal[0, ""], WithJsonSchema({"type": "integer", "enum": [0]}), Expected(f"0, {NO_SEQUENCES}")
    ] = 0
    sequence_start: Annotated[Literal[False], Expected(f"false, {NO_SEQUENCES}")] = False
    sequence_end: Annotated[Literal[False], Expected(f"false, {NO_SEQUENCES}")] = False
    tensor_alignment: SkipJsonSchema[SkipValidation[Any]] = None
