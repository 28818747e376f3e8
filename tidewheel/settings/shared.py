"""The settings that all processes of an installation must share, as each process records them."""

from datetime import timedelta
from hashlib import sha256
from typing import Final

from pydantic import SecretStr

from tidewheel.jobs.values import format_duration
from tidewheel.settings.connections import Connections

_SHARED: Final = (
    "source",
    "events_encoding",
    "events_runs",
    "misfire_after",
    "catch_up_rate",
    "outputs_topic",
    "message_signatures",
    "max_lost",
    "requests_kept",
    "lookahead",
    "overdue_after",
    "retention",
    "output_retention",
    "failed_retention",
    "webhook_secrets",
    "api_token",
)
NOT_SET: Final = "not set"
_DIGITS = 8  # of the digest of a secret: enough to see a difference, useless to find a random secret


def shared_settings(settings: Connections) -> dict[str, str]:
    """Return those of the settings that all processes must share, by name; of a secret a digest."""
    return {name: _text(getattr(settings, name)) for name in _SHARED if name in type(settings).model_fields}


def _text(value: object) -> str:
    if isinstance(value, SecretStr):
        return f"secret {sha256(value.get_secret_value().encode()).hexdigest()[:_DIGITS]}"
    if isinstance(value, timedelta):
        return format_duration(value)
    return NOT_SET if value is None else str(value)
