"""The migrations and schemas of each release are never edited: they are those of its wheel."""

import zipfile
from hashlib import sha256
from pathlib import Path

import pytest

from tests.strict_types import ROOT

WHEELS = sorted((ROOT / "releases").glob("*.whl"))


def version_of(wheel: Path) -> str:
    return wheel.name.split("-")[1]


def test_wheels_are_those_of_their_checksums() -> None:
    lines = [f"{sha256(wheel.read_bytes()).hexdigest()}  {wheel.name}" for wheel in WHEELS]
    assert sorted((ROOT / "releases" / "SHA256SUMS").read_text().splitlines()) == sorted(lines)
    kept = sorted(path.name for path in (ROOT / "schemas" / "released").iterdir())
    assert sorted(map(version_of, WHEELS)) == kept, "each release has its wheel and its schemas"


@pytest.mark.parametrize("wheel", WHEELS, ids=version_of)
def test_migrations_and_schemas_of_a_release_are_not_edited(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = {name: archive.read(name) for name in archive.namelist()}
    migrations = {name.removeprefix("tidewheel/"): text for name, text in held.items() if "/migrations/0" in name}
    assert migrations
    for name, text in migrations.items():
        assert (ROOT / name).read_bytes() == text, f"{name} is released: write a new migration"
    folder = ROOT / "schemas" / "released" / version_of(wheel)
    top = "tidewheel/schemas/"
    schemas = {n.removeprefix(top): text for n, text in held.items() if n.endswith(".avsc") and n.count("/") == 2}
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == schemas
