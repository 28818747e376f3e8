"""The migrations and schemas of each release are never edited."""

from pathlib import PurePath

import pytest

from tests.fixtures.releases import RELEASES, Release, files_of
from tests.strict_types import ROOT

pytestmark = pytest.mark.process


def test_each_release_has_its_schemas() -> None:
    kept = sorted(path.name for path in (ROOT / "schemas" / "released").iterdir())
    assert [release.version for release in RELEASES] == kept


@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.version)
def test_migrations_and_schemas_of_a_release_are_not_edited(release: Release) -> None:
    held = files_of(release, "migrations", "schemas")
    migrations = {name: text for name, text in held.items() if name.startswith("migrations/0")}
    assert migrations
    for name, text in migrations.items():
        assert (ROOT / name).read_bytes() == text, f"{name} is released: write a new migration"
    folder = ROOT / "schemas" / "released" / release.version
    schemas = {
        PurePath(n).name: text for n, text in held.items() if PurePath(n).match("schemas/*.avsc") and n.count("/") == 1
    }
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == schemas
