"""Flags, environment and TOML file, from which every setting is read."""

import os
from collections.abc import Iterator, Mapping
from datetime import timedelta
from difflib import get_close_matches
from pathlib import Path
from typing import Self

from pydantic import ValidationError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from tidewheel.errors import SettingsError
from tidewheel.http_secrets import PREFIX as SECRET_PREFIX
from tidewheel.jobs.values import format_duration
from tidewheel.settings.kafka_client import KAFKA_PREFIX


class Settings(BaseSettings):
    """Base of every model of settings."""

    model_config = SettingsConfigDict(env_prefix="TIDEWHEEL_", frozen=True, extra="ignore", defer_build=True)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Read flags, then environment, then the TOML file, and nothing else."""
        del dotenv_settings, file_secret_settings
        path = os.environ.get("TIDEWHEEL_CONFIG")
        if not path:
            return (init_settings, env_settings)
        if not Path(path).is_file():
            message = f"TIDEWHEEL_CONFIG names {path}, which is not a file; correct the path or unset the variable"
            raise SettingsError(message)
        try:
            file = TomlConfigSettingsSource(settings_cls, Path(path))
        except (OSError, ValueError) as error:  # no TOML, no UTF-8: both are ValueErrors
            message = f"TIDEWHEEL_CONFIG names {path}, which cannot be read: {error}; correct it or unset the variable"
            raise SettingsError(message) from error
        _refuse_unknown(file.toml_data, path)
        return (init_settings, env_settings, file)

    @classmethod
    def load(cls, **flags: object) -> Self:
        """Read flags, environment and file.

        Raises:
            SettingsError: A value is invalid; the message names the variable and its valid values.
        """
        try:
            return cls(**{name: value for name, value in flags.items() if value is not None})
        except ValidationError as error:
            raise SettingsError(_readable(error)) from None


def _refuse_unknown(given: Mapping[str, object], path: str) -> None:
    """Refuse names that are not a setting: a misspelt one would be ignored silently."""
    known = sorted({name for model in _models(Settings) for name in model.model_fields})
    problems: list[str] = []
    for name in given:
        if name in known:
            continue
        bare = name.lower().removeprefix("tidewheel_")
        near = get_close_matches(bare, known, n=1)
        remedy = f"did you mean {near[0]!r}?" if near else "docs/settings.md names them all"
        if bare.startswith("kafka_config"):
            remedy = f"Kafka clients' settings are read from the environment: {KAFKA_PREFIX}<KEY>"
        elif bare.startswith("secret_"):
            remedy = f"secrets are read from the environment, {SECRET_PREFIX}<NAME>, or from files in secrets_dir"
        problems.append(f"there is no setting {name!r}; {remedy}")
    if problems:
        message = f"TIDEWHEEL_CONFIG names {path}: {'; '.join(problems)}"
        raise SettingsError(message)


def _models(base: type[Settings]) -> Iterator[type[Settings]]:
    """Return every model: one file may serve all services."""
    for model in base.__subclasses__():
        yield model
        yield from _models(model)


def _readable(error: ValidationError) -> str:
    lines: list[str] = []
    for detail in error.errors(include_url=False, include_context=False):
        name = "_".join(str(part) for part in detail["loc"])
        read = detail["input"]
        given = format_duration(read) if isinstance(read, timedelta) else repr(read)
        shown = "" if any(word in name for word in ("url", "password", "token", "secret")) else f" (read {given})"
        expected = detail["msg"].removeprefix("Value error, ")
        lines.append(f"TIDEWHEEL_{name.upper()}: {expected}{shown}")
    return "; ".join(lines)
