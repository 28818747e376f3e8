"""Redact the credentials of an HTTP call in what its receiver repeats."""

from collections.abc import Mapping
from functools import lru_cache

from tidewheel.redaction import CREDENTIAL_HEADERS, REDACTED, Redactor
from tidewheel.schemas.generated.records import HttpTarget

_NOTHING = Redactor({})
_KEPT = 256  # sets of credentials: making a redactor takes as long as a call


def redactor_of(target: HttpTarget, headers: Mapping[str, str]) -> Redactor:
    """Return what redacts the credentials that a call sends."""
    places = {value: REDACTED for name, value in target.headers.items() if name.lower() in CREDENTIAL_HEADERS}
    places |= {headers[name]: f"[secret {secret}]" for name, secret in (target.secret_headers or {}).items()}
    return _redactor(tuple(places.items())) if places else _NOTHING


@lru_cache(maxsize=_KEPT)
def _redactor(places: tuple[tuple[str, str], ...]) -> Redactor:
    return Redactor(dict(places))
