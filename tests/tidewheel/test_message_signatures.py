"""Signatures of run messages: only the same topic, key and value verify, under a key of the table."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.database import Database
from tidewheel.control.cli.admin import rotate_message_keys
from tidewheel.errors import SettingsError, Unavailable
from tidewheel.message_signatures import (
    SIGNATURE_CHARACTERS,
    SIGNS_AFTER_SECONDS,
    MessageKey,
    MessageKeys,
    SignatureFlaw,
    digest_of,
)
from tidewheel.postgres.session import Session

SECRETS = st.binary(min_size=32, max_size=32)
IDS = st.integers(1, 2**24 - 1)
PARTS = st.tuples(st.text(max_size=40), st.binary(max_size=40), st.binary(max_size=200))


@given(IDS, SECRETS, PARTS)
def test_signature_is_text_that_verifies_what_was_signed(
    key_id: int, secret: bytes, parts: tuple[str, bytes, bytes]
) -> None:
    keys, (topic, key, value) = MessageKeys({key_id: secret}), parts
    signature = keys.sign(topic, key, value)
    assert len(signature.decode("ascii")) == SIGNATURE_CHARACTERS
    assert signature == MessageKeys({key_id: secret}).sign(topic, key, value)
    assert keys.flaw(signature, topic, key, digest_of(value)) is None


@given(SECRETS, PARTS, PARTS)
def test_another_topic_key_or_value_does_not_verify(
    secret: bytes, signed: tuple[str, bytes, bytes], sent: tuple[str, bytes, bytes]
) -> None:
    keys = MessageKeys({1: secret})
    signature = keys.sign(*signed)
    flaw = keys.flaw(signature, sent[0], sent[1], digest_of(sent[2]))
    assert flaw is (None if signed == sent else SignatureFlaw.WRONG)


@given(st.text("ab", max_size=6), st.integers(0, 6))
def test_lengths_keep_topic_and_key_apart(text: str, cut: int) -> None:
    key, at = MessageKey(1, bytes(32)), min(cut, len(text))
    whole = key.sign(text, b"", digest_of(b""))
    assert (key.sign(text[:at], text[at:].encode(), digest_of(b"")) == whole) is (at == len(text))


@given(st.binary(max_size=60), PARTS)
def test_random_bytes_do_not_verify(signature: bytes, parts: tuple[str, bytes, bytes]) -> None:
    topic, key, value = parts
    keys = MessageKeys({1: bytes(32), 2: bytes(31) + b"\1"})
    assert keys.flaw(signature, topic, key, digest_of(value)) in {SignatureFlaw.WRONG, SignatureFlaw.UNKNOWN_KEY}


@given(PARTS, st.integers(0, SIGNATURE_CHARACTERS - 1), st.integers(1, 255))
def test_any_changed_character_does_not_verify(parts: tuple[str, bytes, bytes], place: int, change: int) -> None:
    topic, key, value = parts
    keys = MessageKeys({1: bytes(32), 2: bytes(31) + b"\1"})
    changed = bytearray(keys.sign(topic, key, value))
    changed[place] ^= change
    assert keys.flaw(bytes(changed), topic, key, digest_of(value)) is not None


def keys_of(database: Database) -> MessageKeys:
    """Return the keys as a process reads them."""
    keys = MessageKeys()
    database.within(keys.refresh)
    return keys


def rotate(database: Database, *, revoke: bool = False) -> int:
    """Rotate in a transaction."""
    return database.within(rotate_message_keys, revoke=revoke)


def age(database: Database, seconds: float) -> None:
    """Make every key older."""
    database.execute("UPDATE message_keys SET created_at = created_at - make_interval(secs => %s)", [seconds])


def test_first_migration_makes_a_random_key_and_rotation_one_that_is_missing(fresh_database: Database) -> None:
    [(first, secret)] = fresh_database.rows("SELECT key_id, secret FROM message_keys")
    assert (first, len(secret), len(set(secret)) > 16) == (1, 32, True)
    keys_of(fresh_database).require()
    fresh_database.execute("DELETE FROM message_keys")
    with pytest.raises(Unavailable, match="tidewheel admin secrets rotate run-messages"):
        keys_of(fresh_database).require()
    rotate(fresh_database)
    keys_of(fresh_database).require()


def test_keys_that_were_just_read_cost_no_transaction(database: Database) -> None:
    keys, nowhere = keys_of(database), Session("host=127.0.0.1 port=1", "tidewheel-test")
    keys.refresh_aged(nowhere, 60.0)
    with pytest.raises(Unavailable):
        keys.refresh_aged(nowhere, 0.0)


def test_new_key_signs_when_executors_know_it_and_both_verify(fresh_database: Database) -> None:
    age(fresh_database, 100)
    before = keys_of(fresh_database)
    old = before.sign("t", b"k", b"v")
    rotate(fresh_database)
    young = keys_of(fresh_database)
    assert young.sign("t", b"k", b"v") == old
    age(fresh_database, SIGNS_AFTER_SECONDS)
    aged = keys_of(fresh_database)
    new = aged.sign("t", b"k", b"v")
    assert new != old
    assert [young.flaw(each, "t", b"k", digest_of(b"v")) for each in (old, new)] == [None, None]
    assert before.flaw(new, "t", b"k", digest_of(b"v")) is SignatureFlaw.UNKNOWN_KEY
    age(fresh_database, 100)
    rotate(fresh_database)
    assert keys_of(fresh_database).flaw(old, "t", b"k", digest_of(b"v")) is SignatureFlaw.UNKNOWN_KEY
    assert keys_of(fresh_database).flaw(new, "t", b"k", digest_of(b"v")) is None


def test_second_rotation_waits_unless_it_revokes(fresh_database: Database) -> None:
    age(fresh_database, 100)
    old = keys_of(fresh_database).sign("t", b"k", b"v")
    rotate(fresh_database)
    with pytest.raises(SettingsError, match=r"rotate again in (59|60) s, or revoke all other keys"):
        rotate(fresh_database)
    assert rotate(fresh_database, revoke=True) == 3
    left = keys_of(fresh_database)
    assert left.flaw(old, "t", b"k", digest_of(b"v")) is SignatureFlaw.UNKNOWN_KEY
    assert left.flaw(left.sign("t", b"k", b"v"), "t", b"k", digest_of(b"v")) is None
