"""Pasted schedules mean what they mean to the program that they were written for."""

import base64
import shlex
import string
import subprocess
from pathlib import Path

import pytest

from tidewheel.control.foreign import read_pasted
from tidewheel.errors import InvalidInput
from tidewheel.jobs.strict_json import as_list, as_object


def argv(command: str) -> list[str]:
    target = as_object(read_pasted(f"*/5 * * * * {command}").job["target"]) or {}
    return [str(word) for word in as_list(target["argv"]) or ()]


@pytest.mark.parametrize(
    ("command", "line", "standard_input"),
    [
        (r'date "+\%Y-\%m"', 'date "+%Y-%m"', None),
        ("cat%one%two", "cat", "one\ntwo\n"),
        (r"cat%100\%%end%", "cat", "100%\nend\n"),
        (r"mail -s 5\% ops%Hello", "mail -s 5% ops", "Hello\n"),
        (r"printf '\\n'%x", r"printf '\\n'", "x\n"),
        ("cat%", "cat", "\n"),
    ],
)
def test_percent_sign_of_a_crontab_ends_the_command(command: str, line: str, standard_input: str | None) -> None:
    """Issue 39, W5: as `crontab(5)` of Debian describes, and its cron does."""
    job = read_pasted(f"0 3 * * * {command}").job
    assert job["target"] == {"type": "shell", "argv": ["/bin/sh", "-c", line]}
    given = job.get("payload_base64")
    assert (None if given is None else base64.b64decode(str(given)).decode()) == standard_input


def test_tz_of_a_crontab_is_the_commands_and_cron_tz_the_schedules() -> None:
    """Issue 39, W6."""
    both = read_pasted("TZ=Asia/Tokyo\nCRON_TZ=Europe/Berlin\n0 3 * * * /srv/x").job
    assert both["schedule"] == {"cron": ["0 3 * * *"], "timezone": "Europe/Berlin"}
    assert both["target"] == {"type": "shell", "argv": ["/srv/x"], "env": {"TZ": "Asia/Tokyo"}}


def test_variables_above_a_line_are_kept_or_noted() -> None:
    """Issue 39, A6: those below it do not hold for it."""
    found = read_pasted(
        'SHELL=/bin/bash\nPATH = "/srv/bin:/bin"\nMAILTO=ops\nRANDOM_DELAY=0\n@daily\t/srv/x | tee log\nLATE=1\n'
    )
    assert found.job["target"] == {
        "type": "shell", "argv": ["/bin/bash", "-c", "/srv/x | tee log"], "env": {"PATH": "/srv/bin:/bin"},
    }  # fmt: skip
    notes = " ".join(found.notes)
    assert [word for word in ("MAILTO", "RANDOM_DELAY 0", "TIDEWHEEL_SHELL_JOB_ENV=PATH") if word not in notes] == []


@pytest.mark.parametrize(
    "command", ["/srv/x # nightly", "/srv/x [ab]", "/srv/x a\\ b", "/srv/x 'a b'", "X=1 /srv/x", "x"]
)
def test_command_that_a_shell_would_read_is_left_to_one(command: str) -> None:
    """Issue 39, W7."""
    assert argv(command) == ["/bin/sh", "-c", command]


@pytest.mark.process
def test_split_command_has_the_words_that_a_shell_finds(tmp_path: Path) -> None:
    """Each character that needs no shell is proved with one, in a folder whose files a glob would match."""
    (tmp_path / "ab").touch()
    split = ""
    for sign in string.printable.replace("\n", "").replace("\r", "").replace("%", ""):
        command = f"/srv/x {sign} a{sign}b {sign}a=b:{sign}c"
        if (words := argv(command.strip()))[0] == "/bin/sh":
            continue
        split += sign
        line = f"print() {{ for word; do printf '%s\\0' \"$word\"; done; }}; print {command}"
        said = subprocess.run(["/bin/sh", "-c", line], cwd=tmp_path, capture_output=True, check=True)
        assert said.stdout.decode().split("\0")[:-1] == words == shlex.split(command)
    assert set(split) >= set(string.ascii_letters + string.digits + "_./:=@,+- \t")


def test_bare_expression_is_refused_and_its_last_field_never_a_command() -> None:
    cron = ("0 10 * * ? *", "0 10 ? * 2-6 2027", "0 0 12 ? * 2 2027", "0 0 12 * * MON-FRI")
    for text in (*cron, "rate(5 minutes)", "cron(0 10 ? * 2-6 *)"):
        with pytest.raises(InvalidInput, match="without a command"):
            read_pasted(text)


def test_text_of_no_format_is_refused() -> None:
    for text in ("", "every full moon", "x" * 20_000, "apiVersion: v1\nkind: Deployment\n# schedule"):
        with pytest.raises(InvalidInput, match="not a known schedule format"):
            read_pasted(text)
