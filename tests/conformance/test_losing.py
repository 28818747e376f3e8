"""Crashes, deploys and lost responses lose no run, count no attempt, and late reports change nothing."""

import pytest

from tests.conformance.kit import Kit
from tests.conformance.lossy import losing_answers
from tests.fixtures.services import SHORT_LEASE

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


def test_shutdown_drains_and_releases_uncounted(own: Kit) -> None:
    """[19]."""
    own.start_stack()
    first = own.start(DRAIN_TIMEOUT="3")
    ends, stays = own.hold(), own.hold("conformance.stubborn")
    first.ask_to_stop()
    ends.let_go()
    first.wait_stopped()
    assert own.ended(ends.run_id).attempt == 1
    facts = own.facts(stays.run_id)
    assert (facts.state, facts.failed_attempts, facts.lost_attempts) == ("queued", 0, 0)
    assert own.attempts(stays.run_id) == [(1, "released")]
    assert own.fleet.database.count("executors") == 0
    stays.let_go()
    own.start()
    assert own.ended(stays.run_id).attempt == 2


def test_runs_of_a_killed_executor_are_run_elsewhere(own: Kit) -> None:
    """[2]: an executor without heartbeats loses its lease."""
    own.start_stack(LEASE=SHORT_LEASE)
    first = own.start()
    held = own.hold()
    first.kill()
    own.start()
    own.until(lambda: len(own.effects(held.run_id)) == 2, "another begins it")
    facts = own.facts(held.run_id)
    assert (facts.attempt, facts.failed_attempts, facts.lost_attempts) == (2, 0, 1)
    held.let_go()
    assert own.ended(held.run_id).state == "succeeded"
    assert own.attempts(held.run_id) == [(1, "lost"), (2, "succeeded")]


def test_suspended_executor_changes_nothing_and_registers_again(own: Kit) -> None:
    """[3] [17]."""
    own.start_stack(LEASE=SHORT_LEASE)
    first = own.start()
    held = own.hold()
    first.pause()
    second = own.start()
    own.until(lambda: len(own.effects(held.run_id)) == 2, "another begins it")
    held.let_go()
    assert own.ended(held.run_id).state == "succeeded"
    first.resume()
    own.until(lambda: own.fleet.database.count("executors") == 2, "it has entered anew")
    second.kill()
    assert own.run("conformance.echo").state == "succeeded"
    assert own.attempts(held.run_id) == [(1, "lost"), (2, "succeeded")]
    assert first.alive


def test_work_continues_during_an_api_outage(own: Kit) -> None:
    """[17]: outcomes are reported afterwards; no run is repeated."""
    own.start_stack()
    own.start()
    ends, goes_on = own.hold(), own.hold()
    assert own.api is not None
    own.api.kill()
    ends.let_go()
    later = own.trigger("conformance.echo")
    own.start_api()
    assert own.ended(ends.run_id).attempt == 1
    assert own.ended(later).attempt == 1
    goes_on.let_go()
    assert own.ended(goes_on.run_id).attempt == 1
    assert len(own.effects(goes_on.run_id)) == 1


def test_lost_response_is_requested_again(own: Kit) -> None:
    """[8] [17]: a claim begins once what it has started, an outcome is recorded once."""
    own.start_stack()
    with losing_answers(own.port) as way:
        own.start(API_URL=f"http://127.0.0.1:{way.server_port}")
        runs = [own.trigger("conformance.echo", {"n": n}) for n in range(8)]
        for run_id in runs:
            assert own.ended(run_id).attempt == 1
            assert len(own.effects(run_id)) == 1
        own.until(lambda: way.lost == {"heartbeat", "claim", "finish"}, "one of each was lost")


def test_lost_message_is_swept_by_remote_executors(own: Kit) -> None:
    """[12]: a queue that has no topics, and a message that was lost."""
    own.queue = "remote"
    own.start_stack(SWEEP="0.2s")
    own.start()
    runs = [own.trigger("conformance.echo", {"n": n}) for n in range(6)]
    for n, run_id in enumerate(runs):
        ended = own.ended(run_id)
        assert (ended.state, ended.attempt, ended.result) == ("succeeded", 1, f'{{"n":{n}}}'.encode())
        assert own.claimed_from(run_id).startswith("sweep")
