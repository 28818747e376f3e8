"""The secrets that requests are signed with: read, or refused without showing anything of them."""

import doctest
from base64 import b64encode
from datetime import UTC, datetime

import pytest

from tidewheel import webhooks
from tidewheel.errors import SettingsError
from tidewheel.settings import ExecutorSettings
from tidewheel.webhooks import read_secrets, signature_headers

GOOD = "whsec_" + b64encode(b"x" * 24).decode()


def test_doctest_examples_run() -> None:
    assert doctest.testmod(webhooks).failed == 0


def test_signature_equals_that_of_the_standards_libraries() -> None:
    """Source: the test of the Standard Webhooks reference libraries, "sign function works"."""
    secrets = read_secrets("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    at = datetime.fromtimestamp(1614265330, UTC)
    body = b'{"test": 2432232314}'
    headers = signature_headers(secrets, name="msg_p5jXN8AQM9LWM0D4loKWxJek", at=at, body=body)
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.parametrize(
    "written",
    ["secret", "whsec_", "whsec_c2hvcnQ=", GOOD + "!", f"{GOOD},{GOOD}", "whsec_" + b64encode(b"x" * 65).decode()],
)
def test_invalid_secret_is_refused_without_being_shown(monkeypatch: pytest.MonkeyPatch, written: str) -> None:
    monkeypatch.setenv("TIDEWHEEL_WEBHOOK_SECRET", f"{GOOD} {written}")
    with pytest.raises(SettingsError, match="TIDEWHEEL_WEBHOOK_SECRET: write whsec_") as refused:
        ExecutorSettings.load()
    assert written not in str(refused.value).replace("whsec_ and", "")
    assert GOOD not in str(refused.value)


def test_several_secrets_are_separated_by_blanks() -> None:
    assert read_secrets(f"  {GOOD}\n{GOOD} ") == (b"x" * 24, b"x" * 24)
    assert read_secrets(" ") == ()
