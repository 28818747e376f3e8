"""A stack with a standby: made, promoted by command and by hand, made again, removed."""

from pathlib import Path

import psutil
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.fixtures.services import until
from tidewheel.errors import StackError
from tidewheel.local.parts import PartState
from tidewheel.local.stack import LocalStack, StackInfo, running_stack

pytestmark = [pytest.mark.postgres, pytest.mark.kafka, pytest.mark.slow]


def states(local: LocalStack) -> dict[str, PartState]:
    return {part.name: part.state for part in local.status().parts if part.name != "Kafka"}


def write(info: StackInfo) -> tuple[str, list[tuple[str, ...]]]:
    """Write through the URL of the stack; return the port that took it, and the states of standbys."""
    with psycopg.connect(info.database_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS things (thing integer)")
        connection.execute("INSERT INTO things VALUES (1)")
        return str(connection.info.port), connection.execute(
            "SELECT sync_state FROM pg_stat_replication WHERE application_name = 'tidewheel'"
        ).fetchall()


def test_standby_is_promoted_and_the_old_primary_follows_it(info: StackInfo, tmp_path: Path) -> None:
    plain = LocalStack(tmp_path / "home", bootstrap=info.bootstrap, client=info.kafka)
    local = LocalStack(tmp_path / "home", bootstrap=info.bootstrap, client=info.kafka, standby=True)
    given = LocalStack(tmp_path / "other", database_url=info.database_url, standby=True)
    both = {"PostgreSQL": PartState.RUNNING, "standby": PartState.RUNNING}
    try:
        with pytest.raises(StackError, match="--standby needs the stack's own"):
            given.up()
        plain.up()
        with pytest.raises(StackError, match="up --standby"):
            plain.fail_over()
        at = local.up()
        assert states(local) == both
        assert at.pgpass is not None
        assert len(at.pgpass.read_text().splitlines()) == 2
        named = conninfo_to_dict(at.database_url)
        assert named["target_session_attrs"] == "read-write"
        until(lambda: write(at)[1] == [("sync",)], "the standby confirms commits")
        first = write(at)[0]

        local.fail_over()
        assert states(local) == {"PostgreSQL": PartState.RUNNING, "standby": PartState.STOPPED}
        found = running_stack(local.home)
        assert found is not None
        assert found.database_url == at.database_url
        assert write(at) == (str(local.postgres.port), [])
        assert write(at)[0] != first
        assert plain.up() == at  # the stack keeps its standby
        assert states(local) == both
        until(lambda: write(at)[1] == [("sync",)], "the old primary confirms commits")

        psutil.Process(local.postgres.pid).kill()
        until(lambda: local.postgres.pid is None, "the primary is gone")
        local.standby.promote()  # by hand: the state does not know
        assert local.up() == at
        assert states(local) == both
        assert write(at)[0] == first

        local.down()
        assert set(states(local).values()) == {PartState.STOPPED}
        local.up()
        alone = LocalStack(local.home, bootstrap=info.bootstrap, client=info.kafka, standby=False)
        assert write(alone.up()) == (first, [])
        assert set(states(alone)) == {"PostgreSQL"}
    finally:
        plain.down(erase=True)
    assert [path.name for path in plain.home.iterdir()] == [".lock"]
