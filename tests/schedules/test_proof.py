import os
from random import Random

import pytest

from tests.fixtures import examples
from tests.schedules.proof import Tally, compare_around, compare_between, transitions
from tidewheel.schedules.zones import zone_names

pytestmark = pytest.mark.property
# A slice goes with every test run, a larger one where all examples are drawn; the whole takes half an hour
FULL = os.environ.get("TIDEWHEEL_PROOF") == "full"
SEED = int(os.environ.get("TIDEWHEEL_PROOF_SEED", "20260329"))

# Half an hour, a missing day, Ramadan, odd seconds, seven hours back and forth, three hours exactly, and their like
STRANGE = (
    "Australia/Lord_Howe",
    "Pacific/Apia",
    "Africa/Casablanca",
    "Africa/Monrovia",
    "Antarctica/Vostok",
    "Antarctica/Casey",
    "Antarctica/Troll",
    "Pacific/Kwajalein",
    "America/Caracas",
    "Asia/Pyongyang",
    "Europe/Dublin",
    "Europe/Moscow",
)
WINDOWS_IN_SLICE = 280 if examples.FULL else 56
WEEKS_IN_SLICE = 20 if examples.FULL else 8


@pytest.mark.landing
def test_library_equals_brute_force_near_every_clock_change(
    request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    random, tally = Random(SEED), Tally()  # noqa: S311  # a seeded sample, no secret
    changes = transitions()
    if not FULL:
        strange = [change for change in changes if change[0] in STRANGE]
        changes = random.sample(strange, WINDOWS_IN_SLICE // 3) + random.sample(changes, WINDOWS_IN_SLICE * 2 // 3)
    for name, change in changes:
        compare_around(random, name, change, tally)
    _report(request, capsys, "near changes", tally)
    assert tally.differences == []


def test_library_equals_brute_force_between_clock_changes(
    request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    random, tally = Random(SEED + 1), Tally()  # noqa: S311  # a seeded sample, no secret
    names = sorted(zone_names())
    for name in names * 2 if FULL else random.sample(names, WEEKS_IN_SLICE):
        compare_between(random, name, 60 if FULL else 30, tally)
    _report(request, capsys, "in between", tally)
    assert tally.differences == []


def _report(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str], what: str, tally: Tally) -> None:
    with capsys.disabled():
        request.config.get_terminal_writer().line(f"\n{what}: {tally}")
