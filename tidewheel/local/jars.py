"""Jars, such as the broker's: fetched once, verified by checksum, shared by all stacks of a user.

Invariant: a file gets its final name only after its SHA-256 was verified. A fetch writes elsewhere and then renames.
An interrupted fetch therefore leaves whole jars and nothing else, and the next fetch continues from there. Cached jars
are hashed each time: all of them take 0.04 s.
"""

import hashlib
import os
import shutil
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import platformdirs

from tidewheel.errors import StackError
from tidewheel.local.daemon import Progress, Step, in_silence
from tidewheel.local.state import locked

if TYPE_CHECKING:
    from jgo.maven import MavenContext

KAFKA_VERSION = "4.3.1"
CACHE_VARIABLE = "TIDEWHEEL_CACHE_DIR"
REPOSITORY_VARIABLE = "TIDEWHEEL_MAVEN_REPOSITORY"  # URL of a mirror, where the public one cannot be reached

MANIFEST = Path(__file__).with_name(f"kafka-{KAFKA_VERSION}.sha256")
"""The broker's jars; `make matrix` has those of other releases."""

_TOTAL_BYTES = 45_035_715  # of all jars in the manifest, for the progress display
_FETCHERS = 4  # the jars are many and small: one at a time took three times as long
_TRIES = 3  # a connection that breaks half-way is tried again before the error is raised
_PAUSE_SECONDS = 0.5


def broker_jars(progress: Progress = in_silence) -> tuple[Path, ...]:
    """Return every jar of the broker, as `fetch_jars` does."""
    return fetch_jars(MANIFEST, progress)


def fetch_jars(manifest: Path, progress: Progress = in_silence) -> tuple[Path, ...]:
    """Return every jar of a manifest, verified; fetch missing or damaged ones, or raise StackError."""
    folder = default_cache() / manifest.stem
    jars = read_manifest(manifest)
    if not all(_is_whole(folder, jar) for jar in jars):
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder / ".lock"):
            _complete(folder, jars, progress)
    return tuple(folder / jar.name for jar in jars)


def default_cache() -> Path:
    """Return the folder of the jars: `TIDEWHEEL_CACHE_DIR`, else the user's cache folder."""
    named = os.environ.get(CACHE_VARIABLE)
    return Path(named) if named else platformdirs.user_cache_path("tidewheel")


@dataclass(frozen=True, slots=True)
class Jar:
    """One line of the manifest: a path in a Maven repository, and its SHA-256 in hexadecimal."""

    path: PurePosixPath
    sha256: str

    @property
    def name(self) -> str:
        """The file's name."""
        return self.path.name


def read_manifest(manifest: Path = MANIFEST) -> tuple[Jar, ...]:
    """Return the jars of a committed manifest, in class path order."""
    lines = (line.split() for line in manifest.read_text().splitlines() if not line.startswith("#"))
    return tuple(Jar(PurePosixPath(path), sha256) for sha256, path in lines)


def _complete(folder: Path, jars: Sequence[Jar], progress: Progress) -> None:
    missing = [jar for jar in jars if not _is_whole(folder, jar)]
    for jar in missing:
        (folder / jar.name).unlink(missing_ok=True)
    have_bytes = sum((folder / jar.name).stat().st_size for jar in jars if jar not in missing)
    _Fetch(folder, progress, have_bytes).run(missing)


def _is_whole(folder: Path, jar: Jar) -> bool:
    path = folder / jar.name
    return path.is_file() and _digest(path) == jar.sha256


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class _Fetch:
    """One fetch of several jars, holding the cache's lock."""

    def __init__(self, folder: Path, progress: Progress, have_bytes: int) -> None:
        self._folder = folder
        self._staging = folder / ".fetching"
        self._progress = progress
        self._done_bytes = have_bytes
        self._guard = threading.Lock()

    def run(self, jars: Sequence[Jar]) -> None:
        """Fetch, verify and move each; the first that fails ends the fetch."""
        from jgo.maven import MavenContext, PythonResolver  # half a second, and needed once only

        shutil.rmtree(self._staging, ignore_errors=True)
        mirror = os.environ.get(REPOSITORY_VARIABLE)
        repository = MavenContext(
            resolver=PythonResolver(progress_callback=self._counting),
            repo_cache=self._staging,
            remote_repos={"mirror": mirror} if mirror else None,
            timeout=30,
        )
        pool = ThreadPoolExecutor(_FETCHERS)
        try:
            for moved in [pool.submit(self._one, repository, jar) for jar in jars]:
                moved.result()
        finally:
            pool.shutdown(cancel_futures=True)
            shutil.rmtree(self._staging, ignore_errors=True)

    def _one(self, repository: "MavenContext", jar: Jar) -> None:
        fetched = self._download(repository, jar)
        if _digest(fetched) != jar.sha256:
            fetched.unlink()
            raise StackError(
                f"{jar.name} was fetched with a wrong checksum and was deleted. "
                "Run `tidewheel up` again; if this repeats, the server alters the jars"
            )
        fetched.replace(self._folder / jar.name)

    def _download(self, repository: "MavenContext", jar: Jar, tries: int = _TRIES) -> Path:
        *group, artifact, version, _ = jar.path.parts
        self._staging.joinpath(*jar.path.parts).unlink(missing_ok=True)  # half of it, from the try before
        try:
            return repository.project(".".join(group), artifact).at_version(version).artifact().resolve()
        except OSError as error:  # those of requests too, which carry no errno
            if error.errno is not None:
                raise StackError(f"{jar.name} cannot be written to {self._staging}: {error.strerror}") from error
            if tries == 1:
                raise StackError(_unreachable(jar, error)) from error
            threading.Event().wait(_PAUSE_SECONDS)
            return self._download(repository, jar, tries - 1)
        except RuntimeError as error:  # what jgo raises for any answer but 200
            raise StackError(f"the broker's jars cannot be fetched: {jar.name} is refused or missing") from error

    @contextmanager
    def _counting(self, name: str, size: int) -> Generator[Callable[[int], None]]:
        del size
        yield lambda count: self._count(name, count)

    def _count(self, name: str, count: int) -> None:
        with self._guard:
            self._done_bytes += count
            done = min(self._done_bytes, _TOTAL_BYTES)  # a second try counts its bytes again
            self._progress(Step("fetching the broker's jars", done, _TOTAL_BYTES, name))


def _unreachable(jar: Jar, error: Exception) -> str:
    return (
        f"no network: {jar.name} could not be fetched ({type(error).__name__}). The embedded broker needs its "
        f"{_TOTAL_BYTES // 1_000_000} MB of jars once; run `tidewheel up` once with network, name a mirror in "
        f"{REPOSITORY_VARIABLE}, or point TIDEWHEEL_KAFKA_BOOTSTRAP at a broker"
    )
