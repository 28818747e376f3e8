"""Random edits close to due times: no instant fires wrongly, twice, or never."""

import os
import sys
from collections import Counter
from random import SystemRandom

import pytest

from tests.faults.random_edits import RandomEdits
from tests.fixtures.services import LONG_LEASE, Fleet
from tidewheel.control.client.client import Client

pytestmark = [pytest.mark.postgres, pytest.mark.kafka, pytest.mark.slow]

_SECONDS = float(os.environ.get("TIDEWHEEL_EDITS_SECONDS", "30"))
_SEED = os.environ.get("TIDEWHEEL_EDITS_SEED")


@pytest.mark.parametrize("lookahead", ["PT60S", "PT5S"])
def test_random_edits_fire_every_instant_once(
    fleet: Fleet, lookahead: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Set TIDEWHEEL_EDITS_SECONDS for more than 30 s, TIDEWHEEL_EDITS_SEED to repeat a seed."""
    seed = int(_SEED) if _SEED else SystemRandom().getrandbits(32)
    monkeypatch.setenv("TIDEWHEEL_TOPIC_PREFIX", fleet.topics.prefix)  # for the client, which is in this process
    with capsys.disabled():
        sys.stdout.write(f"\nseed {seed}, lookahead {lookahead}: ")
    fleet.start_all(LOOKAHEAD=lookahead, LEASE=LONG_LEASE, SLOTS="100")
    fleet.start("scheduler", LOOKAHEAD=lookahead)
    fleet.wait_started()
    with Client(fleet.database.url) as client:
        edits = RandomEdits(fleet, client, seed)
        try:
            edits.drive(_SECONDS)
            verdicts = edits.verdicts()
        finally:
            edits.close()
    problems = [*edits.problems, *(problem for verdict in verdicts for problem in verdict.problems)]
    acts = Counter(act.kind for verdict in verdicts for act in verdict.acts)
    changes, fired = sum(len(verdict.changes) for verdict in verdicts), sum(len(verdict.fired) for verdict in verdicts)
    told = ", ".join(f"{count} {kind}" for kind, count in acts.most_common())
    with capsys.disabled():
        sys.stdout.write(
            f"{acts.total()} requests ({told}), {changes} changes, {fired} runs, {len(problems)} problems\n"
        )
    assert not problems, f"seed {seed}: {len(problems)} problems\n" + "\n".join(problems[:5])
    assert acts.total() > _SECONDS
    assert fired > _SECONDS
