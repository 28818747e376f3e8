"""The topic prefix is recorded once; another prefix is refused, and the default follows."""

import pytest

from tests.fixtures.database import Database
from tidewheel.errors import SettingsError
from tidewheel.settings.connections import Connections
from tidewheel.transitions.installation import read_installation, record_topic_prefix


def prefix(database: Database, **flags: object) -> str:
    with database.transaction() as connection:
        return read_installation(connection, Connections.load(**flags)).topics.prefix


def name(database: Database, **flags: object) -> None:
    with database.transaction() as connection:
        record_topic_prefix(connection, Connections.load(**flags))


def test_unrecorded_prefix_is_that_of_the_settings(database: Database) -> None:
    assert (prefix(database), prefix(database, topic_prefix="shop")) == ("tidewheel", "shop")


def test_first_recorded_prefix_holds_for_default_settings(database: Database) -> None:
    name(database, topic_prefix="shop")
    name(database, topic_prefix="store")
    assert (prefix(database), prefix(database, topic_prefix="shop")) == ("shop", "shop")


def test_other_prefix_is_refused_with_both_names(database: Database) -> None:
    name(database, topic_prefix="shop")
    with pytest.raises(SettingsError, match=r"TIDEWHEEL_TOPIC_PREFIX is 'store', but .* begin with 'shop'"):
        prefix(database, topic_prefix="store")


def test_prefix_of_the_environment_is_compared_too(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    name(database)
    monkeypatch.setenv("TIDEWHEEL_TOPIC_PREFIX", "store")
    with pytest.raises(SettingsError, match="'tidewheel'"):
        prefix(database)
