"""Flags, environment and TOML file, from which every setting is read."""

import logging
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from datetime import timedelta
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Annotated, Final, Self, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from tidewheel.errors import SettingsError
from tidewheel.http_secrets import PREFIX as SECRET_PREFIX
from tidewheel.jobs.validation import shown
from tidewheel.jobs.values import format_duration, parse_duration

KAFKA_PREFIX: Final = "TIDEWHEEL_KAFKA_CONFIG_"

PREFIX: Final = "TIDEWHEEL_"
_LOG = logging.getLogger("tidewheel.settings")

_READ_ELSEWHERE: Final = re.compile(
    r"CONFIG|HOME|CACHE_DIR|MAVEN_REPOSITORY|FAILPOINT|API_KEY|API_HEADERS|API_URL"
    r"|RUN_ID|ATTEMPT|JOB_KEY|SCHEDULED_AT|IDEMPOTENCY_KEY|CHECKPOINT"  # given to the programs of shell targets
    r"|(?:KAFKA_CONFIG|SECRET|TEST|BENCH|DEMO|FAULTS|EDITS|PROOF|CONFORMANCE)(?:_.*)?"
    r"|(?:.*_)?SERVICE_(?:HOST|PORT)(?:_.*)?|(?:.*_)?PORT_\d+_(?:TCP|UDP)_.*",  # of Kubernetes, for each Service
    re.ASCII,
)
"""Names after the prefix that are no settings, but have a reader or come from another program."""

_OF_KUBERNETES: Final = (
    "tcp://",
    "udp://",
    "sctp://",
)  # the values of its other variables: NAME_PORT, NAME_PORT_80_TCP

_WRITTEN: Final = {
    "int_parsing": "write a whole number",
    "int_type": "write a whole number",
    "int_from_float": "write a whole number",
    "int_parsing_size": "write a smaller whole number",
    "float_parsing": "write a number",
    "float_type": "write a number",
    "finite_number": "write a finite number",
    "bool_parsing": "write true or false",
    "bool_type": "write true or false",
    "string_type": "write text",
    "path_type": "write a path",
}
"""What to write, by the kind of pydantic's error."""
_NUMBER: Final = re.compile(r"\d{1,12}(?:\.\d{1,9})?", re.ASCII)


def client_config(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the Kafka client settings in an environment.

    >>> client_config({"TIDEWHEEL_KAFKA_CONFIG_SASL_USERNAME": "ann", "HOME": "/"})
    {'sasl.username': 'ann'}
    """
    return {
        name.removeprefix(KAFKA_PREFIX).lower().replace("_", ".").replace("log.level", "log_level"): value
        for name, value in environment.items()
        if name.startswith(KAFKA_PREFIX)
    }


def client_variables(config: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of an environment that has these Kafka client settings.

    >>> client_variables({"sasl.username": "ann"})
    {'TIDEWHEEL_KAFKA_CONFIG_SASL_USERNAME': 'ann'}
    """
    return {f"{KAFKA_PREFIX}{name.upper().replace('.', '_')}": value for name, value in config.items()}


def read_properties(path: Path) -> dict[str, str]:
    """Read a file of lines `name=value`; blank lines and those that begin with # are ignored."""
    at = f"TIDEWHEEL_KAFKA_PROPERTIES names {path}"
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{at}, which cannot be read: {error}; correct it or unset the variable") from error
    read: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.startswith("#"):
            continue
        name, separator, value = (part.strip() for part in line.partition("="))
        if not separator:
            message = f"{at}, whose line {number} is not `name=value`; correct it"  # not shown: it may be a password
            raise SettingsError(message)
        read[name] = value
    return read


class Settings(BaseModel):
    """Base of every model of settings."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True, validate_default=True)

    @classmethod
    def load(cls, **flags: object) -> Self:
        """Read flags, environment and file, or raise SettingsError; warn once of unknown variables."""
        for name in unknown_variables(os.environ):
            _warn_once(name)
        for name, value in os.environ.items():
            if name.startswith(PREFIX):
                _ensure_text(name, value)
        given = {name: value for name, value in flags.items() if value is not None}
        try:
            return cls.model_validate({**_file(), **_environment(), **given})
        except ValidationError as error:
            raise SettingsError("; ".join(_readable(cls, detail) for detail in _details(error))) from None


def _file() -> dict[str, object]:
    """Return the settings of the file that TIDEWHEEL_CONFIG names: one file may serve all services."""
    path = os.environ.get("TIDEWHEEL_CONFIG")
    if not path:
        return {}
    if not Path(path).is_file():
        message = f"TIDEWHEEL_CONFIG names {path}, which is not a file; correct the path or unset the variable"
        raise SettingsError(message)
    try:
        given = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:  # no TOML, no UTF-8: both are ValueErrors
        message = f"TIDEWHEEL_CONFIG names {path}, which cannot be read: {error}; correct it or unset the variable"
        raise SettingsError(message) from error
    _refuse_unknown(given, path)
    return given


def _environment() -> dict[str, str]:
    prefix = PREFIX.lower()
    given = {name.lower(): value for name, value in os.environ.items()}
    return {name.removeprefix(prefix): value for name, value in given.items() if name.startswith(prefix)}


def _ensure_text(name: str, value: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError:  # Python reads each byte that is none of UTF-8 as half a surrogate
        raise SettingsError(f"{name}: is not valid UTF-8; write text") from None


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """Return the variables with Tidewheel's prefix that nothing reads.

    >>> unknown_variables({"TIDEWHEEL_SLOT": "5", "TIDEWHEEL_SLOTS": "5", "TIDEWHEEL_SECRET_A": "", "SLOT": "5"})
    ['TIDEWHEEL_SLOT']
    """
    known = _known()
    return [
        name
        for name, value in sorted(environment.items())
        if name.startswith(PREFIX)
        and (bare := name.removeprefix(PREFIX)).lower() not in known
        and not _READ_ELSEWHERE.fullmatch(bare)
        and not value.startswith(_OF_KUBERNETES)
    ]


def _duration(value: object) -> timedelta:
    """Return a duration in any form that requests accept; a number, also as text, is seconds."""
    match value:
        case timedelta():
            return value
        case str():
            bare = value.strip()
            return parse_duration(float(bare) if _NUMBER.fullmatch(bare) else bare)
        case int() | float() if not isinstance(value, bool):
            return parse_duration(value)
        case _:
            raise ValueError("write a duration such as 10s, 5m or 250ms, or a number of seconds")


Duration = Annotated[timedelta, BeforeValidator(_duration)]


def _entries(value: object) -> object:
    """Return the entries of a list: of the file, or of a variable, separated by commas or line ends."""
    parts = re.split(r"[,\n]", value) if isinstance(value, str) else value
    if not isinstance(parts, list | tuple):
        message = "write entries separated by commas or line breaks, or a list in the file"
        raise ValueError(message)  # noqa: TRY004 - pydantic reports a ValueError
    return tuple(entry for part in cast("list[object]", parts) if (entry := str(part).strip()))


Entries = Annotated[tuple[str, ...], BeforeValidator(_entries)]


@cache  # once a process
def _warn_once(name: str) -> None:
    near = get_close_matches(name.removeprefix(PREFIX).lower(), _known(), n=1)
    remedy = f"did you mean {PREFIX}{near[0].upper()}?" if near else "docs/settings.md lists all settings"
    _LOG.warning("%s is not a setting and has no effect; %s", name, remedy)


def _known() -> list[str]:
    """Return the settings of all models: one file, or one environment, may serve all services."""
    return sorted({name for model in _models(Settings) for name in model.model_fields})


def _refuse_unknown(given: Mapping[str, object], path: str) -> None:
    """Refuse names that are not a setting: a misspelt one would be ignored silently."""
    known = _known()
    problems: list[str] = []
    for name in given:
        if name in known:
            continue
        bare = name.lower().removeprefix(PREFIX.lower())
        near = get_close_matches(bare, known, n=1)
        remedy = f"did you mean {near[0]!r}?" if near else "docs/settings.md lists all settings"
        if bare.startswith("kafka_config"):
            remedy = f"Kafka clients' settings are read from the environment: {KAFKA_PREFIX}<KEY>"
        elif bare.startswith("secret_"):
            remedy = f"secrets are read from the environment, {SECRET_PREFIX}<NAME>, or from files in secrets_dir"
        problems.append(f"there is no setting {name!r}; {remedy}")
    if problems:
        raise SettingsError(f"TIDEWHEEL_CONFIG names {path}: {'; '.join(problems)}")


def _models(base: type[Settings]) -> Iterator[type[Settings]]:
    for model in base.__subclasses__():
        yield model
        yield from _models(model)


def _details(error: ValidationError) -> list[ErrorDetails]:
    return error.errors(include_url=False, include_context=False)


def _readable(model: type[Settings], detail: ErrorDetails) -> str:
    """Return one sentence about an invalid setting: the variable, what to write, what was read."""
    name = "_".join(str(part) for part in detail["loc"])
    read = detail["input"]
    given = format_duration(read) if isinstance(read, timedelta) else shown(read)
    was = "" if any(word in name for word in ("url", "password", "token", "secret")) else f" (read {given})"
    expected = detail["msg"].removeprefix("Value error, ")
    expected = expected.replace("Input should be", "must be").replace("String should", "must")
    if written := _WRITTEN.get(detail["type"]):
        default = model.model_fields[name].default if name in model.model_fields else None
        expected = f"{written}; the default is {_default(default)}" if default is not None else written
    return f"{PREFIX}{name.upper()}: {expected}{was}"


def _default(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
