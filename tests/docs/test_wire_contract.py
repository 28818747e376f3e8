"""The calls of the wire contract get the shown answers from a real HTTP API."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from http import HTTPStatus
from typing import Any

import httpx
import pytest

from tests.control.api.answering import answering
from tests.docs.pages import blocks, fits
from tests.fixtures.database import Database
from tests.strict_types import ROOT
from tidewheel.jobs.strict_json import as_list, as_object
from tidewheel.message_signatures import digest_of
from tidewheel.schemas.codec import FORMS

PAGE = ROOT / "docs" / "wire-contract.md"
SHOWN = {block.name: block.text for block in blocks(PAGE) if block.what == "record"}
CALLS = ("register", "claim", "beat", "finish")
SAMPLES: Mapping[str, object] = {
    "result": {"sent": True}, "error_type": "NoSuchAccount", "error_message": "no such account", "trace": "Traceback …",
    "retry_after": "10s", "timeout": "heartbeat", "delay": "10s", "within": "1h",
}  # fmt: skip
_START = re.compile(r"^POST (\S+)\n", re.MULTILINE)
_TOKEN = re.compile(r"[A-Za-z0-9_-]{48}")
_HEADER = re.compile(r"c3 01(?: +[0-9a-f]{2}){8}")
_CODE = re.compile(r"`(\w+)`")


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the page with its answer."""

    path: str
    body: dict[str, Any]
    status: int
    answer: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Conversation:
    """Sends the page's calls, with real ids in place of the page's."""

    client: httpx.Client
    prefix: str
    real: dict[str, str] = field(default_factory=dict[str, str])

    def send(self, call: Call) -> dict[str, Any]:
        """Send a call; return the answer with the page's ids and prefix."""
        answer = self.client.post(self._with_real_ids(call.path), json=json.loads(self._with_real_ids(call.body)))
        assert answer.status_code == call.status, answer.text
        text = answer.text.replace(self.prefix, "tidewheel")
        for shown, real in self.real.items():
            text = text.replace(real, shown)
        read: dict[str, Any] = json.loads(text)
        return read

    def _with_real_ids(self, part: object) -> str:
        text = part if isinstance(part, str) else json.dumps(part)
        for shown, real in self.real.items():
            text = text.replace(shown, real)
        return text.replace("tidewheel.runs", f"{self.prefix}.runs")


@pytest.fixture
def client(database: Database) -> Iterator[httpx.Client]:
    with answering(database) as made:
        yield made


@pytest.fixture
def executor(client: httpx.Client) -> str:
    """The path of an executor that has registered."""
    [register] = _calls(SHOWN["register"])
    return f"{register.path}/{client.post(register.path, json=register.body).json()['executor_id']}"


def test_every_call_of_the_page_gets_the_shown_answer(client: httpx.Client, database: Database) -> None:
    [register], [claim, sweep], [beat], [finish] = ([*_calls(SHOWN[name])] for name in CALLS)
    conversation = Conversation(client, database.installation.topics.prefix)
    database.submit("send-email", target="send-email", schedule_to_close="1h")
    by_message, by_sweep = _run_of(claim), _run_of(sweep)

    with answering(database, sweep=timedelta(seconds=1)) as usual:  # the default: the other client sweeps at once
        registered = Conversation(usual, conversation.prefix).send(register)
    conversation.real[register.answer["executor_id"]] = registered["executor_id"]
    conversation.real[by_message] = str(database.trigger("send-email"))
    conversation.real.update(_proof(database, claim, conversation.real[by_message]))
    claimed = conversation.send(claim)
    conversation.real[by_sweep] = str(database.trigger("send-email"))
    swept = conversation.send(sweep)
    database.apply_batch({"type": "run.cancel", "run_id": conversation.real[by_sweep]})
    stopped = conversation.send(beat)
    finished = conversation.send(finish)

    shown = [call.answer for call in (register, claim, sweep, beat, finish)]
    for page, real in zip(shown, (registered, claimed, swept, stopped, finished), strict=True):
        assert _agrees(page, real), f"the real answer is\n{json.dumps(real)}\nand the page shows\n{json.dumps(page)}"


def test_headers_of_the_page_are_those_of_the_schemas() -> None:
    page = PAGE.read_text(encoding="utf-8")
    message, definition = (FORMS[name].header for name in ("RunRequest", "JobDefinition"))
    assert [bytes.fromhex(shown) for shown in _HEADER.findall(page)] == [message, definition]
    assert f"/api/v1/schemas/{message[2:].hex()}`" in page


def test_rejection_of_the_page_is_real(client: httpx.Client, executor: str) -> None:
    outcome = {"run_id": executor.rpartition("/")[2], "attempt": 1, "status": "failed"}
    answer = client.post(f"{executor}:finish", json={"outcomes": [outcome]})
    assert answer.json() == json.loads(SHOWN["problem"])


def test_table_of_outcomes_lists_the_accepted_fields(client: httpx.Client, executor: str) -> None:
    run_id = executor.rpartition("/")[2]
    table = dict(_table_of_outcomes())
    every = {name for names in table.values() for name in names}
    for status, names in table.items():
        outcome = {"run_id": run_id, "attempt": 1, "status": status, "output": "done\n"}
        given = {name: SAMPLES.get(name, True) for name in every}
        accepted = outcome | {name: given[name] for name in names}
        answers = {
            name: client.post(f"{executor}:finish", json={"outcomes": [accepted | {name: given[name]}]})
            for name in every
        }
        wrong = [name for name, answer in answers.items() if answer.is_success != (name in names)]
        assert not wrong, f"{status}: {[answers[name].text for name in wrong]}"
        assert client.post(f"{executor}:finish", json={"outcomes": [accepted]}).is_success


def test_leaving_answers_without_a_body(client: httpx.Client, executor: str) -> None:
    answer = client.post(f"{executor}:leave", json={})
    assert (answer.status_code, answer.content) == (HTTPStatus.NO_CONTENT, b"")


def _calls(text: str) -> Iterator[Call]:
    """Yield the calls of a block: path, body, status and answer."""
    read = json.JSONDecoder().raw_decode
    for start in _START.finditer(text):
        body, end = read(text, start.end())
        status, answer = text[end:].strip().split("\n", 1)
        yield Call(start[1], body, int(status), read(answer)[0])


def _proof(database: Database, claim: Call, run_id: str) -> dict[str, str]:
    """Return the real signature and digest of a run's message, by those of the page."""
    [run] = claim.body["runs"]
    [(topic, key, value)] = database.rows("SELECT topic, key, value FROM outbox WHERE key = %s", [run_id.encode()])
    [(_, signature)] = database.signed(topic, key, value)
    assert isinstance(signature, bytes)
    return {run["signature"]: signature.decode(), run["digest"]: digest_of(value).hex()}


def _run_of(call: Call) -> str:
    [started] = call.answer["started"]
    return str(started["run_id"])


def _table_of_outcomes() -> Iterator[tuple[str, list[str]]]:
    rows = PAGE.read_text(encoding="utf-8").partition("| `status` |")[2].partition("\n\n")[0].splitlines()[2:]
    for row in rows:
        status, fields = row.strip("| ").split("|")[:2]
        # Values are quoted after a colon.
        yield _CODE.findall(status)[0], _CODE.findall(fields.partition(":")[0])


def _agrees(shown: object, real: object) -> bool:
    """Compare answers: keys in their order, values as `fits` does, tokens and fractions by their type."""
    if (fields := as_object(shown)) is not None and (others := as_object(real)) is not None:
        return [*fields] == [*others] and all(map(_agrees, fields.values(), others.values()))
    if (items := as_list(shown)) is not None and (reals := as_list(real)) is not None:
        return len(items) == len(reals) and all(map(_agrees, items, reals))
    if isinstance(shown, str) and isinstance(real, str):
        return bool(_TOKEN.fullmatch(shown) and _TOKEN.fullmatch(real)) or fits(shown, real)
    if isinstance(shown, float) and not shown.is_integer():
        return isinstance(real, float)
    return shown == real
