"""An installation of the wheel without any extra: what it has, and what names the extra that it lacks."""

import json
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import distribution
from pathlib import Path

import pytest

from tests.strict_types import ROOT

MOST_DIRECT, MOST_INSTALLED = 12, 30
RUNTIME, IMAGE, DEV = (ROOT / "requirements" / f"{name}.lock" for name in ("runtime", "image", "dev"))
LOCAL, API, CALENDARS = (f"pip install 'tidewheel[{extra}]'" for extra in ("local", "api", "calendars"))
START = f"no database: run `{LOCAL}`, then `tidewheel dev` or `tidewheel up`, or set TIDEWHEEL_DATABASE_URL"
CODE_OF_A_SERVICE = """
from importlib import import_module
from tidewheel import AsyncClient, Client, handler
from tidewheel.control.cli.commands import every_command
from tidewheel.control.supervise.child import CODE
commands = {each.path for _, each in every_command() if not each.extra}
for module in [*commands, *(code for role, code in CODE.items() if role != "api")]:
    import_module(module)
"""
INSTALLED = """
import json
from importlib.metadata import distributions
print(json.dumps([each.name.lower().replace("_", "-") for each in distributions()]))
"""
pytestmark = pytest.mark.process


def pins(lock: Path) -> dict[str, str]:
    """Return the locked packages of this platform, with their versions."""
    lines = [line.partition(";") for line in lock.read_text().splitlines() if re.match(r"[a-z]", line)]
    return dict(pin.strip(" \\").split("==") for pin, _, marker in lines if "win32" not in marker)


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with the wheel and its locked set, linked from this one."""
    folder = tmp_path_factory.mktemp("bare")
    build = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(folder), str(ROOT)]
    subprocess.run(build, stdout=subprocess.DEVNULL, check=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
    [site] = (folder / "venv" / "lib").glob("python*/site-packages")
    for name in pins(RUNTIME):
        files = distribution(name).files or []
        for top in {file.parts[0] for file in files} - {"..", "__pycache__"}:
            (site / top).symlink_to(str(distribution(name).locate_file(top)))
    python = str(folder / "venv" / "bin" / "python")
    [wheel] = folder.glob("*.whl")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-index", "--no-deps", str(wheel)]
    subprocess.run(pip, check=True)
    return Path(python).parent


def run(*command: str | Path, **more: str) -> subprocess.CompletedProcess[str]:
    named = {name: value for name, value in os.environ.items() if not name.startswith(("TIDEWHEEL_", "PG", "PYTHON"))}
    return subprocess.run(command, env={**named, **more}, cwd="/", capture_output=True, text=True, check=False)


def test_a_service_has_few_packages(bare: Path) -> None:
    installed = set(json.loads(run(bare / "python", "-c", INSTALLED).stdout))
    assert installed == {*pins(RUNTIME), "tidewheel"}
    assert len(installed) <= MOST_INSTALLED
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    direct = [re.split(r"[\[>]", each)[0] for each in project["dependencies"]]
    assert len(direct) <= MOST_DIRECT


def test_larger_sets_have_the_versions_of_smaller_ones() -> None:
    assert pins(RUNTIME).items() <= pins(IMAGE).items() <= pins(DEV).items()


def test_code_of_services_client_and_commands_needs_no_extra(bare: Path) -> None:
    done = run(bare / "python", "-W", "error", "-c", CODE_OF_A_SERVICE)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("command", "install"),
    [
        ("dev", LOCAL),
        ("up", LOCAL),
        ("down", LOCAL),
        ("service api", API),
        ("serve --roles scheduler,api", API),
        ("admin calendar put holidays --from holidays.ics", CALENDARS),
    ],
)
def test_a_command_names_the_extra_that_it_needs(bare: Path, command: str, install: str) -> None:
    done = run(bare / "tidewheel", *command.split())
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(rf"tidewheel: .* needs packages that are not installed: {re.escape(install)}\n", done.stderr)


@pytest.mark.landing
@pytest.mark.parametrize(
    ("command", "settings", "extra"),
    [
        ("service executor", {"TIDEWHEEL_TARGETS": "lambda", "TIDEWHEEL_LAMBDA_FUNCTIONS": "*"}, "lambda"),
        ("service scheduler", {"TIDEWHEEL_TRACES": "true"}, "telemetry"),
        ("admin archive verify", {"TIDEWHEEL_ARCHIVE": "s3://bucket"}, "s3"),
    ],
)
def test_a_setting_names_the_extra_that_it_needs(
    bare: Path, command: str, settings: dict[str, str], extra: str
) -> None:
    done = run(bare / "tidewheel", *command.split(), **settings)
    assert done.returncode == 1
    [variable, *_] = settings
    assert f"{variable}" in done.stderr
    assert f"needs packages that are not installed: pip install 'tidewheel[{extra}]'" in done.stderr


@pytest.mark.parametrize("command", ["job list", "status"])
def test_a_missing_database_names_the_extra_and_the_setting(bare: Path, command: str) -> None:
    done = run(bare / "tidewheel", *command.split())
    assert (done.returncode, done.stdout, done.stderr) == (3, "", f"tidewheel: {START}\n")
