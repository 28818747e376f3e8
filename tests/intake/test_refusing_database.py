"""While the installation refuses intake's statements, no request is rejected."""

import pytest

from tests.fixtures.database import Database
from tests.fixtures.services import until
from tests.intake.running import Requests
from tests.transitions.acts import submission
from tidewheel.local.stack import StackInfo
from tidewheel.process.faults import faults

pytestmark = pytest.mark.kafka
KEYS = [f"job-{number}" for number in range(5)]


def test_error_of_the_installation_rejects_no_request(fresh_database: Database, info: StackInfo) -> None:
    """A newer release has renamed a column for a while."""
    requests = Requests(fresh_database, info.kafka)
    with requests.running():
        fresh_database.execute("ALTER TABLE job_versions RENAME COLUMN has_deadlines TO deadlines")
        offsets = requests.send(*map(submission, KEYS))
        until(lambda: "tidewheel migrate" in str(faults.why_not_ready()), "it is reported with its remedy")
        assert fresh_database.count("jobs") == 0
        fresh_database.execute("ALTER TABLE job_versions RENAME COLUMN deadlines TO has_deadlines")
        requests.until_read(offsets[-1])
    assert {key for (key,) in fresh_database.rows("SELECT key FROM jobs")} == set(KEYS)
    assert faults.why_not_ready() is None
