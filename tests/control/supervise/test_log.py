import io
import json
import threading

import pytest

from tidewheel.control.supervise.process import Log

RECORD = (
    '{"time": "2026-11-23T00:24:32.839+00:00", "level": "warning", "logger": "x", "message": "late", "run_id": "7"}'
)


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def written(stream: io.StringIO, *lines: str, service: str = "relay") -> str:
    log = Log("dev", stream)
    for line in lines:
        log.add(service, line)
    log.close()
    return stream.getvalue()


def test_a_terminal_gets_a_prefix_a_level_and_the_fields_of_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    [line] = written(Screen(), RECORD).splitlines()
    assert line.split() == [line.split()[0], "relay", "warning:", "late", "run_id=7"]


def test_a_terminal_gets_colours_unless_they_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert "\x1b[" in written(Screen(), RECORD)
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b[" not in written(Screen(), RECORD)


def test_what_a_payload_prints_does_not_steer_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    record = json.dumps({"time": "x", "message": "\x1b[2J\u202egone", "key": "a\x07", "error": "t\n\x9b5"})
    shown = written(Screen(), record, "printed \x1b]0;title\x07")
    assert not [char for char in shown if char != "\n" and not char.isprintable()]


@pytest.mark.parametrize(
    "line", ["printed", "", '{"time": "', '{"time": "x", "a": ' + "[" * 100_000, '{"a": 1}', "[1]"]
)
def test_other_readers_get_one_json_object_a_line_for_any_output(line: str) -> None:
    [read] = [json.loads(text) for text in written(io.StringIO(), line, service="executor").splitlines()]
    assert (read["service"], read["message"]) == ("executor", line)


def test_a_terminal_gets_a_traceback_as_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    trace = 'Traceback (most recent call last):\n  File "shop.py", line 7, in greet\n    fail()\nValueError: no\n'
    record = json.dumps({**json.loads(RECORD), "message": "failure 1 of 4", "trace": trace})
    first, *rest = written(Screen(), record).splitlines()
    assert first.endswith("failure 1 of 4  run_id=7")
    indent = len(rest[0]) - len(rest[0].lstrip())
    assert [line[indent:] for line in rest] == trace.splitlines()
    assert json.loads(written(io.StringIO(), record))["trace"] == trace


def test_a_record_keeps_its_fields_in_json() -> None:
    assert json.loads(written(io.StringIO(), RECORD)) == {**json.loads(RECORD), "service": "relay"}


def test_a_reader_that_stops_reading_stops_no_service_and_learns_what_it_missed() -> None:
    class Full(io.StringIO):
        room = threading.Event()

        def write(self, text: str, /) -> int:
            assert self.room.wait(30)
            return super().write(text)

    stream = Full()
    log = Log("dev", stream)
    for number in range(20_000):
        log.add("api", f"line {number}")
    stream.room.set()
    log.close()
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    kept, omission = lines[:-1], lines[-1]
    assert [line["message"] for line in kept] == [f"line {number}" for number in range(len(kept))]
    assert omission["message"] == f"dropped {20_000 - len(kept)} lines, because this log is not read fast enough"


def test_a_closed_log_ends_no_service() -> None:
    stream = io.StringIO()
    log = Log("dev", stream)
    stream.close()
    log.add("api", "line")
    log.close()
