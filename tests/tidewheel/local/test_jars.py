import shutil
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tidewheel.errors import StackError
from tidewheel.local.daemon import Step
from tidewheel.local.jars import CACHE_VARIABLE, REPOSITORY_VARIABLE, Jar, broker_jars, read_manifest

NOBODY_LISTENS = "http://127.0.0.1:1"


@pytest.fixture(scope="module")
def fetched() -> tuple[Path, ...]:
    """The jars in the user's own cache, fetched if this machine has never had them."""
    return broker_jars()


@pytest.fixture
def cache(fetched: tuple[Path, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A private cache with all jars, their verification included."""
    folder = fetched[0].parent
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    shutil.copytree(folder, tmp_path / "cache" / folder.name, ignore=shutil.ignore_patterns(".*"))
    return tmp_path / "cache"


@pytest.fixture
def mirror(fetched: tuple[Path, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder served as the Maven repository; empty at first."""
    folder = tmp_path / "mirror"
    folder.mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv(REPOSITORY_VARIABLE, f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        yield folder
        server.shutdown()
        thread.join()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        del format, args


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(REPOSITORY_VARIABLE, raising=False)
    for variable in ("HTTPS_PROXY", "HTTP_PROXY", "https_proxy", "http_proxy"):
        monkeypatch.setenv(variable, NOBODY_LISTENS)
    for variable in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(variable, raising=False)


def publish(mirror: Path, jar: Jar, source: Path, change: Callable[[bytes], bytes] = bytes) -> None:
    target = mirror / jar.path
    target.parent.mkdir(parents=True)
    target.write_bytes(change(source.read_bytes()))


def test_manifest_lists_every_jar_by_its_name(fetched: tuple[Path, ...]) -> None:
    assert [path.name for path in fetched] == [jar.name for jar in read_manifest()]
    assert len(set(fetched)) == 46


@pytest.mark.usefixtures("offline")
def test_verified_cache_needs_no_network(cache: Path) -> None:
    shown: list[Step] = []
    assert len(broker_jars(shown.append)) == 46
    assert shown == []


@pytest.mark.usefixtures("offline")
def test_offline_with_an_empty_cache_is_refused_with_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    with pytest.raises(StackError, match=r"no network: .*\.jar .*tidewheel up.*TIDEWHEEL_KAFKA_BOOTSTRAP"):
        broker_jars()


@pytest.mark.usefixtures("offline")
def test_truncated_jar_is_deleted_and_named_if_offline(cache: Path) -> None:
    [damaged] = cache.glob("*/lz4-java-*.jar")
    damaged.write_bytes(damaged.read_bytes()[:1000])
    with pytest.raises(StackError, match=damaged.name):
        broker_jars()
    assert not damaged.exists()


def test_interrupted_fetch_continues_with_missing_jars(cache: Path, mirror: Path, fetched: tuple[Path, ...]) -> None:
    jar, source = read_manifest()[3], fetched[3]
    publish(mirror, jar, source)
    [folder] = cache.iterdir()
    (folder / jar.name).unlink()
    (folder / ".fetching").mkdir()  # what a fetch leaves that was killed
    (folder / ".fetching" / jar.name).write_bytes(b"half a jar")
    shown: list[Step] = []
    assert (broker_jars(shown.append)[3]).read_bytes() == source.read_bytes()
    assert shown[-1].done_bytes == shown[-1].total_bytes
    assert not (folder / ".fetching").exists()


def test_altered_jar_is_refused_by_name(cache: Path, mirror: Path, fetched: tuple[Path, ...]) -> None:
    jar, source = read_manifest()[3], fetched[3]
    publish(mirror, jar, source, lambda content: content[:-1] + b"?")
    [folder] = cache.iterdir()
    (folder / jar.name).unlink()
    with pytest.raises(StackError, match=f"{jar.name} .*checksum"):
        broker_jars()
    assert not (folder / jar.name).exists()


def test_concurrent_fetches_leave_complete_jars(cache: Path, mirror: Path, fetched: tuple[Path, ...]) -> None:
    [folder] = cache.iterdir()
    for jar, source in list(zip(read_manifest(), fetched, strict=True))[:8]:
        publish(mirror, jar, source)
        (folder / jar.name).unlink()
    results: list[tuple[Path, ...]] = []
    threads = [threading.Thread(target=lambda: results.append(broker_jars())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 2
    assert [path.stat().st_size for path in results[0]] == [path.stat().st_size for path in fetched]
