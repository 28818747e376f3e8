"""The mark of a round comes before the scheduler fires: no part of firing is left out of the cost."""

from datetime import timedelta
from functools import partial

import pytest

from tidewheel.local.stack import StackInfo
from tools.bench.complete import wait_for
from tools.bench.environment import open_server
from tools.bench.flow import mark_before_firing
from tools.bench.load import Load, load_jobs, lookahead_of
from tools.bench.measurement import Incomplete


@pytest.mark.kafka
@pytest.mark.slow
def test_mark_waits_for_the_last_moment_and_refuses_what_was_fired(
    info: StackInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEWHEEL_DATABASE_URL", info.database_url)
    monkeypatch.setenv("TIDEWHEEL_KAFKA_PROPERTIES", str(info.kafka_properties))
    with open_server() as server, server.environment() as environment:
        connection = environment.connection
        due_at = environment.now() + lookahead_of(environment) + timedelta(seconds=3)
        load_jobs(connection, environment.installation, Load(jobs=20, prefix="later"), due_at)
        with environment.meter({}) as meter:
            mark = mark_before_firing(environment, meter, due_at)
            left = due_at - environment.now() - lookahead_of(environment)
            assert timedelta(0) < left <= timedelta(seconds=1)
            load_jobs(connection, environment.installation, Load(jobs=20, prefix="now"), environment.now())
            with environment.services(("scheduler",)):
                wait_for(partial(environment.count, "SELECT count(*) FROM outbox"), 20, "runs fired")
            assert meter.since(mark, 20).wal_bytes > 0
            with pytest.raises(Incomplete, match="fired before the jobs were loaded"):
                mark_before_firing(environment, meter, due_at)
