"""Settings of Kafka clients in an environment and in a properties file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tidewheel.errors import SettingsError

KAFKA_PREFIX: Final = "TIDEWHEEL_KAFKA_CONFIG_"


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
        message = f"{at}, which cannot be read: {error}; correct it or unset the variable"
        raise SettingsError(message) from error
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
