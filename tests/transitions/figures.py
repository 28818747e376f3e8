"""Figures of ended runs, written as services write them."""

from tests.fixtures.acts import ending
from tests.fixtures.database import Database
from tidewheel.activity import activity
from tidewheel.postgres.session import Session
from tidewheel.runs import RunState
from tidewheel.transitions.claim import Started
from tidewheel.transitions.finish import finish_runs


def forget_figures(database: Database) -> None:
    """Delete all figures, those that this process has not written among them."""
    database.within(activity.write)
    database.execute("DELETE FROM activity")


def finish(database: Database, key: str = "job", *states: RunState) -> list[str]:
    ended: list[str] = []
    for state in states:
        started = database.begun(key)
        end_with_figures(database, started, state)
        ended.append(str(started.run_id))
    return ended


def end_with_figures(database: Database, started: Started, state: RunState) -> None:
    session = Session(database.url, "test")
    session.within(finish_runs, database.installation, [ending(started, state, error_type="ConnectionError")])
    session.within(activity.write)
    session.close()
