"""Each secret has one purpose: no role, no handler's code and no token becomes what it is not.

The roles, the tables and their columns come from the catalog. So a new secret that a wrong role reads fails here.
"""

import hmac
import json
import re
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping
from hashlib import sha256
from http import HTTPStatus
from importlib import import_module
from typing import LiteralString, cast
from uuid import UUID

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from tests.control.api.answering import ApiClient, answering
from tests.control.console.pages import HTML, TOKEN, key_of, signed_in
from tests.fixtures.database import Database
from tests.fixtures.roles import as_role
from tests.intake.waiting import waiting
from tests.strict_types import LINKED, ROOT
from tests.tidewheel.postgres.test_statements import real_files
from tidewheel.message_signatures import MessageKeys, digest_of
from tidewheel.migrations.row_security import TENANT_ROLE
from tidewheel.migrations.service_roles import SERVICES, role_of
from tidewheel.postgres.session import connect
from tidewheel.settings.sources import Settings
from tidewheel.task_tokens import task_token

PAGE = ROOT / "docs" / "threats.md"
ROLES = {**{service: role_of(service) for service in SERVICES}, "tenant": TENANT_ROLE, "nobody": "tidewheel_nobody"}
# A handler's code has the connection of its executor.
SIGNS_TASK_TOKENS = {"intake", "executor", "api"}
SIGNS_RUN_MESSAGES = {"relay", "executor", "api"}

READABLE: LiteralString = """
SELECT c.relname::text
  FROM pg_class AS c
 WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm') AND NOT c.relispartition
   AND has_table_privilege(current_user, c.oid, 'SELECT')
 ORDER BY 1
"""
SECRET_COLUMNS: LiteralString = """
SELECT c.relname || '.' || a.attname,
       array_agg(r.rolname::text) FILTER (WHERE has_column_privilege(r.oid, c.oid, a.attnum, 'SELECT'))
  FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid CROSS JOIN pg_roles AS r
 WHERE c.relnamespace::regnamespace::text !~ '^(pg_|information_schema)' AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
   AND NOT c.relispartition AND a.attnum > 0 AND NOT a.attisdropped AND r.rolname = ANY (%s)
   AND (a.attname ~ 'secret|token|password|credential|digest|(^|_)(key|signature)$' OR a.atttypid = 'bytea'::regtype
        OR c.relname = 'settings' AND a.attname = 'value')
 GROUP BY 1
"""

SECRET_NAMES = "secret|token|password|credential|(^|_)key(_|$)|signature"
NO_SECRETS: Mapping[str, str] = {
    **dict.fromkeys(
        ("dead_letters.key", "key_limits.key", "jobs.key", "order_keys.key", "outbox.key", "quarantine.key",
         "run_keys.key", "tenant_deletions.at_key", "finished_runs.concurrency_key", "job_runs.concurrency_key",
         "runs.concurrency_key",
         "job_versions.concurrency_key", "job_versions.ordering_key"),
        "a name",
    ),
    **dict.fromkeys(
        ("attempt_outputs.output", "attempt_outputs.result", "dead_letters.value", "outbox.value", "quarantine.value",
         "requests.reply", "run_inputs.checkpoint", "run_inputs.payload", "run_inputs.progress"),
        "content of users, and messages",
    ),
    **dict.fromkeys(("batches.callbacks", "job_versions.definition"), "a definition, of which secrets have names only"),
    **dict.fromkeys(("jobs.spec_hash", "requests.body_hash", "schemas.fingerprint"), "the hash of what is stored too"),
}  # fmt: skip
"""Columns that `SECRET_COLUMNS` finds, with what they have instead."""
OF_FAMILIES = {"TIDEWHEEL_SECRET_…", "TIDEWHEEL_KAFKA_…"}
"""Variables that are read by their prefix."""
NO_SECRET_SETTINGS: Mapping[str, str] = {
    "api_key_rate": "a number", "message_signatures": "a choice",
    "http_ca_file": "certificates, which are public",
}  # fmt: skip
"""Settings with the name of a secret, or with a path, and what they have instead."""


@pytest.fixture
def door(fresh_database: Database) -> Iterator[ApiClient]:
    """An API that needs keys, on a database with roles."""
    fresh_database.execute("CREATE ROLE tidewheel_nobody")
    try:
        with answering(fresh_database, token=TOKEN) as client:
            del client.headers["Authorization"]
            yield client
    finally:
        fresh_database.execute("DROP ROLE tidewheel_nobody")


@pytest.mark.landing
def test_no_role_becomes_what_it_is_not_by_anything_that_it_reads(door: ApiClient) -> None:
    """An application could sign the console's cookies, and so make an admin's key: issue 39, N1."""
    database = door.database
    database.submit()
    run = waiting(database)
    key = key_of(database, "admin", all_tenants=True)
    signed_in(door, key)
    door.cookies.clear()
    assert reports(door, database.installation.task_tokens.sign(run.run_id, run.attempt), run.run_id)
    assert opens_rest(door, key.encode())
    keys = MessageKeys()
    database.within(keys.refresh)
    read = {name: material_of(database, name) for name in ROLES}
    becomes: dict[str, set[str]] = {}
    for candidate in set[bytes]().union(*read.values()):
        readers = {name for name, found in read.items() if candidate in found}
        if keys.flaw(signed(candidate), "t", b"k", digest_of(b"v")) is None:
            becomes.setdefault("relay", set()).update(readers)
        if reports(door, task_token(candidate, run.run_id, run.attempt), run.run_id):
            becomes.setdefault("report", set()).update(readers)
        if opens_pages(door, key.split("_")[1], candidate):
            becomes.setdefault("console", set()).update(readers)
        if opens_rest(door, candidate):
            becomes.setdefault("key", set()).update(readers)
    assert becomes.get("relay") == SIGNS_RUN_MESSAGES
    assert becomes.get("report") == SIGNS_TASK_TOKENS
    assert becomes.get("console") is None
    assert becomes.get("key") is None


def test_only_the_api_writes_keys_and_sign_ins_and_no_role_writes_what_signs(door: ApiClient) -> None:
    database = door.database
    statements: Mapping[str, tuple[LiteralString, set[str]]] = {
        "api_keys": (
            "INSERT INTO api_keys (key_id, tenant, name, secret_hash, scopes)"
            " VALUES ('a', '*', 'a', sha256('a'), '{admin}')",
            {"api"},
        ),
        "sign_ins": (
            "INSERT INTO sign_ins (digest, key_id, secret_hash) VALUES (sha256('a'), 'a', sha256('a'))",
            {"api"},
        ),
        "task_token_keys": ("INSERT INTO task_token_keys DEFAULT VALUES", set()),
        "message_keys": ("INSERT INTO message_keys DEFAULT VALUES", set()),
    }
    for table, (statement, allowed) in statements.items():
        able: set[str] = set()
        for name in ROLES:
            with session_of(database, name) as connection:
                try:
                    connection.execute(statement)
                    able.add(name)
                except psycopg.Error:
                    pass
                connection.rollback()
        assert able == allowed, table


def test_each_secret_of_the_database_is_on_the_page_with_the_roles_that_read_it(fresh_database: Database) -> None:
    listed = secrets_of_the_page()
    roles = {role: name for name, role in ROLES.items()}
    found = fresh_database.rows(SECRET_COLUMNS, [list(roles)])
    actual = {str(column): {roles[role] for role in cast("list[str] | None", names) or ()} for column, names in found}
    assert sorted(NO_SECRETS.keys() - actual.keys()) == []
    actual = {column: readers for column, readers in actual.items() if column not in NO_SECRETS}
    assert {name: readers for name, readers in listed.items() if "." in name} == actual


def test_each_secret_of_the_settings_is_on_the_page() -> None:
    for path in (ROOT / "tidewheel" / "settings").glob("[a-z]*.py"):
        import_module(f"tidewheel.settings.{path.stem}")
    fields = {name: field for model in models_beneath(Settings) for name, field in model.model_fields.items()}
    found = {
        name
        for name, field in fields.items()
        if re.search(r"SecretStr|\bPath\b", str(field.annotation)) or re.search(SECRET_NAMES, name)
    }
    assert sorted(NO_SECRET_SETTINGS.keys() - found) == []
    secret = {f"TIDEWHEEL_{name.upper()}" for name in found - NO_SECRET_SETTINGS.keys()}
    assert {name for name in secrets_of_the_page() if "." not in name} == secret | OF_FAMILIES


def test_settings_have_no_model_elsewhere() -> None:
    """The test above imports one folder."""
    for folder in ("tidewheel", *LINKED):
        for path in real_files(folder, "*.py"):
            if re.search(r"^class \w+\((?:\w*Settings|Connections)\)", path.read_text("utf-8"), re.MULTILINE):
                assert path.parent == ROOT / "tidewheel" / "settings", path


def models_beneath(model: type[Settings]) -> Iterator[type[Settings]]:
    """Yield every model of settings that there is."""
    for each in model.__subclasses__():
        yield each
        yield from models_beneath(each)


def secrets_of_the_page() -> dict[str, set[str]]:
    """Return what the first table of the page lists: each secret with the roles that read it."""
    found: dict[str, set[str]] = {}
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `") and len(cells) == 5:
            for name in re.findall(r"`([^`]+)`", cells[0]):
                found[name] = set(re.findall(r"`(\w+)`", cells[1])) & ROLES.keys()
    return found


def session_of(database: Database, name: str) -> psycopg.Connection:
    """Return a session of a role."""
    if name in SERVICES:
        return connect(as_role(database.url, name), "test")
    return connect(make_conninfo(database.url, options=f"-c role={ROLES[name]}"), "test")


def material_of(database: Database, name: str) -> set[bytes]:
    """Return the texts and bytes in the database that a role reads, and that could be a key."""
    found: set[bytes] = set()
    with session_of(database, name) as connection:
        tables = [str(table) for (table,) in connection.execute(READABLE).fetchall()]
        for table in tables:
            rows = connection.execute(sql.SQL("SELECT to_jsonb(t) FROM {} AS t").format(sql.Identifier(table)))
            for (row,) in rows.fetchall():
                found |= keys_in(row)
    return found


def keys_in(value: object) -> set[bytes]:
    match value:
        case str():
            text = value.removeprefix("\\x")  # a bytea
            found = {value.encode()} if len(value) >= 16 else set[bytes]()
            return found | ({bytes.fromhex(text)} if re.fullmatch(r"([0-9a-f]{2}){16,}", text) else set())
        case dict():
            return set[bytes]().union(*map(keys_in, cast("dict[str, object]", value).values()))
        case list():
            return set[bytes]().union(*map(keys_in, cast("list[object]", value)))
        case _:
            return set()


def signed(candidate: bytes) -> bytes:
    """Return the signature of a message by the first key of an installation, if this is its secret."""
    maker = MessageKeys({1: candidate[:64]})
    return maker.sign("t", b"k", b"v")


def reports(door: ApiClient, token: str, run_id: UUID) -> bool:
    """Return True if a task token is accepted for a heartbeat."""
    answer = door.post(f"/api/v1/runs/{run_id}:heartbeat", headers={"Authorization": f"Bearer {token}"}, json={})
    return answer.status_code == HTTPStatus.OK


def opens_pages(door: ApiClient, key_id: str, candidate: bytes) -> bool:
    """Return True if a cookie of this secret, or one that it signs as 0.1.0 did, opens the console."""
    as_secret = f"{key_id}.{candidate.hex()}"
    plain = f"{key_id}.{candidate.decode('ascii', 'replace')}"
    body = urlsafe_b64encode(json.dumps([key_id, int(door.database.now().timestamp()), None, False]).encode()).decode()
    signing = hmac.digest(candidate, b"tidewheel console", sha256)
    marked = "\n".join(("sign-in", body)).encode()
    of_old = f"{body}.{hmac.new(signing, marked, sha256).hexdigest()}"
    cookies = [f"tidewheel-session={each}" for each in (as_secret, plain) if re.fullmatch(r"[\w.-]+", each, re.ASCII)]
    for cookie in (*cookies, f"tidewheel-sign-in={of_old}"):
        if door.get("/", headers={**HTML, "Cookie": cookie}).status_code == HTTPStatus.OK:
            return True
    return False


def opens_rest(door: ApiClient, candidate: bytes) -> bool:
    """Return True if this opens REST as a bearer token."""
    text = candidate.decode("ascii", "replace")
    if not re.fullmatch(r"[\x21-\x7e]+", text):
        text = candidate.hex()
    answers = (
        door.get("/api/v1/jobs", headers={"Authorization": f"Bearer {text}"}),
        door.post("/api/v1/executors", headers={"Authorization": f"Bearer {text}"}, json={}),
    )
    return any(answer.is_success for answer in answers)
