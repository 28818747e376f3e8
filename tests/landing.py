"""The verdict of `.ci/run`: a failed test runs once more, alone, and a flaky one is forgiven once.

`python -m tests.landing RECORD CODE CODE` reads the record of the two parts of a run (`tests/fixtures/landing.py`) and
their exit codes. A test that passes its second run is printed as `flaky`, and the run does not fail. Four kinds of
failure stay failures:

- a part that ended before its tests did: a check that failed, a test that could not be imported;
- more than three tests that failed, or second runs that together take over four minutes;
- a test that `.ci/flaky` lists. The author of a landing adds the printed line there, and removes it with the mend;
- a failure of a fault test, of an oracle or of a test that docs/guarantees*.md name, unless a wait ran out.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from tidewheel.clock import monotonic_seconds

NAMES = 3
SECONDS = 240.0
LISTED = Path(".ci/flaky")
GUARANTEES = "guarantees*.md"
NAMED = re.compile(r"\]\(\.\./(?P<file>tests/\S+?\.py)\)|`(?P<test>test_\w+)`")
_PARTS = 2
_SOME_FAILED = 1  # pytest's exit code


@dataclass(frozen=True)
class Failure:
    """A failure of one phase of a test.

    Attributes:
        error: Its first line.
        waited: A wait ran out.
        by_oracle: It was raised within an oracle.
    """

    test: str
    error: str
    waited: bool
    by_oracle: bool


def main(arguments: Sequence[str]) -> int:
    """Print the verdict; return the exit code."""
    record, *codes = arguments
    rows: list[dict[str, Any]] = [json.loads(line) for line in Path(record).read_text(encoding="utf-8").splitlines()]
    failures = [Failure(**row) for row in rows if "test" in row]
    ends = [row for row in rows if "end" in row]
    red = dict(_unforgivable(failures))
    first = {failure.test: failure.error for failure in reversed(failures)}
    if [end["end"] for end in ends] != [min(_SOME_FAILED, int(code)) for code in codes] or len(codes) != _PARTS:
        red["the run"] = f"a part ended before its tests did: exit codes {', '.join(codes)}"
    elif not red:
        red = _run_again(first)
    for test, why in red.items():
        typer.echo(f"red: {test}: {why}")
    flaky = {} if red else first
    for test, error in flaky.items():
        typer.echo(f"flaky: {test}, {error}")
    typer.echo(f"{sum(end['not_run'] for end in ends)} not run for want of time")
    typer.echo(f"{sum(end['passed'] for end in ends) + len(flaky)} passed, {len(first) - len(flaky)} failed")
    return 1 if red else 0


def _unforgivable(failures: Sequence[Failure]) -> Iterator[tuple[str, str]]:
    """Yield the tests that no second run can save, with the reason."""
    listed = LISTED.read_text(encoding="utf-8").splitlines()
    named = promised(Path("docs"))
    for failure in failures:
        if any(line.startswith(f"{failure.test}, ") for line in listed):
            yield failure.test, f"{LISTED} lists it: {failure.error}"
        elif failure.waited:
            continue
        elif failure.by_oracle or failure.test.startswith("tests/faults/") or _function(failure.test) in named:
            yield failure.test, f"a promise is broken, and no wait ran out: {failure.error}"
    tests = {failure.test for failure in failures}
    if len(tests) > NAMES:
        yield "the run", f"{len(tests)} tests failed, more than {NAMES}"


def promised(docs: Path) -> set[str]:
    """The tests that the pages of guarantees name, as `file::function`."""
    file, names = "", set[str]()
    for page in docs.glob(GUARANTEES):
        for found in NAMED.finditer(page.read_text(encoding="utf-8")):
            file = found["file"] or file
            if found["test"]:
                names.add(f"{file}::{found['test']}")
    return names


def _function(test: str) -> str:
    """The file and the function of a test's id, without class and parameters."""
    file, _, rest = test.partition("::")
    return f"{file}::{rest.partition('[')[0].rpartition('::')[2]}"


def _run_again(tests: Iterable[str]) -> dict[str, str]:
    """Run each test alone; return those that fail again, with the reason."""
    red, ends_at = dict[str, str](), monotonic_seconds() + SECONDS
    for test in tests:
        running = subprocess.Popen([sys.executable, "-m", "pytest", "-q", test])
        try:
            code = running.wait(max(0.0, ends_at - monotonic_seconds()))
        except subprocess.TimeoutExpired:
            running.terminate()  # pytest then stops the servers that it has started
            running.wait()
            red[test] = f"the second runs take over {SECONDS:g} s"
        else:
            if code:
                red[test] = "it failed twice"
    return red


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
