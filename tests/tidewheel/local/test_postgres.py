"""Errors of a PostgreSQL that starts, as `tidewheel up` shows them."""

import psycopg
import pytest

from tidewheel.local.postgres import _reason  # pyright: ignore[reportPrivateUsage]

_AT = 'connection failed: connection to server at "127.0.0.1", port 27158 failed: '


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (
            f"{_AT}FATAL:  the database system is not yet accepting connections\n"
            "DETAIL:  Consistent recovery state has not been yet reached.",
            "the database system is not yet accepting connections",
        ),
        (f"{_AT}FATAL:  the database system is starting up", "the database system is starting up"),
        (
            f"{_AT}Connection refused\n\tIs the server running on that host and accepting TCP/IP connections?",
            "Connection refused",
        ),
        ("", "OperationalError"),
    ],
)
def test_reason_of_a_wait_is_the_error_without_address_and_detail(error: str, shown: str) -> None:
    assert _reason(psycopg.OperationalError(error)) == shown
