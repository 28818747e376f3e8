"""Secrets and signatures of requests: read as written or refused, without showing a part of them."""

import re
from base64 import b64encode
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.examples import examples
from tidewheel.errors import SettingsError
from tidewheel.http_secrets import (
    MAX_VALUE,
    environment_secrets,
    read_entry,
    read_secrets,
    signature_headers,
    without_secrets,
)
from tidewheel.jobs.http_values import read_url
from tidewheel.settings.executor import ExecutorSettings

LABELS = st.from_regex(r"[a-z]([a-z0-9-]{0,20}[a-z0-9])?", fullmatch=True).filter(lambda text: text[:4] != "xn--")
HOSTS = st.lists(st.lists(LABELS, min_size=1, max_size=4).map(".".join), min_size=1, max_size=4)
VALUES = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1, max_size=200).filter(
    lambda text: text == text.strip()
)
MARK = "s3cr3tmark"

GOOD = "whsec_" + b64encode(b"x" * 24).decode()


@examples(200)
@given(hosts=HOSTS, value=VALUES)
def test_entry_is_read_as_it_was_written(hosts: list[str], value: str) -> None:
    secret = read_entry(f"{','.join(hosts)}={value}")
    assert (secret.value, secret.hosts) == (value, frozenset(hosts))
    assert all(read_url(f"https://{host.upper()}./").host.name in secret.hosts for host in hosts)


@examples(300)
@given(before=st.text(max_size=30), between=st.text(max_size=30), after=st.text(max_size=30))
def test_any_entry_is_read_or_refused_without_showing_it(before: str, between: str, after: str) -> None:
    """A secret may be written in any wrong place of an entry."""
    written = f"{before}{MARK}{between}{MARK}{after}"
    try:
        secret = read_entry(written)
    except ValueError as error:
        assert MARK not in str(error)  # noqa: PT017 - either is right
    else:
        assert written.endswith(secret.value)
        assert re.fullmatch(r"[\x20-\x7e\t]{1,8192}", secret.value)
        assert MARK not in repr(secret) or any(MARK in host for host in secret.hosts)
        assert secret.hosts


@pytest.mark.parametrize(
    "value",
    [
        "s3cr3t\r\nX-Admin: 1",
        "s3cr3t\n",
        "s3cr3t\0",
        "s3cr3t\xe9",
        "s3cr3t\u20ac",
        "s3cr3t\x7f",
        " s3cr3t",
        "s3cr3t ",
        "",
        "s3cr3t" * MAX_VALUE,
    ],
)
def test_value_that_no_header_carries_ends_the_start(value: str) -> None:
    with pytest.raises(SettingsError, match=r"^TIDEWHEEL_SECRET_BILLING: .*value") as caught:
        environment_secrets({"TIDEWHEEL_SECRET_BILLING": f"api.example.org={value}"})
    assert "s3cr3t" not in str(caught.value)


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("Bearer-s3cr3t", "does not name a host"),
        ("=s3cr3t", "host 1 is not a host"),
        ("*=s3cr3t", "or \\*"),
        ("*.example.org=s3cr3t", "or \\*"),
        ("a.example,=s3cr3t", "host 2 is not a host"),
        ("a.example:443=s3cr3t", "without a port"),
        ("https://a.example=s3cr3t", "host 1 is not a host"),
        ("Bearer s3cr3t=", "host 1 is not a host"),
        ("[::1=s3cr3t", "host 1 is not a host"),
    ],
)
def test_entry_without_exact_hosts_ends_the_start(written: str, words: str) -> None:
    with pytest.raises(SettingsError, match=f"^TIDEWHEEL_SECRET_BILLING: .*{words}") as caught:
        environment_secrets({"TIDEWHEEL_SECRET_BILLING": written})
    assert "s3cr3t" not in str(caught.value)


@pytest.mark.parametrize(
    "name", ["TIDEWHEEL_SECRET_billing", "tidewheel_secret_BILLING", "TIDEWHEEL_SECRET_", "TIDEWHEEL_SECRET_1A"]
)
def test_variable_that_no_job_can_name_ends_the_start(name: str) -> None:
    with pytest.raises(SettingsError, match=f"^{name} is not a valid name: write TIDEWHEEL_SECRET_ and 1 to 64"):
        environment_secrets({name: "api.example.org=s3cr3t"})


def test_other_variables_are_no_secrets() -> None:
    others = {"TIDEWHEEL_SECRETS_DIR": "/run", "TIDEWHEEL_QUEUES": "a", "SECRET_A": "b"}
    assert environment_secrets(others) == {}
    assert without_secrets({**others, "TIDEWHEEL_SECRET_A": "x", "TIDEWHEEL_WEBHOOK_SECRETS": "y"}) == others


def test_secret_in_the_file_of_settings_is_refused_with_its_place(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "tidewheel.toml"
    file.write_text('secret_billing = "api.example.org=s3cr3t"')
    monkeypatch.setenv("TIDEWHEEL_CONFIG", str(file))
    with pytest.raises(
        SettingsError, match="read from the environment, TIDEWHEEL_SECRET_<NAME>, or from fil"
    ) as caught:
        ExecutorSettings.load()
    assert "s3cr3t" not in str(caught.value)


def test_folder_of_secrets_must_be_one(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="TIDEWHEEL_SECRETS_DIR: is not a folder; correct the path"):
        ExecutorSettings.load(secrets_dir=tmp_path / "missing")
    assert ExecutorSettings.load(secrets_dir=tmp_path).secrets_dir == tmp_path


def test_signature_equals_that_of_the_standards_libraries() -> None:
    """Source: the test of the Standard Webhooks reference libraries, "sign function works"."""
    secrets = read_secrets("example.org=whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")["example.org"]
    at = datetime.fromtimestamp(1614265330, UTC)
    body = b'{"test": 2432232314}'
    headers = signature_headers(secrets, name="msg_p5jXN8AQM9LWM0D4loKWxJek", at=at, body=body)
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.parametrize(
    "written",
    ["secret", "whsec_", "whsec_c2hvcnQ=", GOOD + "!", f"{GOOD},{GOOD}", "whsec_" + b64encode(b"x" * 65).decode()],
)
def test_invalid_secret_is_refused_without_being_shown(monkeypatch: pytest.MonkeyPatch, written: str) -> None:
    monkeypatch.setenv("TIDEWHEEL_WEBHOOK_SECRETS", f"example.org={GOOD} example.org={written}")
    with pytest.raises(
        SettingsError, match="TIDEWHEEL_WEBHOOK_SECRETS: entry 2 has no secret: write whsec_"
    ) as refused:
        ExecutorSettings.load()
    assert written not in str(refused.value).replace("no secret", "").replace("whsec_ and", "")
    assert GOOD not in str(refused.value)


@pytest.mark.parametrize(
    "host", [None, "", "*", "*.example.org", "example.org:443", "https://example.org", "a/b", "ä.org"]
)
def test_secret_without_one_host_is_refused(monkeypatch: pytest.MonkeyPatch, host: str | None) -> None:
    monkeypatch.setenv("TIDEWHEEL_WEBHOOK_SECRETS", GOOD if host is None else f"{host}={GOOD}")
    with pytest.raises(
        SettingsError, match="TIDEWHEEL_WEBHOOK_SECRETS: entry 1 does not name a host: write <host>="
    ) as refused:
        ExecutorSettings.load()
    assert GOOD not in str(refused.value)


def test_several_secrets_of_a_host_are_kept_in_order() -> None:
    other = "whsec_" + b64encode(b"y" * 24).decode()
    assert read_secrets(f"  a.org={GOOD}\nb.org={other} A.ORG.={other} ") == {
        "a.org": (b"x" * 24, b"y" * 24),
        "b.org": (b"y" * 24,),
    }
    assert read_secrets(" ") == {}
