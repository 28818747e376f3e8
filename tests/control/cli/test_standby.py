"""`tidewheel admin standby`: values that no server accepts are refused before one is connected."""

import pytest

from tests.control.cli.command import NO_DATABASE, tidewheel
from tidewheel.control.cli.exit_codes import ExitCode


@pytest.mark.parametrize(
    ("words", "problem", "remedy"),
    [
        ("raise --from kafka-b", "--from: 'kafka-b' is not a broker", "HOST:PORT"),
        ("raise --from a:9092,b", "--from: 'b' is not a broker", "HOST:PORT"),
        ("raise --from a:0", "--from: 'a:0' is not a broker", "HOST:PORT"),
        ("raise --from a:70000", "--from: 'a:70000' is not a broker", "HOST:PORT"),
        ("raise --from :9092", "--from: ':9092' is not a broker", "HOST:PORT"),
        ("raise --from a:9092 --prefix b%tidewheel", "--prefix: 'b tidewheel' is not a prefix of topic names", "dots"),
        ("raise --from a:9092 --prefix=", "--prefix: '' is not a prefix of topic names", "a.tidewheel"),
        ("enable --replication 0", "--replication: 0 is not a number of copies", "write 1 to 7"),
        ("enable --replication 8", "--replication: 8 is not a number of copies", "write 1 to 7"),
    ],
)
def test_value_that_no_server_accepts_is_refused_at_once(words: str, problem: str, remedy: str) -> None:
    done = tidewheel(NO_DATABASE, "admin", "standby", *(word.replace("%", " ") for word in words.split()))
    assert done.code == ExitCode.REFUSED
    [refused] = done.refusals
    assert refused.startswith(problem)
    assert remedy in refused


def test_replication_of_topics_is_refused_likewise() -> None:
    done = tidewheel(NO_DATABASE, "admin", "topics", "apply", "--replication", "0")
    assert (done.code, "--replication: 0 is not a number" in done.err) == (ExitCode.REFUSED, True)


@pytest.mark.parametrize("source", ["a:9092", "a:9092,b-1.example:9093", "[::1]:9092", "SSL://a:9092", "127.0.0.1:1"])
def test_brokers_that_may_exist_are_accepted(source: str) -> None:
    """The database is the next to be connected, and does not answer."""
    done = tidewheel(NO_DATABASE, "admin", "standby", "raise", "--from", source, "--prefix", "b.tidewheel")
    assert done.code == ExitCode.UNAVAILABLE, done
