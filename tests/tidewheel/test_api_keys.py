"""API keys: their text, and the bucket of their rate."""

import string

from hypothesis import given
from hypothesis import strategies as st

from tidewheel.api_keys import ApiKey, Bucket, new_key, read_key
from tidewheel.redaction import redact

KEYS = st.builds(
    ApiKey,
    st.text(string.digits + string.ascii_lowercase, min_size=10, max_size=10),
    st.text(string.digits + string.ascii_letters, min_size=43, max_size=43),
)


@given(KEYS)
def test_key_is_read_as_it_was_made(key: ApiKey) -> None:
    assert read_key(key.text) == key
    assert key.fits(key.hash, {})


@given(KEYS, st.data())
def test_key_with_a_typing_error_is_no_key(key: ApiKey, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(key.text) - 1))
    other = data.draw(st.characters())
    typed = key.text[:at] + other + key.text[at + 1 :]
    assert (read_key(typed) is None) == (typed != key.text)
    assert read_key(key.text[:at]) is None


@given(st.text(max_size=80))
def test_other_text_is_no_key(text: str) -> None:
    assert read_key(text) is None


def test_two_keys_differ_in_id_and_secret() -> None:
    first, second = new_key(), new_key()
    assert first.key_id != second.key_id
    assert not first.fits(second.hash, {})


def test_key_is_redacted_and_its_id_stays() -> None:
    key = new_key()
    assert redact(f"401 for {key.text}.") == f"401 for tw_{key.key_id}_[redacted]."


@given(st.floats(0.1, 1000), st.lists(st.floats(0, 10), min_size=1, max_size=50))
def test_bucket_gives_its_rate_and_at_most_two_seconds_of_it_at_once(rate: float, pauses: list[float]) -> None:
    bucket, now, taken = Bucket(rate, 0.0), 0.0, 0
    for pause in pauses:
        now += pause
        wait = bucket.take(now)
        taken += wait == 0
        assert wait <= 1 / rate + 1e-6
        assert taken <= max(2 * rate, 1) + now * rate + 1e-6
        if wait:
            now += wait * (1 + 1e-9) + 1e-9
            taken += bucket.take(now) == 0
    assert taken
