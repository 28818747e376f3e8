"""One import name over real folders: the links, wheel and sdist, circles of imports, lock files."""

import subprocess
import sys
import tarfile
import zipfile
from graphlib import CycleError, TopologicalSorter
from hashlib import sha256
from pathlib import Path

import grimp
import pytest

from tests.strict_types import LINKED, ROOT

DATA = (
    "tidewheel/py.typed",
    ".sql",
    ".avsc",
    "tidewheel/schemas/json/request.json",
    "tidewheel/control/cli/commands.json",
    "tidewheel/control/client/async_client.pyi",
    ".sha256",
    "tidewheel/control/console/templates/parts/icons.svg",
    "tidewheel/control/console/static/tokens.css",
    "tidewheel/control/console/static/geist.woff2",
    "licenses/control/console/static/OFL-Geist.txt",
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, the wheel built from it, and both built from the tree."""
    folder = tmp_path_factory.mktemp("dist")
    build("--outdir", str(folder))
    build("--sdist", "--wheel", "--outdir", str(folder / "from-tree"))
    return folder


def build(*arguments: str) -> None:
    command = [sys.executable, "-m", "build", "--no-isolation", *arguments, str(ROOT)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]


def names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return sorted(archive.namelist())


@pytest.mark.parametrize("name", LINKED)
def test_link_points_to_the_folder_of_its_name(name: str) -> None:
    link = ROOT / "tidewheel" / name
    assert link.is_symlink()
    assert link.readlink() == Path("..") / name
    assert link.resolve() == ROOT / name
    assert (link / "__init__.py").is_file()


def test_checks_cover_every_link() -> None:
    assert {path.name for path in (ROOT / "tidewheel").iterdir() if path.is_symlink()} == set(LINKED)


def test_imports_make_no_circle_by_types_neither() -> None:
    graph = grimp.build_graph("tidewheel", cache_dir=None)  # with imports in functions, and for type checkers alone
    assert len(graph.modules) > 400
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


@pytest.mark.process
def test_wheel_contains_one_import_name_and_all_data(built: Path) -> None:
    [wheel] = built.glob("*.whl")
    held = names(wheel)
    tops = {name.split("/")[0] for name in held}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"tidewheel"}
    for part in DATA:
        assert any(part in name for name in held), part
    assert len(held) == len(set(held))
    assert not [name for name in held if "__pycache__" in name or name.endswith(".pyc")]


@pytest.mark.process
def test_wheel_contains_every_module(built: Path) -> None:
    [wheel] = built.glob("*.whl")
    folders = [("tidewheel", ROOT / "tidewheel"), *((f"tidewheel/{name}", ROOT / name) for name in LINKED)]
    there = {f"{name}/{path.relative_to(folder)}" for name, folder in folders for path in folder.rglob("*.py")}
    assert there <= set(names(wheel))


@pytest.mark.process
def test_sdist_and_wheel_are_built_again_byte_for_byte(built: Path) -> None:
    [from_sdist], [from_tree] = built.glob("*.whl"), (built / "from-tree").glob("*.whl")
    assert names(from_sdist) == names(from_tree)
    again = {path.name: sha256(path.read_bytes()).hexdigest() for path in (built / "from-tree").iterdir()}
    assert {path.name: sha256(path.read_bytes()).hexdigest() for path in built.glob("*.*")} == again


@pytest.mark.process
def test_sdist_contains_sources_only(built: Path) -> None:
    [sdist] = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "LICENSE", "README.md", "scheduler/__init__.py"} <= held
    assert not [name for name in held if name.startswith((".venv", ".git/", "dist/")) or "__pycache__" in name]


def test_lock_files_name_no_location_and_hash_every_package() -> None:
    for lock in (ROOT / "requirements").glob("*.lock"):
        lines = [line for line in lock.read_text().splitlines() if line and not line.startswith("#")]
        assert not [line for line in lines if "://" in line or line.startswith("--")], lock.name
        pins = [line for line in lines if not line.startswith(" ")]
        assert pins
        assert all("==" in line and line.endswith("\\") for line in pins), lock.name
