"""A run's payload: bytes and their content type."""

from dataclasses import dataclass
from typing import Self

from pydantic import model_validator

from tidewheel.errors import FieldError, TenantLimitExceeded
from tidewheel.jobs.invalid import InvalidValue
from tidewheel.jobs.validation import StrictModel
from tidewheel.jobs.values import BytesPayload, JsonPayload

JSON_CONTENT = "application/json"
BYTES_CONTENT = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class Payload:
    """A payload and its content type: JSON text in compact UTF-8, or bytes of any kind."""

    content: bytes
    content_type: str


def too_large(path: str, payload: Payload | None, tenant: str, most: int) -> TenantLimitExceeded | None:
    """Return the refusal of a payload that is larger than its tenant's limit."""
    if payload is None or len(payload.content) <= most:
        return None
    problem = f"has {len(payload.content)} bytes, but tenant {tenant} may send at most {most}"
    remedy = "send a reference to the data, or raise the limit with `tidewheel admin tenant limits NAME --payload`"
    return TenantLimitExceeded(FieldError(path, problem, remedy))


class WithPayload(StrictModel):
    """Base of models with a payload: `payload` is any JSON value, kept as text; `payload_base64` is bytes."""

    payload: JsonPayload = None
    payload_base64: BytesPayload | None = None

    @property
    def carried(self) -> Payload | None:
        """The payload from either field; None if both are absent."""
        if self.payload is not None:
            return Payload(self.payload, JSON_CONTENT)
        if self.payload_base64 is not None:
            return Payload(self.payload_base64, BYTES_CONTENT)
        return None

    @model_validator(mode="after")
    def _one_payload(self) -> Self:
        if self.payload is not None and self.payload_base64 is not None:
            raise InvalidValue(
                problem="payload and payload_base64 cannot be combined",
                remedy="leave one out",
                path="payload_base64",
            )
        return self
