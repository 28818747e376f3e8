"""Access to the API of `tidewheel dev`: a token of executors, an API key, and a link to the console.

Every user of the machine reaches its loopback address, so that alone opens nothing. The files are in the stack's home,
readable by their owner only, and stay for the next `dev`: a browser that has signed in stays so.
"""

import secrets
from pathlib import Path

from tidewheel.api_keys import ApiKey, Scope, read_key
from tidewheel.control.client.client import Client
from tidewheel.control.console.sign_in import add_sign_in
from tidewheel.local.private_file import write_private
from tidewheel.local.state import API_HEADERS_FILE, API_TOKEN_FILE
from tidewheel.postgres.session import connect

_HEADER = "Authorization: Bearer "


def executor_token(home: Path) -> str:
    """Return the token of executors in other languages, the same at each start."""
    path = home / API_TOKEN_FILE
    if not path.exists():
        write_private(path, secrets.token_urlsafe(32))
    return path.read_text()


def console_link(database_url: str, home: Path) -> str:
    """Write the file with the header that opens REST; return what opens the console once."""
    path = home / API_HEADERS_FILE
    known = read_key(path.read_text().strip().removeprefix(_HEADER)) if path.exists() else None
    link = None if known is None else _link(database_url, known)
    if link is None:  # the key was revoked, has expired, or was of a database that is gone
        with Client(database_url) as client:
            text = client.api_keys.create("tidewheel dev", [Scope.ADMIN], all_tenants=True).key
        write_private(path, f"{_HEADER}{text}\n")
        made = read_key(text)
        link = None if made is None else _link(database_url, made)
    assert link is not None  # noqa: S101 - the key was made just now
    return link


def _link(database_url: str, key: ApiKey) -> str | None:
    with connect(database_url, "tidewheel-dev") as connection:
        made = add_sign_in(connection, key.key_id, None, is_link=True)
    return None if made is None else made.text
