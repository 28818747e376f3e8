"""Canaries: values that lie where secrets lie, and the search for them in all that leaves a process."""

import json
from base64 import b64encode
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from psycopg import sql

from tests.executor.http_target import Quiet, listening
from tests.fixtures.database import Database
from tests.fixtures.reader import TopicReader
from tests.fixtures.services import Fleet

_TABLES = "SELECT oid::regclass::text FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
_BODY_BYTES = 48 * 1024  # of a response, as the executor reads it


@dataclass(frozen=True)
class Found:
    """A canary in a place, such as `table attempts`, `topic completions` or `log 03-executor.log`."""

    canary: str
    place: str


class Canaries:
    """Secret values by the names of their channels."""

    def __init__(self, values: Mapping[str, str | bytes]) -> None:
        self.values = {name: value.encode() if isinstance(value, str) else value for name, value in values.items()}
        self._spellings = {name: _spellings(value) for name, value in self.values.items()}

    def search(self, texts: Iterable[tuple[str, bytes]]) -> set[Found]:
        """Find the canaries in texts, each with its place."""
        return {
            Found(name, place)
            for place, text in texts
            for name, spellings in self._spellings.items()
            if any(each in text for each in spellings)
        }


def in_database(database: Database) -> Iterator[tuple[str, bytes]]:
    """Return every row of every table as text, and the statements of its sessions."""
    for (table,) in database.rows(_TABLES):
        query = sql.SQL("SELECT t::text FROM {} AS t").format(sql.SQL(table))
        yield f"table {table}", "\n".join(text for (text,) in database.rows(query)).encode()
    texts = "SELECT string_agg(query, ' ') FROM pg_stat_activity WHERE datname = current_database()"
    yield "statements", str(database.value(texts)).encode()


def in_topics(fleet: Fleet) -> Iterator[tuple[str, bytes]]:
    """Return every message of every topic of the fleet: key, value and headers."""
    names = [name for name in fleet.admin().list_topics(timeout=10).topics if name.startswith(fleet.topics.prefix)]
    reader = TopicReader(fleet.kafka, names)
    try:
        reader.read_to_end()
    finally:
        reader.close()
    for name in names:
        parts = [part for m in reader.seen if m.topic == name for part in (m.key, m.value, *sum(_bytes(m.headers), ()))]
        yield f"topic {name.removeprefix(fleet.topics.prefix + '.')}", b"\n".join(filter(None, parts))


def in_files(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Return the log files below a folder."""
    for file in sorted(folder.rglob("*.log")):
        yield f"log {file.name}", file.read_bytes()


def _bytes(headers: Iterable[tuple[str, bytes]]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value) for name, value in headers]


def _spellings(value: bytes) -> tuple[bytes, ...]:
    """Return a value as it is, as PostgreSQL shows bytes, and in Base64 at each place of its three."""
    shifted = (b64encode(b"\0" * shift + value)[4 if shift else 0 : -4] for shift in range(3))
    return value, value.hex().encode(), b64encode(value).rstrip(b"="), *shifted


@contextmanager
def echoing() -> Generator[str]:
    """An HTTP server whose answers repeat the headers of the request; yields its URL."""

    class Handler(Quiet):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            sent = dict(self.headers.items())
            authorization = sent.get("authorization", "")
            match self.path:
                case "/garbage":
                    self.wfile.write(f"HTTP/1.1 200 OK\r\n{authorization}\r\n\r\n".encode())
                    self.close_connection = True
                case "/redirect":
                    self._answer(302, b"", location=f"http://example.org/?echo={authorization}#{authorization}")
                case "/cut":
                    self._answer(200, b"x" * (_BODY_BYTES - len(authorization) + 1) + authorization.encode())
                case "/reason":
                    self._answer(400, repr(sent).encode(), reason=f"No {authorization}")
                case path:
                    status = int(path.removeprefix("/"))
                    # As JSON text inside of JSON, so that each quote is escaped twice.
                    self._answer(status, json.dumps({"echo": json.dumps(sent), "plain": sent}).encode())

        def _answer(self, status: int, body: bytes, *, reason: str | None = None, location: str = "") -> None:
            self.send_response(status, reason)
            self.send_header("content-length", str(len(body)))
            if location:
                self.send_header("location", location)
            self.end_headers()
            self.wfile.write(body)

    with listening(Handler) as port:
        yield f"http://127.0.0.1:{port}"
