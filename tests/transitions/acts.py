"""The acts of a database as functions, for the rooms whose tests do not call its methods yet."""

from collections.abc import Mapping
from uuid import uuid4

from tests.fixtures.acts import EXECUTOR as EXECUTOR
from tests.fixtures.acts import HANDLER as HANDLER
from tests.fixtures.acts import about as about
from tests.fixtures.acts import ending as ending
from tests.fixtures.acts import submission as submission
from tests.fixtures.database import Database
from tidewheel.postgres.session import Conn
from tidewheel.schemas.generated.records import Reply

apply_batch = Database.apply_batch
submit = Database.submit
trigger = Database.trigger
requested_claim = Database.requested_claim
claim = Database.claim
begin = Database.begin
begun = Database.begun
end = Database.end
succeed = Database.succeed
requeue = Database.requeue
copy_ends = Database.copy_ends
job_runs = Database.job_runs
open_run = Database.open_run
final_state = Database.final_state
messages = Database.messages
own_requests = Database.own_requests
completions = Database.completions
lifecycle = Database.lifecycle
dead_letters = Database.dead_letters
requests = Database.requests
attempts = Database.attempts
active_run_of = Database.active_run_of
some_executor = uuid4


def apply_batch_within(connection: Conn, database: Database, *documents: Mapping[str, object]) -> list[Reply]:
    return database.apply_batch_within(connection, *documents)
