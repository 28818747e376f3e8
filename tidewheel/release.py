"""The versions of this release: of the package, of the database's schema, of the protocol."""

from importlib import resources
from importlib.metadata import version

PROTOCOL = 1
"""Version of what other programs rely on: paths of the API, topics, and keys, headers and values of their records.

It rises when an old reader could misread a new writer. A new field does not raise it.
"""


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
