"""The secrets that requests are signed with: read, or refused without showing anything of them."""

from base64 import b64encode
from datetime import UTC, datetime

import pytest

from tidewheel.errors import SettingsError
from tidewheel.http_secrets import read_secrets, signature_headers
from tidewheel.settings.executor import ExecutorSettings

GOOD = "whsec_" + b64encode(b"x" * 24).decode()


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
