"""`tidewheel admin api-key` and `admin changes`: a key is printed once, changes have actors."""

from tests.control.cli.command import json_output, tidewheel
from tests.fixtures.database import Database
from tidewheel.api_keys import read_key
from tidewheel.audit import process_user


def test_key_is_printed_once_listed_without_it_and_revoked(database: Database) -> None:
    scopes = ("--scope", "read", "--scope", "write")
    made = tidewheel(database, "admin", "api-key", "create", "ci", *scopes, "--expires", "90d")
    key = made.out.strip()
    parts = read_key(key)
    assert parts is not None
    assert made.err == f"the key is not shown again; `tidewheel admin api-key revoke {parts.key_id}` revokes it\n"
    listed = tidewheel(database, "admin", "api-key", "list")
    assert parts.key_id in listed.out
    assert parts.secret not in listed.out
    [found] = json_output(database, "admin", "api-key", "list")["keys"]
    assert (found["name"], found["scopes"], found["tenant"]) == ("ci", ["read", "write"], "default")
    for text in ("revoked", "unchanged: the key was already revoked"):
        revoked = tidewheel(database, "admin", "api-key", "revoke", parts.key_id)
        assert revoked.lines == [f"key {parts.key_id}: {text}"]
    assert tidewheel(database, "admin", "api-key", "revoke", "0123456789").refusals == [
        "key_id: there is no API key 0123456789; copy the id from the list of keys"
    ]


def test_new_key_comes_with_a_note_if_a_live_api_needs_none(database: Database) -> None:
    for host, token, age in (
        ("open", "not set", "0 s"),
        ("closed", "secret 01234567", "0 s"),
        ("gone", "not set", "1 min"),
    ):
        database.execute(
            "INSERT INTO processes SELECT gen_random_uuid(), 'api', %s, 7, '0',"
            " jsonb_build_object('api_token', %s::text), at, at, at"
            "  FROM (SELECT tidewheel_now() - %s::interval AS at) AS seen",
            [host, token, age],
        )
    first, *_ = tidewheel(database, "admin", "api-key", "create", "ci", "--scope", "read").err.splitlines()
    assert first.startswith("note: api open pid 7 runs without TIDEWHEEL_API_TOKEN: callers on its machine need no key")


def test_key_without_a_fitting_scope_lifetime_or_tenant_is_refused(database: Database) -> None:
    [scope] = tidewheel(database, "admin", "api-key", "create", "ci", "--scope", "reed").refusals
    assert scope == "scopes.0: 'reed' is not a scope; write one of read, write, operate, admin, execute"
    [lifetime] = tidewheel(database, "admin", "api-key", "create", "a", "--scope", "read", "--expires", "soon").refusals
    assert lifetime.startswith("--expires: 'soon' is not a duration")
    [tenant] = tidewheel(database, "admin", "api-key", "create", "ci", "--scope", "read", "--tenant", "none").refusals
    assert tenant.startswith("tenant: there is no tenant 'none'")
    assert tidewheel(database, "admin", "api-key", "list").lines == ["no keys"]


def test_audit_log_shows_the_user_of_the_command_as_unverified(database: Database) -> None:
    assert tidewheel(database, "admin", "changes").lines == ["no entries"]
    tidewheel(database, "freeze", "--queue", "reports")
    tidewheel(database, "thaw", "--queue", "reports")
    heading, *rows = tidewheel(database, "admin", "changes").lines
    assert heading.split() == ["at", "actor", "door", "action", "object", "version", "result", "reason"]
    assert [row.split()[1:] for row in rows] == [
        [f"{process_user()}?", "cli", action, "freeze/queue=reports", "accepted"] for action in ("thaw", "freeze")
    ]
    *_, more = tidewheel(database, "admin", "changes", "-n", "1").lines
    [older] = json_output(database, "admin", "changes", "--after", more.split()[-1])["entries"]
    assert older["action"] == "freeze"
    assert tidewheel(database, "admin", "changes", "--object", "job/none").lines == ["no entries"]
