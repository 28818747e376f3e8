"""Caches that are bounded in bytes."""

from tidewheel.weighed_cache import WeighedCache


def test_cache_keeps_what_fits_its_bytes_and_drops_the_least_recently_used() -> None:
    read = list[bytes]()

    def note(key: bytes) -> bytes:
        read.append(key)
        return key

    cache = WeighedCache(note, len, 100)
    for key in (b"a" * 40, b"b" * 40, b"a" * 40, b"c" * 40, b"a" * 40, b"b" * 40):
        assert cache.of(key) == key
    assert read == [b"a" * 40, b"b" * 40, b"c" * 40, b"b" * 40]
    cache.of(b"d" * 1000)
    cache.of(b"d" * 1000)
    assert read[4:] == [b"d" * 1000]
