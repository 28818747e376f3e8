"""The cells of the matrix, and the programs that each of them needs."""

import io
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory

from tidewheel.errors import StackError
from tidewheel.local.daemon import run_program
from tidewheel.local.jars import KAFKA_VERSION, fetch_jars
from tidewheel.local.postgres import find_programs

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent

_EMBEDDED = "18"
_DEBIAN = Path("/usr/lib/postgresql")
_RUNNING = f"{sys.version_info.major}.{sys.version_info.minor}"


@dataclass(frozen=True, slots=True)
class Cell:
    """The releases of one row: those of the first row, but for what its name has."""

    name: str
    postgres: str = _EMBEDDED
    kafka: str = "4.3"
    python: str = "3.11"


CELLS = (
    Cell("base"),
    Cell("postgres-15", postgres="15"),
    Cell("postgres-16", postgres="16"),
    Cell("postgres-17", postgres="17"),
    Cell("kafka-3.9", kafka="3.9"),
    Cell("kafka-4.0", kafka="4.0"),
    Cell("kafka-4.1", kafka="4.1"),
    Cell("python-3.12", python="3.12"),
    Cell("python-3.13", python="3.13"),
    Cell("python-3.14", python="3.14"),
    Cell("oldest", postgres="15", kafka="3.9"),
)


def manifest(program: str, release: str) -> Path | None:
    """Return the list of a release's jars; None of a release that is embedded, or Debian's."""
    return next(HERE.glob(f"{program}-{release}.*.sha256"), None)


def check_machine(cells: Sequence[Cell]) -> None:
    """Raise StackError with the remedy if this machine lacks a package of a cell."""
    for cell in cells:
        if _is_debians(cell) and not (_DEBIAN / cell.postgres / "bin/postgres").exists():
            what, remedy = f"Debian's PostgreSQL {cell.postgres}", f"run `apt-get install postgresql-{cell.postgres}`"
        elif _find_python(cell.python) is None:
            what, remedy = f"Python {cell.python}", f"put python{cell.python} on the PATH"
        else:
            continue
        raise StackError(f"the cell {cell.name} needs {what}: {remedy}, or name other cells by CELL=")


def downloads(cells: Sequence[Cell]) -> str:
    """Return what the cells download."""
    listed = {manifest(name, getattr(cell, name)) for cell in cells for name in ("postgres", "kafka")} - {None}
    jars = [f"{each.stem} ({15 if 'postgres' in each.stem else 45} MB)" for each in listed if each is not None]
    packages = {f"packages for Python {cell.python} (120 MB)" for cell in cells if cell.python != _RUNNING}
    return ", ".join([*sorted(jars), *sorted(packages)]) or "nothing"


@contextmanager
def postgres_programs(cell: Cell) -> Generator[Path | None]:
    """Yield the folder of initdb and postgres, which every user may run; None for the embedded ones."""
    listed = manifest("postgres", cell.postgres)
    if listed is None:
        yield _DEBIAN / cell.postgres / "bin" if _is_debians(cell) else None
        return
    [jar] = fetch_jars(listed)
    with TemporaryDirectory(prefix="tidewheel-matrix-") as folder, zipfile.ZipFile(jar) as files:
        Path(folder).chmod(0o755)
        [packed] = [name for name in files.namelist() if name.endswith(".txz")]
        with tarfile.open(fileobj=io.BytesIO(files.read(packed)), mode="r:xz") as archive:
            archive.extractall(folder)  # noqa: S202 - the jar has the checksum of its manifest
        yield Path(folder) / "bin"


def python_of(cell: Cell) -> str:
    """Return an interpreter with the locked set; make its environment if it is not there."""
    if cell.python == _RUNNING:
        return sys.executable
    folder = ROOT / "build/matrix" / f"python-{cell.python}"
    subprocess.run(["make", "setup", f"VENV={folder}", f"PYTHON={_find_python(cell.python)}"], cwd=ROOT, check=True)
    return str(folder / "bin/python")


def releases(cell: Cell, programs: Path | None, python: str) -> dict[str, str]:
    """Return the exact releases of a cell."""
    jars = manifest("kafka", cell.kafka)
    postgres = _printed(str((programs or find_programs(None)) / "postgres"))  # postgres (PostgreSQL) 15.18 (Debian …)
    kafka = jars.stem.rpartition("-")[2] if jars else KAFKA_VERSION
    return {"postgres": postgres.split()[2], "kafka": kafka, "python": _printed(python).split()[1]}


def _is_debians(cell: Cell) -> bool:
    return cell.postgres != _EMBEDDED and manifest("postgres", cell.postgres) is None


def _find_python(version: str) -> str | None:
    """Return an interpreter of this version that starts: a shim of pyenv may be on the PATH and not start."""
    name = f"python{version}"
    kept = map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/{name}"))
    found = [python for python in (which(name), *kept) if python and _printed(python).startswith(f"Python {version}.")]
    return sys.executable if version == _RUNNING else next(iter(found), None)


def _printed(program: str) -> str:
    return run_program([program, "--version"], cwd=ROOT).stdout
