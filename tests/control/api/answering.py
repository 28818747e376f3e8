"""The HTTP door on a thread, and an executor that speaks through it."""

import ssl
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from http import HTTPStatus
from typing import Any
from uuid import UUID

import httpx

from tests.fixtures.acts import HANDLER
from tests.fixtures.database import Database
from tidewheel.control.api.app import Api
from tidewheel.message_signatures import digest_of
from tidewheel.process.service import Shutdown
from tidewheel.settings.services import ApiSettings

_SECONDS = 60.0
TOPIC = "t.runs.standard"
NO_ROOTS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # loading the roots costs each client 20 ms
# Beyond a limit, httpcore closes connections as idle that it has just given to other threads.
_UNLIMITED = httpx.Limits(max_connections=None, max_keepalive_connections=None)
QUICK = {"api_port": 0, "sweep": timedelta(milliseconds=1)}


class ApiClient(httpx.Client):
    """A client of the API, which knows the database behind it."""

    database: Database


@contextmanager
def answering(database: Database, *, token: str | None = None, **settings: object) -> Generator[ApiClient]:
    """The door as long as the block, and a client of it."""
    stop = Shutdown()
    told = ApiSettings.load(**(QUICK | settings), api_token=token, database_url=database.url)
    api = Api(told, database.url, database.installation, stop)
    serving = threading.Thread(target=api.run, name="api-of-test")
    serving.start()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with ApiClient(
            base_url=f"http://127.0.0.1:{api.port}",
            headers=headers,
            timeout=_SECONDS,
            trust_env=False,
            verify=NO_ROOTS,
            limits=_UNLIMITED,
        ) as client:
            client.database = database
            yield client
    finally:
        stop.request()
        serving.join(_SECONDS)


@dataclass
class Executor:
    """An executor as any language would write it, step by step."""

    client: httpx.Client
    executor_id: str
    claims: int = 0
    begun: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    def ask(self, verb: str, **body: object) -> httpx.Response:
        """One call."""
        return self.client.post(f"/api/v1/executors/{self.executor_id}:{verb}", json=body)

    def heartbeat(self) -> list[dict[str, Any]]:
        """Send a heartbeat; return the signals."""
        return answer_of(self.ask("heartbeat"))["signals"]

    def claim(self, run_id: UUID, *, attempt: int = 1, version: int = 1) -> list[dict[str, Any]]:
        """Claim one run by its message; returns what was started."""
        self.claims += 1
        return self.repeat_claim(run_id, attempt=attempt, version=version)

    def repeat_claim(self, run_id: UUID, *, attempt: int = 1, version: int = 1) -> list[dict[str, Any]]:
        """The last claim, sent once more."""
        signed = self.proof(run_id)
        run = {"run_id": str(run_id), "attempt": attempt, "job_version": version, "claimed_from": f"{TOPIC}/0/7@0"}
        return answer_of(self.ask("claim", claim_id=self.claims, runs=[run | signed]))["started"]

    def proof(self, run_id: UUID, value: bytes = b"the message") -> dict[str, str]:
        """Return what a claim says of a message that a relay has signed."""
        assert isinstance(self.client, ApiClient)
        [(_, signature)] = self.client.database.signed(TOPIC, str(run_id).encode(), value)
        assert isinstance(signature, bytes)
        return {"signature": signature.decode(), "digest": digest_of(value).hex()}

    def sweep(self, most: int = 10) -> list[dict[str, Any]]:
        """Claim what is due."""
        self.claims += 1
        return answer_of(self.ask("claim", claim_id=self.claims, sweep=most))["started"]

    def finish(self, run_id: UUID, status: str, *, attempt: int = 1, **fields: object) -> str:
        """Tell how an attempt ended; returns the answer."""
        ending = {"run_id": str(run_id), "attempt": attempt, "status": status, **fields}
        [answered] = answer_of(self.ask("finish", outcomes=[ending]))["outcomes"]
        assert answered["run_id"] == str(run_id)
        return str(answered["answer"])


def enter(
    client: httpx.Client, *, handlers: tuple[str, ...] = (HANDLER,), queues: tuple[str, ...] = ("default",)
) -> Executor:
    """Register an executor."""
    body = {"name": "here:1", "handlers": list(handlers), "queues": list(queues), "slots": 4}
    answer = client.post("/api/v1/executors", json=body)
    assert answer.status_code == HTTPStatus.CREATED, answer.text
    return Executor(client, answer.json()["executor_id"])


def answer_of(answer: httpx.Response) -> dict[str, Any]:
    """The content of an answer that is no refusal."""
    assert answer.status_code in {HTTPStatus.OK, HTTPStatus.ACCEPTED}, answer.text
    content: dict[str, Any] = answer.json()
    return content


def every_page(client: httpx.Client, path: str, **query: str | int) -> Iterator[dict[str, Any]]:
    """Yield the pages of a list by their cursors, at most a hundred."""
    for _ in range(100):
        page = answer_of(client.get(path, params=httpx.URL(path).params.merge(query)))
        yield page
        if page["next_cursor"] is None:
            return
        query |= {"cursor": page["next_cursor"]}
    message = f"the pages of {path} do not end"
    raise AssertionError(message)


def refused_fields(answer: httpx.Response) -> list[str]:
    """Return the fields that the problem of a request names, each with a remedy."""
    errors = refusal(answer)["errors"]
    assert all(error["remedy"] for error in errors), errors
    return [error["path"] for error in errors]


def refusal(answer: httpx.Response, status: HTTPStatus = HTTPStatus.UNPROCESSABLE_ENTITY) -> dict[str, Any]:
    """Return the problem of an answer."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    content: dict[str, Any] = answer.json()
    assert content["status"] == status
    assert content["type"] == f"urn:tidewheel:problem:{content['code']}"
    return content
