"""Migrations have no statement that locks or rewrites a table of a running installation for long."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures.releases import RELEASES, files_of
from tests.strict_types import ROOT
from tidewheel.migrations.runner import Migration, migrations

pytestmark = pytest.mark.process

FIRST = 5  # the migrations of the first release meet no rows
# What squawk leaves to a reviewer, as whole words at the beginning of a statement.
BANNED = re.compile(r"^\s*(VACUUM|CLUSTER|LOCK|TRUNCATE|REFRESH)\b", re.IGNORECASE | re.MULTILINE)
NOT_OURS = (
    "require-lock-timeout",  # the runner sets it
    "require-statement-timeout",
    "prefer-robust-stmts",  # a file is applied once
    "prefer-text-field", "prefer-bigint-over-int", "prefer-bigint-over-smallint", "prefer-identity",
)  # fmt: skip


def problems(path: Path) -> list[str]:
    """Return what is wrong with a migration."""
    squawk = shutil.which("squawk", path=str(Path(sys.executable).parent))
    assert squawk is not None, "make setup installs it"
    text = path.read_text()
    alone = text.startswith("-- outside a transaction\n")
    command = [squawk, "--reporter", "gcc", "--pg-version", "16", "--exclude", ",".join(NOT_OURS)]
    command += ["--no-assume-in-transaction" if alone else "--assume-in-transaction", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    dropping = ("ban-drop-column", "ban-drop-table", "renaming-column") if path.stem.endswith("_post") else ()
    found = [line for line in done.stdout.splitlines() if ": warning: " in line or ": error: " in line]
    kept = [line for line in found if not any(f" {rule} " in line for rule in dropping)]
    return kept + [f"{path.name}: {match[1]} locks a table for long" for match in BANNED.finditer(text)]


@pytest.mark.parametrize("migration", [m for m in migrations() if m.number > FIRST], ids=lambda m: m.name)
def test_migration_holds_no_lock_for_long(migration: Migration) -> None:
    assert problems(ROOT / "migrations" / migration.name) == []


def test_post_files_of_a_release_are_its_last() -> None:
    released = {Path(name).name for release in RELEASES for name in files_of(release, "migrations")}
    kinds = [migration.is_post for migration in migrations() if migration.name not in released]
    assert kinds == sorted(kinds), "the runner takes a `_post` file before another one for a file of an earlier release"


REFUSED = {
    "changing-column-type": "ALTER TABLE job_runs ALTER COLUMN priority TYPE bigint",
    "adding-not-nullable-field": "ALTER TABLE job_runs ALTER COLUMN payload SET NOT NULL",
    "adding-field-with-default": "ALTER TABLE job_runs ADD COLUMN other uuid DEFAULT gen_random_uuid()",
    "require-concurrent-index-creation": "CREATE INDEX other ON job_runs (priority)",
    "adding-foreign-key-constraint": "ALTER TABLE job_runs ADD FOREIGN KEY (job_id) REFERENCES jobs (job_id)",
    "constraint-missing-not-valid": "ALTER TABLE job_runs ADD CONSTRAINT other CHECK (priority > 1)",
    "disallowed-unique-constraint": "ALTER TABLE job_runs ADD UNIQUE (job_id)",
    "ban-drop-column": "ALTER TABLE job_runs DROP COLUMN priority",
    "VACUUM": "VACUUM FULL job_runs",
    "LOCK": "LOCK TABLE job_runs",
}
TAKEN = """
CREATE TABLE other (id bigint PRIMARY KEY, at timestamptz NOT NULL DEFAULT tidewheel_now());
CREATE INDEX other_at ON other (at);
ALTER TABLE job_runs ADD COLUMN other text, ADD COLUMN another int NOT NULL DEFAULT 0;
ALTER TABLE job_runs ADD CONSTRAINT other CHECK (another >= 0) NOT VALID;
CREATE OR REPLACE FUNCTION other() RETURNS int LANGUAGE sql RETURN 1;
"""


def test_each_kind_of_statement_is_known(tmp_path: Path) -> None:
    for number, (rule, statement) in enumerate(REFUSED.items()):
        path = tmp_path / f"{number}.sql"
        path.write_text(f"{statement};\n")
        assert any(rule in problem for problem in problems(path)), f"{rule}: {problems(path)}"
    (tmp_path / "taken.sql").write_text(TAKEN)
    assert problems(tmp_path / "taken.sql") == []
    alone = tmp_path / "alone.sql"
    alone.write_text("-- outside a transaction\nCREATE INDEX CONCURRENTLY other ON job_runs (priority);\n")
    assert problems(alone) == []
