"""A database role calls the SQL functions for its own tenants alone."""

# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false
# asyncpg has no types.

import asyncio
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import LiteralString
from uuid import uuid4

import asyncpg
import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.errors import InsufficientPrivilege
from psycopg.rows import TupleRow

import tidewheel
from tests.control.cli.command import process
from tests.control.cli.command import tidewheel as command
from tests.fixtures.acts import submission
from tests.fixtures.database import Database
from tidewheel.control.client.client import Client
from tidewheel.errors import Refused, UnknownTenant
from tidewheel.postgres.statements import trusted
from tidewheel.settings.connections import Connections
from tidewheel.transitions.installation import record_topic_prefix

ENQUEUE: LiteralString = "SELECT tidewheel_enqueue('charge', tenant => %s)"
STATUS: LiteralString = "SELECT state FROM tidewheel_status(%s, %s)"
CANCEL: LiteralString = "SELECT tidewheel_cancel(%s, %s)"
# Functions that run with their owner's rights and name a tenant or what belongs to one.
OF_TENANTS: LiteralString = """
SELECT p.proname::text, 'tenant' = ANY (p.proargnames),
       ARRAY(SELECT coalesce(p.proargnames[n], '') FROM generate_series(1, p.pronargs) AS n),
       ARRAY(SELECT format_type(t.oid, NULL) FROM unnest(p.proargtypes) WITH ORDINALITY AS a (oid, n)
               JOIN pg_type AS t ON t.oid = a.oid ORDER BY a.n)
  FROM pg_proc AS p
 WHERE p.pronamespace = 'public'::regnamespace AND p.prosecdef AND p.prorettype <> 'trigger'::regtype
   AND p.proargnames && ARRAY['tenant', 'run_id', 'job_id', 'key', 'key_id', 'batch_id']
 ORDER BY 1
"""
VALUES = {"text": "x", "uuid": str(uuid4()), "integer": "1"}


@pytest.fixture
def shop(database: Database) -> Database:
    """A database with a job in each of three tenants."""
    database.within(record_topic_prefix, Connections.load(topic_prefix="shop"))
    database.submit("charge")
    with Client(database.url) as client:
        for tenant in ("acme", "globex"):
            client.tenants.create(tenant)
            database.apply_batch(submission("charge") | {"tenant": tenant})
    return database


@pytest.fixture
def role(shop: Database) -> Iterator[str]:
    """The name of a login that may call the functions, and nothing else."""
    name = f"caller_{uuid4().hex[:12]}"
    shop.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'secret'").format(sql.Identifier(name)))
    for function in ("tidewheel_enqueue", "tidewheel_cancel", "tidewheel_status"):
        grant(shop, function, name)
    yield name
    shop.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(name)))
    shop.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


def grant(shop: Database, function: str, name: str) -> None:
    statement = sql.SQL("GRANT EXECUTE ON FUNCTION {} TO {}")
    shop.execute(statement.format(sql.Identifier(function), sql.Identifier(name)))


def url_as(shop: Database, name: str) -> str:
    return make_conninfo(shop.url, user=name, password="secret")


@contextmanager
def calling(shop: Database, name: str) -> Generator[psycopg.Connection[TupleRow]]:
    with psycopg.connect(url_as(shop, name), autocommit=True) as connection:
        yield connection


def test_role_with_execute_alone_acts_for_default_until_it_is_granted_a_tenant(shop: Database, role: str) -> None:
    foreign, own = shop.trigger("charge", tenant="globex"), shop.trigger("charge")
    with calling(shop, role) as connection, Client(shop.url) as client:
        connection.execute(ENQUEUE, ["default"])
        connection.execute(ENQUEUE, [None])
        assert connection.execute(STATUS, [own, "default"]).fetchone() == ("queued",)
        calls: Sequence[tuple[LiteralString, Sequence[object]]] = (
            (ENQUEUE, ["globex"]),
            (STATUS, [foreign, "globex"]),
            (CANCEL, [foreign, "globex"]),
        )
        for statement, arguments in calls:
            with pytest.raises(
                InsufficientPrivilege, match=f"the role {role} may not act for tenant 'globex'"
            ) as found:
                connection.execute(statement, arguments)
            assert f"tidewheel admin tenant limits globex --grant-role {role}" in (found.value.diag.message_hint or "")
        assert client.tenants.grant_role("globex", role)
        assert not client.tenants.grant_role("globex", role)
        assert client.tenants.get("globex").roles == [role]
        connection.execute(ENQUEUE, ["globex"])
        assert connection.execute(STATUS, [foreign, "globex"]).fetchone() == ("queued",)
        assert connection.execute(CANCEL, [foreign, "globex"]).fetchone() == ("queued",)
        for tenant in ("default", "acme", "nobody"):
            with pytest.raises(InsufficientPrivilege):
                connection.execute(ENQUEUE, [tenant])
        assert client.tenants.revoke_role("globex", role)
        with pytest.raises(InsufficientPrivilege):
            connection.execute(ENQUEUE, ["globex"])
        assert client.tenants.grant_role("*", role)
        for tenant in ("default", "acme", "globex"):
            connection.execute(ENQUEUE, [tenant])


def test_a_role_whose_last_tenant_is_revoked_does_not_become_one_of_default(shop: Database, role: str) -> None:
    own = shop.trigger("charge")
    with calling(shop, role) as connection, Client(shop.url) as client:
        client.tenants.grant_role("acme", role)
        assert client.tenants.revoke_role("acme", role)
        assert not client.tenants.revoke_role("acme", role)
        calls: Sequence[tuple[LiteralString, Sequence[object]]] = (
            (ENQUEUE, ["default"]),
            (ENQUEUE, [None]),
            (ENQUEUE, ["acme"]),
            (STATUS, [own, "default"]),
            (CANCEL, [own, "default"]),
        )
        for statement, arguments in calls:
            with pytest.raises(InsufficientPrivilege, match="may not act for tenant"):
                connection.execute(statement, arguments)
        with pytest.raises(psycopg.errors.NoDataFound, match="has no job"):
            connection.execute(ENQUEUE, [""])
        assert client.tenants.grant_role("default", role)
        assert client.tenants.get("default").roles == [role]
        connection.execute(ENQUEUE, ["default"])


def test_grants_belong_to_the_login_and_to_the_groups_of_which_it_is_a_member(shop: Database, role: str) -> None:
    group = f"group_{uuid4().hex[:12]}"
    shop.execute(sql.SQL("CREATE ROLE {}").format(sql.Identifier(group)))
    try:
        shop.execute(sql.SQL("GRANT {} TO {}").format(sql.Identifier(group), sql.Identifier(role)))
        grant(shop, "tidewheel_enqueue", group)
        with calling(shop, role) as connection, Client(shop.url) as client:
            client.tenants.grant_role("acme", group)
            connection.execute(ENQUEUE, ["acme"])
            with pytest.raises(InsufficientPrivilege):
                connection.execute(ENQUEUE, ["globex"])
            # The login decides, whatever it acts as.
            connection.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(group)))
            with pytest.raises(InsufficientPrivilege, match=role):
                connection.execute(ENQUEUE, ["globex"])
    finally:
        shop.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(group)))
        shop.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(group)))


def test_no_function_with_its_owners_rights_acts_for_a_tenant_of_others(shop: Database, role: str) -> None:
    """Each function that names something of a tenant refuses; a new one is called here by itself."""
    found = shop.rows(OF_TENANTS)
    assert len(found) >= 3
    for name, has_tenant, arguments, types in found:
        assert has_tenant, f"{name} names something of a tenant, and takes no tenant"
        grant(shop, name, role)
        given = [
            "globex" if argument == "tenant" else VALUES.get(kind)
            for argument, kind in zip(arguments, types, strict=True)
        ]
        typed = sql.SQL(", ").join(sql.SQL("%s::{}").format(sql.SQL(trusted(kind))) for kind in types)
        with calling(shop, role) as connection, pytest.raises(InsufficientPrivilege, match="may not act for tenant"):
            connection.execute(sql.SQL("SELECT {}({})").format(sql.Identifier(name), typed), given)


def test_calls_of_the_library_are_those_of_the_login(shop: Database, role: str) -> None:
    run_id = shop.trigger("charge", tenant="globex")

    async def enqueue() -> None:
        parts = conninfo_to_dict(url_as(shop, role))
        connection = await asyncpg.connect(
            host=str(parts["host"]), port=int(str(parts["port"])), user=role, password="secret",
            database=str(parts["dbname"]),
        )  # fmt: skip
        try:
            await tidewheel.enqueue_async(connection, "charge")
            with pytest.raises(asyncpg.InsufficientPrivilegeError, match="may not act for tenant"):
                await tidewheel.enqueue_async(connection, "charge", tenant="globex")
        finally:
            await connection.close()

    asyncio.run(enqueue())
    with calling(shop, role) as connection:
        with pytest.raises(InsufficientPrivilege, match="may not act for tenant"):
            tidewheel.status(connection, run_id, tenant="globex")
        with pytest.raises(InsufficientPrivilege, match="may not act for tenant"):
            tidewheel.cancel(connection, run_id, tenant="globex")
    # A role that writes the tables itself is one of all tenants.
    with psycopg.connect(shop.url_of("application")) as connection:
        connection.execute(ENQUEUE, ["globex"])
        tidewheel.enqueue(connection, "charge", tenant="globex")


def test_a_role_of_a_deleted_tenant_does_not_become_one_of_default(shop: Database, role: str) -> None:
    shop.client.tenants.grant_role("acme", role)
    shop.client.tenants.delete("acme", grace=timedelta(0))
    with calling(shop, role) as connection, pytest.raises(InsufficientPrivilege):
        connection.execute(ENQUEUE, ["default"])


def test_grant_that_would_do_nothing_is_refused(shop: Database, role: str) -> None:
    with Client(shop.url) as client:
        with pytest.raises(UnknownTenant):
            client.tenants.grant_role("nobody", role)
        with pytest.raises(Refused, match="the database server has no role 'nobody'"):
            client.tenants.grant_role("acme", "nobody")
        assert not client.tenants.revoke_role("acme", role)


@pytest.mark.landing
def test_migrate_names_roles_that_have_default_alone(
    shop: Database, role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEWHEEL_DATABASE_URL", shop.url)
    warning = f"the role {role} may call the SQL functions for tenant default alone"
    assert warning in process("migrate").err
    assert command(shop, "admin", "tenant", "limits", "acme", "--grant-role", role).lines[0] == "tenant acme: changed"
    assert ["roles", role] in [line.split() for line in command(shop, "admin", "tenant", "show", "acme").lines]
    assert warning not in process("migrate").err
