"""The form of the changelog: the newest release first, each with its date, upgrade and entries."""

import re
import tomllib
from datetime import date
from itertools import pairwise

from tests.strict_types import ROOT

RELEASE = re.compile(r"## \[(\d+)\.(\d+)\.(\d+)\] - (unreleased|\d{4}-\d\d-\d\d)")
UPGRADE = "### Upgrade"  # its steps, and the releases that one can roll back to


def releases() -> list[tuple[str, list[str]]]:
    """Return each release: its heading, and the lines below it that are not empty."""
    _, *parts = re.split(r"^(?=## )", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    return [(part.splitlines()[0], [line for line in part.splitlines()[1:] if line]) for part in parts]


def test_releases_are_dated_and_in_order_and_the_newest_is_this_one() -> None:
    found = [RELEASE.fullmatch(heading) for heading, _ in releases()]
    assert all(found), [heading for heading, _ in releases()]
    numbers = [tuple(map(int, match.groups()[:3])) for match in found if match]
    assert numbers == sorted(set(numbers), reverse=True)
    days = [match[4] for match in found if match]
    assert "unreleased" not in days[1:], "one release at a time is under way"
    dated = [date.fromisoformat(day) for day in days if day != "unreleased"]
    assert dated == sorted(dated, reverse=True)
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert ".".join(map(str, numbers[0])) == version.partition(".dev")[0]
    assert (".dev" in version) == (days[0] == "unreleased")


def test_release_has_a_summary_an_upgrade_and_entries_below_headings() -> None:
    for heading, lines in releases():
        assert lines[0][0].isupper(), f"{heading}: a sentence for the operator comes first"
        assert lines[0].endswith("."), heading
        sections = [line for line in lines if line.startswith("#")]
        assert all(line.startswith("### ") for line in sections), heading
        assert len(sections) == len(set(sections)), heading
        assert heading == releases()[-1][0] or UPGRADE in sections, f"{heading}: `{UPGRADE}` has steps and roll-backs"
        for before, line in pairwise(lines):
            assert line.startswith(("### ", "- ", "  ")), f"{heading}: {line}"
            assert not (before.startswith("#") and not line.startswith("- ")), f"{heading}: no entry below {before}"
            assert not line.startswith(("### ", "- ")) or before.startswith("#") or before.endswith("."), before
        assert lines[-1].endswith("."), lines[-1]
