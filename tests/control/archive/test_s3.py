"""The archive in a bucket of a local S3, over HTTP."""

import logging
from collections.abc import Iterator
from datetime import UTC, datetime, time
from importlib import import_module
from typing import Any

import pytest
from moto.server import ThreadedMotoServer

from tests.control.archive.test_archive import pass_day
from tests.control.cli.command import json_output, tidewheel
from tests.fixtures.database import ClockedDatabase
from tidewheel.control.archive.stores import ManifestChanged, MissingFile, open_store
from tidewheel.control.cli.exit_codes import ExitCode
from tidewheel.errors import SettingsError, Unavailable
from tidewheel.postgres.partitions import day_of, drop_day, stored_days

BUCKET = "s3://kept/tidewheel"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """A local S3 with a bucket; returns its URL."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    boto: Any = import_module("boto3")
    known = {"endpoint_url": url, "region_name": "us-east-1", "aws_access_key_id": "a", "aws_secret_access_key": "b"}
    boto.client("s3", **known).create_bucket(Bucket="kept")
    yield url
    server.stop()


@pytest.fixture(autouse=True)
def environment(server: str, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name, value in (
        ("AWS_ENDPOINT_URL", server),
        ("AWS_ACCESS_KEY_ID", "a"),
        ("AWS_SECRET_ACCESS_KEY", "b"),
        ("AWS_REGION", "us-east-1"),
        ("AWS_DEFAULT_REGION", "us-east-1"),
        ("AWS_EC2_METADATA_DISABLED", "true"),
        ("TIDEWHEEL_ARCHIVE", BUCKET),
    ):
        monkeypatch.setenv(name, value)
    return monkeypatch


@pytest.mark.landing
def test_day_is_archived_verified_and_read_in_a_bucket(clocked: ClockedDatabase) -> None:
    day = day_of(clocked.now())
    clocked.stop_clock(datetime.combine(day, time(12), UTC))
    clocked.submit()
    started = clocked.begun()
    clocked.succeed(started)
    pass_day(clocked)
    assert str(day) in [each["day"] for each in json_output(clocked, "admin", "archive", "run")["archived"]]
    assert tidewheel(clocked, "admin", "archive", "verify").code == 0
    connection = clocked.connection(autocommit=True)
    for stored in stored_days(connection):
        if stored.day == day:
            drop_day(connection, stored)
    assert json_output(clocked, "run", "show", started.run_id)["archived"]
    store = open_store(BUCKET)
    [runs] = [name for name in store.files(str(day)) if name.startswith("runs-")]
    store.delete(f"{day}/{runs}")
    assert f"{runs} is missing" in tidewheel(clocked, "admin", "archive", "verify").out


def test_manifest_is_written_only_where_the_expected_one_stands() -> None:
    store = open_store("s3://kept/other")
    store.write_manifest("2026-11-20", b"1", None)
    for replaces in (None, b"0"):
        with pytest.raises(ManifestChanged):
            store.write_manifest("2026-11-20", b"2", replaces)
    store.write_manifest("2026-11-20", b"2", b"1")
    assert (store.read("2026-11-20/manifest.json"), store.days()) == (b"2", ["2026-11-20"])
    with pytest.raises(MissingFile):
        store.read("2026-11-21/manifest.json")
    large = store.prepare() / "large"
    large.write_bytes(b"x" * (9 << 20))  # above the limit from which boto3 uploads in parts
    store.keep(large, "2026-11-20/large.avro")
    assert store.files("2026-11-20") == {"large.avro": 9 << 20, "manifest.json": 1}
    assert store.read("2026-11-20/large.avro", (5, 3)) == b"xxx"
    store.close()


def test_refusals_name_the_setting(environment: pytest.MonkeyPatch, clocked: ClockedDatabase) -> None:
    refused = {"s3://absent": "TIDEWHEEL_ARCHIVE: S3 refuses the bucket absent", "ftp://x": "neither a folder"}
    for url, words in refused.items():
        with pytest.raises(SettingsError, match=words):
            open_store(url).days()
    environment.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    environment.setenv("AWS_MAX_ATTEMPTS", "1")
    with pytest.raises(Unavailable, match="the archive does not answer"):
        open_store(BUCKET).days()
    environment.delenv("TIDEWHEEL_ARCHIVE")
    done = tidewheel(clocked, "admin", "archive", "verify")
    assert (done.code, "no archive is set; set TIDEWHEEL_ARCHIVE" in done.err) == (ExitCode.FAILED, True)
