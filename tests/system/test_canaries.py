"""No secret leaves its channel: canaries everywhere, and HTTP secrets at their own hosts."""

import json
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast
from uuid import UUID, uuid4

import httpx
import pytest
from psycopg.conninfo import conninfo_to_dict
from psycopg.types.json import Jsonb

from tests.control.cli.command import tidewheel
from tests.executor.http_target import HttpTarget, serving
from tests.fixtures.services import Fleet, Service
from tests.system.canaries import Canaries, Found, echoing, in_database, in_files, in_topics
from tests.system.test_pgbouncer import get
from tidewheel.control.client.client import Client
from tidewheel.ids import job_id
from tidewheel.local.stack import StackInfo
from tidewheel.schemas.codec import decode, encode, encode_fields
from tidewheel.schemas.generated.records import (
    JobDefinition,
)

RETRY = {"max_attempts": 2, "initial": "50ms", "jitter": "0%"}
PATHS = ("200", "400", "500", "302", "202", "redirect", "garbage", "cut", "reason")
COMMANDS = (
    ("job", "list"),
    ("run", "list"),
    ("dlq", "list"),
    ("work", "list"),
    ("admin", "calendar", "list"),
)


@dataclass
class Site:
    """The services, with a canary in each channel."""

    fleet: Fleet
    info: StackInfo
    canaries: Canaries
    services: dict[str, Service]
    url: str

    def by_nature(self) -> set[Found]:
        """Return the places that have a canary by nature: what users wrote, and the key's own row."""
        runs = self.fleet.topics.runs("default", "standard").removeprefix(self.fleet.topics.prefix + ".")
        return {
            Found("literal header of an older job", "table job_versions"),
            Found("literal header of an older job", f"topic {runs}"),
            Found("refused header", "topic requests"),
            Found("user of a refused URL", "topic requests"),
            Found("key of task tokens", "table task_token_keys"),
        }

    def everything(self) -> Iterator[tuple[str, bytes]]:
        """Return all that the processes have put out so far."""
        yield from in_database(self.fleet.database)
        yield from in_topics(self.fleet)
        yield from in_files(self.fleet.folder)
        yield from in_files(self.info.data_dir / "logs")
        yield from self.commands()
        yield from self.responses()

    def commands(self) -> Iterator[tuple[str, bytes]]:
        """Return the output of commands, and the reprs of what the client returns."""
        database = self.fleet.database
        with Client(database.url) as client:
            jobs = [key for (key,) in database.rows("SELECT key FROM jobs ORDER BY key")]
            runs = [str(run) for (run,) in database.rows("SELECT run_id FROM finished_runs")]
            letters = [number for (number,) in database.rows("SELECT id FROM dead_letters")]
            calls: list[tuple[object, ...]] = [*COMMANDS]
            calls += [("job", verb, key) for key in jobs for verb in ("show", "versions", "next")]
            calls += [("run", verb, run) for run in runs for verb in ("show", "attempts", "where", "logs")]
            calls += [("dlq", "show", number) for number in letters]
            for call in calls:
                for output in ("text", "json"):
                    done = tidewheel(database, *call, "--output", output)
                    yield f"command {call[0]} {call[1]}", (done.out + done.err).encode()
            yield "client", repr([client, *(client.versions(key) for key in jobs)]).encode()
            yield "client", repr([client.runs.get(UUID(run)) for run in runs]).encode()

    def responses(self) -> Iterator[tuple[str, bytes]]:
        """Return what the services respond by HTTP."""
        for role, service in self.services.items():
            for path in ("/metrics", "/readyz", "/healthz"):
                yield f"{role} {path}", str(get(service, path)).encode()


@pytest.fixture
def site(fleet: Fleet, info: StackInfo, tmp_path: Path) -> Iterator[Site]:
    """Every service, with canaries in its settings and files."""
    own = {
        name: f"canary-{number}-{uuid4().hex}"
        for number, name in enumerate(
            (
                "secret of the environment",
                "secret of a file",
                "literal header of an older job",
                "refused header",
                "user of a refused URL",
                "database password of a command",
                "token of the API",
            )
        )
    }
    webhook = uuid4().hex.encode()
    canaries = Canaries(
        own
        | {
            "database password": str(conninfo_to_dict(fleet.database.url)["password"]),
            "password of a role": str(conninfo_to_dict(fleet.database.url_of("relay"))["password"]),
            "Kafka password": fleet.kafka["sasl.password"],
            "webhook secret": webhook,
            "key of task tokens": cast("bytes", fleet.database.value("SELECT secret FROM task_token_keys")),
        }
    )
    folder = tmp_path / "secrets"
    (folder / "default").mkdir(parents=True)
    (folder / "default/FILED").write_text(own["secret of a file"])
    (folder / "default/FILED.hosts").write_text("127.0.0.1\n")
    settings = {
        "METRICS_PORT": "0",
        "HTTP_ALLOW_PRIVATE": "true",
        "HANDLERS": "tests.system.canary_handlers",
        "SECRET_NAMED": f"127.0.0.1=Bearer {own['secret of the environment']}",
        "SECRETS_DIR": str(folder),
        "WEBHOOK_SECRETS": f"127.0.0.1=whsec_{b64encode(webhook).decode()}",
    }
    with echoing() as url:
        services = fleet.start_all(**settings)
        services["api"] = fleet.start("api", API_TOKEN=own["token of the API"], API_PORT="0", METRICS_PORT="0")
        fleet.wait_started()
        yield Site(fleet, info, canaries, {str(role): service for role, service in services.items()}, url)


@pytest.mark.postgres
@pytest.mark.kafka
@pytest.mark.slow
def test_no_canary_leaves_its_channel(site: Site) -> None:
    """Runs succeed, fail and are dead-lettered at receivers that repeat all they get.

    Then every row, message, log line, output and response is searched. At the end a canary is planted in each kind of
    place, and the same search finds it.
    """
    fleet, database = site.fleet, site.fleet.database
    named = {"Authorization": {"secret": "NAMED"}, "X-Api-Key": {"secret": "FILED"}}
    jobs = {path: target(f"{site.url}/{path}", **named) for path in PATHS}
    jobs["202"] |= {"async": True, "async_timeout": "1s"}
    jobs |= {"old": target(f"{site.url}/400", **{"X-Old": "1"}), "confess": "confess"}
    for key, called in jobs.items():
        fleet.ask({"type": "job.submit", "job": {"key": key, "schedule": "manual", "target": called, "retry": RETRY}})
    refused = text_of(site, "refused header"), text_of(site, "user of a refused URL")
    for number, called in enumerate(
        (
            target(f"{site.url}/200", Authorization=f"Bearer {refused[0]}"),
            target(f"http://ann:{refused[1]}@127.0.0.1/"),
            target(f"ftp://ann:{refused[1]}@127.0.0.1/"),
        )
    ):
        fleet.ask({"type": "job.submit", "job": {"key": f"no-{number}", "schedule": "manual", "target": called}})
    fleet.flush()
    fleet.until(lambda: database.value("SELECT count(*) FROM jobs") == len(jobs), "the jobs are there")
    put_literal(site, "old")
    for key in jobs:
        fleet.ask({"type": "job.trigger", "key": key})
    fleet.flush()
    ended = "SELECT count(*) FROM finished_runs"
    fleet.until(lambda: database.value(ended) == len(jobs) and fleet.settled(), "every run has ended")
    states = dict(database.rows("SELECT j.key, r.state::text FROM finished_runs AS r JOIN jobs AS j USING (job_id)"))
    succeeded = {"200", "cut"}
    assert {key for key, state in states.items() if state == "succeeded"} == succeeded
    assert database.count("dead_letters") == len(jobs) - len(succeeded)

    failing = f"postgresql://ann:{text_of(site, 'database password of a command')}@127.0.0.1:1/none"
    outputs = [("command", repr(tidewheel(url, "job", "list")).encode()) for url in (failing, f"{failing}?x=%zz")]
    answers = [("api", forge(site).encode())]
    found = site.canaries.search([*site.everything(), *outputs, *answers])
    assert found - site.by_nature() == set()
    assert {"[secret NAMED]", "[secret FILED]", "[redacted]"} <= marks(site)

    for place in plant(site):
        expected = {Found(name, place) for name in site.canaries.values}
        assert expected <= site.canaries.search(site.everything()), place


def target(url: str, **headers: object) -> dict[str, object]:
    return {"type": "http", "url": url, "headers": headers}


def text_of(site: Site, name: str) -> str:
    return site.canaries.values[name].decode()


def put_literal(site: Site, key: str) -> None:
    """Give a stored job a literal credential, as a release without the rule stored it."""
    headers = {"Authorization": f"Bearer {text_of(site, 'literal header of an older job')}"}
    columns = {"id": job_id("default", key)}
    [(data, spec)] = site.fleet.database.rows(
        "SELECT definition, spec FROM job_versions WHERE job_id = %(id)s", columns
    )
    definition = decode(cast("bytes", data), JobDefinition)
    assert definition.target.http is not None
    http = replace(definition.target.http, headers=headers)
    changed = encode(replace(definition, target=replace(definition.target, http=http)))
    spec["target"]["headers"] = headers
    statement = "UPDATE job_versions SET definition = %(definition)s, spec = %(spec)s WHERE job_id = %(id)s"
    assert site.fleet.database.execute(statement, columns | {"definition": changed, "spec": Jsonb(spec)}) == 1


def marks(site: Site) -> set[str]:
    """Return the marks in stored results and errors: the receivers did repeat secrets."""
    errors = site.fleet.database.rows("SELECT t::text FROM ended_attempts AS t")
    results = site.fleet.database.rows(
        "SELECT convert_from(result, 'UTF8') FROM attempt_outputs WHERE result IS NOT NULL"
    )
    text = " ".join(part for (part,) in [*errors, *results])
    return {mark for mark in ("[secret NAMED]", "[secret FILED]", "[redacted]") if mark in text}


def forge(site: Site) -> str:
    """Return the API's responses to a wrong bearer token, a forged task token, and no JSON."""
    with httpx.Client(base_url=site.fleet.api_url(site.services["api"]), trust_env=False) as client:
        run = f"/api/v1/runs/{uuid4()}:complete"
        calls = [
            client.post("/api/v1/executors", json={}, headers={"Authorization": "Bearer forged-token-of-a-stranger"}),
            client.post(run, json={"token": "x" * 48, "result": 1}),
            client.post("/api/v1/executors", content=b"{", headers={"Authorization": f"Bearer {api_token(site)}"}),
        ]
        return repr([(call.status_code, call.text, dict(call.headers)) for call in calls])


def api_token(site: Site) -> str:
    return text_of(site, "token of the API")


def plant(site: Site) -> Iterator[str]:
    """Put all canaries into one place after another; yield it."""
    everything = b" and ".join(site.canaries.values.values())
    database, fleet = site.fleet.database, site.fleet
    database.execute("CREATE TABLE planted (value bytea)")
    database.execute("INSERT INTO planted VALUES (%s)", [everything])
    yield "table planted"
    fleet.produce(fleet.topics.completions, None, b"1", [("header", everything)])
    fleet.flush()
    yield f"topic {fleet.topics.completions.removeprefix(fleet.topics.prefix + '.')}"
    (fleet.folder / "planted.log").write_bytes(everything)
    yield "log planted.log"


HEADERS = {"Authorization": {"secret": "BILLING"}, "X-Team": "a"}
WAYS = {"json", "avro", "client", "yaml", "file"}


def submit_every_way(fleet: Fleet, url: str) -> None:
    target = {"type": "http", "url": url, "headers": HEADERS}
    fleet.ask({"type": "job.submit", "job": {"key": "json", "schedule": "manual", "target": target}})
    named = {"type": "http", "url": url, "headers": {"X-Team": "a"}, "secret_headers": {"Authorization": "BILLING"}}
    job = {"key": "avro", "schedule": {"text": "manual"}, "target": named}
    in_avro = encode_fields("Request", {"type": "job_submit", "request_id": "a", "job": job})
    fleet.produce(fleet.topics.requests, b"avro", in_avro)
    fleet.flush()
    with Client(fleet.database.url) as client:
        client.submit({"key": "client", "schedule": "manual", "target": target})
    yaml, file = fleet.folder / "jobs.yaml", fleet.folder / "job.json"
    yaml.write_text(
        "key: yaml\nschedule: manual\ntarget:\n  type: http\n"
        f"  url: {url}\n  headers:\n    Authorization: {{secret: BILLING}}\n    X-Team: a\n"
    )
    file.write_text(json.dumps({"key": "file", "schedule": "manual", "target": target}))
    assert tidewheel(fleet.database, "apply", yaml).code == 0
    done = tidewheel(fleet.database, "job", "create", "file", "--file", file)
    assert done.code == 0, done.err


def credentials(target: HttpTarget) -> dict[str, str | None]:
    return {call.headers["tidewheel-job-key"]: call.headers.get("authorization") for call in target.received}


@pytest.mark.landing
@pytest.mark.postgres
@pytest.mark.kafka
def test_secret_of_every_way_in_is_sent_and_replaced_without_a_restart(fleet: Fleet, tmp_path: Path) -> None:
    folder = tmp_path / "secrets" / "default"
    folder.mkdir(parents=True)
    (folder / "BILLING.hosts").write_text("127.0.0.1\n")
    (folder / "BILLING").write_text("Bearer first-s3cr3t\n")
    with serving() as target, Client(fleet.database.url) as client:
        settings = {"SECRETS_DIR": str(folder.parent), "HTTP_ALLOW_PRIVATE": "true"}
        fleet.start_all("intake", "relay", "executor", **settings)
        fleet.wait_started()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TIDEWHEEL_HTTP_ALLOW_PRIVATE", "true")
            submit_every_way(fleet, target.url())
        fleet.until(lambda: fleet.database.count("jobs") == len(WAYS), "every job is stored")
        for key in WAYS:
            client.trigger(key)
        fleet.until(lambda: credentials(target) == dict.fromkeys(WAYS, "Bearer first-s3cr3t"), "all are called")
        assert all(request.headers["x-team"] == "a" for request in target.received)
        (folder / "next").write_text("Bearer second-s3cr3t\n")
        (folder / "next").rename(folder / "BILLING")

        def is_replaced() -> bool:
            client.runs.wait(client.trigger("json"), timeout=30)
            return credentials(target)["json"] == "Bearer second-s3cr3t"

        fleet.until(is_replaced, "the new value is sent")
        for key in WAYS:
            shown = tidewheel(fleet.database, "job", "show", key, "--output", "json").json["job"]
            assert shown["target"]["headers"] == HEADERS
        definitions = fleet.database.rows("SELECT definition FROM job_versions")
        assert all(b"BILLING" in row[0] and b"s3cr3t" not in row[0] for row in definitions)
    assert not any("s3cr3t" in service.log.read_text() for service in fleet.services)


@pytest.mark.postgres
@pytest.mark.kafka
def test_broken_secret_of_the_environment_ends_the_start_by_its_name(fleet: Fleet) -> None:
    service = fleet.start("executor", SECRET_BILLING="Bearer s3cr3t")
    service.meant_to_die = True
    fleet.until(lambda: not service.alive, "the executor has ended")
    assert service.process.exitcode == 1
    log = service.log.read_text()
    assert "TIDEWHEEL_SECRET_BILLING: does not name a host" in log
    assert "s3cr3t" not in log
