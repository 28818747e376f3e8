"""Events of a job lie on their topic in the order of its changes, however long a batch takes."""

from collections import defaultdict
from collections.abc import Callable, Mapping

import pytest

from tests.fixtures.acts import about, submission
from tests.fixtures.database import Database
from tests.intake.running import Requests
from tests.relay.relaying import Relaying
from tests.relay.topics import make_topics
from tidewheel.local.stack import StackInfo
from tidewheel.schemas.codec import decode
from tidewheel.schemas.generated.records import LifecycleEvent

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

JOBS = 300
CHANGES: Mapping[str, Callable[[str], dict[str, object]]] = {
    "job.created": submission,
    "job.paused": lambda key: about("job.pause", key),
    "job.resumed": lambda key: about("job.resume", key),
    "job.updated": lambda key: submission(key, description="changed"),
    "job.deleted": lambda key: about("job.delete", key),
    "job.created again": lambda key: submission(key, description="again"),
}
SLOW = """
CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.6); RETURN NULL; END $$;
CREATE TRIGGER wait AFTER INSERT OR UPDATE ON jobs FOR EACH STATEMENT EXECUTE FUNCTION wait()
"""


def test_last_event_of_each_job_is_its_newest(
    database: Database, info: StackInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issue 39, F3: the requests stood in the topic before intake started, and a batch took over a second."""
    monkeypatch.setenv("TIDEWHEEL_INTAKE_BATCH", str(JOBS * 3 // 2))  # so that the changes of a job are in four batches
    requests, relaying = Requests(database, info.kafka), Relaying(database, info.kafka)
    events, replies = requests.topics.events, requests.topics.replies
    make_topics(info.kafka, [events, replies])
    database.execute(SLOW)
    offsets = requests.send(*(make(f"job-{number}") for make in CHANGES.values() for number in range(JOBS)))
    with relaying.running(), requests.running():
        requests.until_read(offsets[-1])
        relaying.until_empty()
    found: dict[str, list[str]] = defaultdict(list)
    for each in relaying.arrived(events):
        event = decode(each.value or b"", LifecycleEvent)
        found[event.job_key].append(event.type)
    assert len(found) == JOBS
    expected = [f"io.tidewheel.{change.partition(' ')[0]}.v1" for change in CHANGES]
    assert {key: types for key, types in found.items() if types != expected} == {}
