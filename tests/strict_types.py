"""Run pyright over everything, once, and see that it looked at everything.

It skips in silence what its configuration does not name (and follows no links), then says "0 errors".
"""

import json
import subprocess
import sys
from pathlib import Path

import typer
from pydantic import BaseModel, Field

ROOT = Path(__file__).parents[1]
# In tidewheel/, by links.
LINKED = ("scheduler", "relay", "executor", "schemas", "migrations", "intake", "control")
FOLDERS = ("tidewheel", *LINKED, "tools", "examples/demo", "tests")


class _Position(BaseModel):
    line: int


class _Range(BaseModel):
    start: _Position


class _Finding(BaseModel):
    file: Path
    severity: str
    message: str
    rule: str = ""
    range: _Range = _Range(start=_Position(line=0))

    def __str__(self) -> str:
        place = self.file.relative_to(ROOT) if self.file.is_relative_to(ROOT) else self.file
        return f"{place}:{self.range.start.line + 1}: {self.severity}: {self.message} ({self.rule})"


class _Summary(BaseModel):
    files: int = Field(alias="filesAnalyzed")
    errors: int = Field(alias="errorCount")


class Report(BaseModel):
    """The report of pyright's ``--outputjson``."""

    findings: list[_Finding] = Field(alias="generalDiagnostics")
    summary: _Summary


def main() -> int:
    """The exit code: 0 when there is no error and no file was left out."""
    report = run_pyright()
    for finding in report.findings:
        typer.echo(finding)
    there = count_files()
    typer.echo(f"pyright: {report.summary.files} files of {there}, {report.summary.errors} errors")
    if report.summary.files < there:
        typer.echo("pyright left files out: name their folder in [tool.pyright] include")
    return int(report.summary.errors > 0 or report.summary.files < there)


def run_pyright() -> Report:
    """All that pyright finds under the configuration of pyproject.toml."""
    command = [sys.executable, "-m", "pyright", "--outputjson"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    return Report.model_validate(json.loads(done.stdout[done.stdout.index("{") :]))


def count_files() -> int:
    """Return the number of Python files in the real folders; links lead to files counted already."""
    return sum(1 for folder in FOLDERS for path in (ROOT / folder).rglob("*.py") if not path.parent.is_symlink())


if __name__ == "__main__":
    sys.exit(main())
