"""News that a page has changed: who hears them, what a look costs, and what ends a stream."""

import threading
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from http import HTTPStatus

import httpx
import pytest

from tests.control.api.answering import NO_ROOTS, answering
from tests.control.console.pages import console, form_of, key_of, signed_console, signed_in
from tests.fixtures.acts import about
from tests.fixtures.database import Database
from tests.fixtures.services import until
from tidewheel.control.api import streams
from tidewheel.control.console import live
from tidewheel.ids import job_id
from tidewheel.postgres.session import Conn


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "_LOOK_SECONDS", 0.05)
    monkeypatch.setattr(live, "_BEAT_SECONDS", 0.3)
    monkeypatch.setattr(live, "_APART_SECONDS", 0.01)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[streams.Watched]:
    """Each look of the console, as it is made."""
    made: list[streams.Watched] = []

    def read(connection: Conn, tenant: str, watched: streams.Watched) -> object:
        made.append(watched)
        return streams.read_pulses(connection, tenant, watched)

    monkeypatch.setattr(live, "read_pulses", read)
    return made


@contextmanager
def watching(client: httpx.Client, topics: str) -> Generator[Iterator[str]]:
    """The names of the events of a stream after the first look."""
    with client.stream("GET", f"/live?topics={topics}") as answer:
        assert answer.status_code == HTTPStatus.OK
        events = (line.removeprefix("event: ") for line in answer.iter_lines() if line.startswith("event: "))
        assert next(events) == "beat"
        assert next(each for each in events if each != "beat") == "changed", "its page may be older than the first look"
        yield events


def news(events: Iterator[str]) -> str:
    """Return the next event that is no beat."""
    return next(event for event in events if event != "beat")


def test_page_hears_of_its_topics_alone(database: Database, looks: list[streams.Watched]) -> None:
    database.submit("mine")
    database.submit("other")
    mine = database.begun("mine")
    with answering(database) as client:
        for topics in ("now", f"run:{mine.run_id}", f"job:{job_id('default', 'mine')}"):
            with watching(client, topics) as events:
                if topics != "now":
                    database.trigger("other")
                    assert [next(events), next(events)] == ["beat", "beat"]
                if topics == "now":
                    database.trigger("other")
                elif topics.startswith("run"):
                    database.succeed(mine)
                else:
                    database.apply_batch(about("job.pause", "mine"))
                assert news(events) == "changed"


def test_run_that_begins_and_ends_between_looks_is_news(database: Database, looks: list[streams.Watched]) -> None:
    database.submit()
    with answering(database) as client, watching(client, "now") as events:
        database.succeed(database.begun())
        assert news(events) == "changed"


def test_look_is_one_for_all_and_none_without_watchers(database: Database, looks: list[streams.Watched]) -> None:
    topics = f"now,run:{begun_one(database)},job:{job_id('default', 'job')}"
    with answering(database) as client:
        assert not looks
        with watching(client, topics) as first, watching(client, topics) as second, watching(client, "now") as third:
            streams = (first, second, third)
            database.trigger()
            assert [news(each) for each in streams] == ["changed"] * 3
        assert all(len(look.runs) <= 1 for look in looks)
        until(lambda: rests(looks), "no look without a watcher")


def rests(looks: list[streams.Watched]) -> bool:
    """Return True if no look is made for twenty times the time between two."""
    before = len(looks)
    threading.Event().wait(1.0)
    return len(looks) == before


def begun_one(database: Database) -> object:
    database.submit(overlap="allow_all")
    return database.begun().run_id


def test_look_has_three_statements_for_all_that_a_tenant_watches(database: Database) -> None:
    run = begun_one(database)
    executed: list[object] = []

    class Counting:
        def __init__(self, connection: Conn) -> None:
            self._connection = connection

        def execute(self, *statement: object) -> object:
            executed.append(statement[0])
            return self._connection.execute(*statement)  # type: ignore[call-overload]

    with database.transaction() as connection:
        watched = streams.Watched(now=True, runs=[run] * 30, jobs=[job_id("default", "job")] * 20)  # type: ignore[list-item]
        found = streams.read_pulses(Counting(connection), "default", watched)  # type: ignore[arg-type]
    assert set(found) == {"now", f"run:{run}", f"job:{job_id('default', 'job')}"}
    assert len(executed) == 3


def test_revoked_key_ends_the_stream_and_says_so(database: Database) -> None:
    with signed_console(database) as client, watching(client, "now") as events:
        [key] = database.client.api_keys.list()
        database.client.api_keys.revoke(key.key_id)
        assert news(events) == "gone"
        assert list(events) == []


def test_sign_out_ends_the_stream_and_says_so(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "_BEAT_SECONDS", 30.0)  # no beat comes while a busy machine signs out
    with signed_console(database) as client:
        form = form_of(client.get("/"))
        with watching(client, "now") as events:
            assert client.post("/sign-out", data=form).status_code == HTTPStatus.SEE_OTHER
            assert next(events) == "gone", "before the next beat"
            assert list(events) == []


def test_stream_needs_a_sign_in_and_known_topics(database: Database) -> None:
    with console(database) as client:
        assert client.get("/live?topics=now").headers["location"].startswith("/sign-in")
        signed_in(client, key_of(database))
        for topics in ("", "then", "run:1", ",".join(f"run:00000000-0000-0000-0000-{at:012}" for at in range(61))):
            assert client.get(f"/live?topics={topics}").status_code == HTTPStatus.UNPROCESSABLE_ENTITY, topics


def test_key_of_a_tenant_hears_nothing_of_another(database: Database, looks: list[streams.Watched]) -> None:
    database.execute("INSERT INTO tenants (tenant) VALUES ('acme')")
    database.submit()
    run = database.begun()
    with signed_console(database, tenant="acme") as client, watching(client, f"now,run:{run.run_id}") as events:
        database.succeed(run)
        assert [next(events), next(events)] == ["beat", "beat"]


def test_watchers_beyond_the_share_of_a_tenant_are_refused(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    database.execute("INSERT INTO tenants (tenant) VALUES ('acme')")
    monkeypatch.setattr(live, "_OF_KEY", 2)
    monkeypatch.setattr(live, "_WATCHERS", 6)
    with console(database) as client, ExitStack() as streams:
        for opened, answer in ((2, "has 2 open live pages"), (1, "default has 3 open live pages")):
            client.cookies.clear()
            signed_in(client, key_of(database))
            for _ in range(opened):
                streams.enter_context(watching(client, "now"))
            refused = client.get("/live?topics=now")
            assert refused.status_code == HTTPStatus.SERVICE_UNAVAILABLE
            assert answer in refused.text
        client.cookies.clear()
        signed_in(client, key_of(database, tenant="acme"))
        streams.enter_context(watching(client, "now"))


def test_news_go_to_one_page_after_the_other(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    database.submit()
    with answering(database) as client, ExitStack() as streams:
        pages = [streams.enter_context(watching(client, "now")) for _ in range(3)]
        monkeypatch.setattr(live, "_APART_SECONDS", 3600.0)
        database.trigger()
        heard = list[str]()
        while "changed" not in heard:
            heard += [next(each) for each in pages]
        heard += [next(each) for each in pages]
        assert heard.count("changed") == 1


def test_error_of_a_look_ends_the_stream_and_the_next_one_looks_again(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(connection: Conn, tenant: str, watched: streams.Watched) -> object:
        raise LookupError(tenant)

    with answering(database) as client:
        with monkeypatch.context() as patch:
            patch.setattr(live, "read_pulses", fail)
            with client.stream("GET", "/live?topics=now") as answer:
                assert "event: changed" not in list(answer.iter_lines())
        with watching(client, "now") as events:
            trigger_new(database)
            assert news(events) == "changed"


def trigger_new(database: Database) -> None:
    database.submit()
    database.trigger()


def test_looks_name_the_tenant(database: Database) -> None:
    run = begun_one(database)
    watched = streams.Watched(now=False, runs=[run], jobs=[job_id("default", "job")])  # type: ignore[list-item]
    with database.transaction() as connection:  # of the owner, whom row-level security does not bind
        assert len(streams.read_pulses(connection, "default", watched)) == 2
        assert streams.read_pulses(connection, "acme", watched) == {}


def test_stop_ends_every_stream(database: Database) -> None:
    with answering(database) as client:
        ended = threading.Event()
        opened = threading.Event()

        def follow() -> None:
            with (
                httpx.Client(base_url=client.base_url, verify=NO_ROOTS, timeout=60) as own,
                watching(own, "now") as events,
            ):
                opened.set()
                assert set(events) <= {"beat"}
            ended.set()

        threading.Thread(target=follow).start()
        assert opened.wait(30)
    assert ended.wait(30)
