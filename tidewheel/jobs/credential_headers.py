"""Headers whose value is a credential: a job names a secret of the executors there.

The list is by name alone. A value is never examined: a rule that guesses refuses honest headers and misses secrets.
"""

from collections.abc import Mapping

from tidewheel.errors import FieldError
from tidewheel.jobs.headers import SecretReference
from tidewheel.jobs.invalid import InvalidValue, UnreadableValue
from tidewheel.jobs.strict_json import as_object
from tidewheel.redaction import CREDENTIAL_HEADERS, REDACTED


def refuse_literal_credentials(headers: object) -> object:
    """Return the headers of an HTTP target as they are, unless one has a credential as its value.

    Raises:
        InvalidValue: Some have; no error shows a value.
    """
    problem, remedy = "it is a credential", 'write {"secret": "NAME"} and set TIDEWHEEL_SECRET_NAME on the executors'
    literal = [name for name, value in (as_object(headers) or {}).items() if is_literal_credential(name, value)]
    if literal:
        raise InvalidValue.of([FieldError(name, problem, remedy) for name in literal])
    return headers


def without_literal_credentials(headers: Mapping[str, object]) -> dict[str, object]:
    """Return headers as output shows them: credentials of a row that an older release stored are redacted."""
    return {name: REDACTED if is_literal_credential(name, value) else value for name, value in headers.items()}


def is_literal_credential(name: str, value: object) -> bool:
    """Return True if a header is a credential and its value is one: no reference, nor unreadable.

    >>> is_literal_credential("X-API-Key", "k"), is_literal_credential("X-API-Key", {"secret": "CRM"})
    (True, False)
    """
    is_other = isinstance(value, SecretReference | UnreadableValue) or as_object(value) is not None
    return name.lower() in CREDENTIAL_HEADERS and not is_other
