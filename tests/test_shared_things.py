"""Each bounded or shared thing of a service has a row on the pages, or no tenant can fill it.

The rows are those of docs/tenants.md#shares, and of docs/scale.md#memory. The things are found in the code: threads,
queues, places and caches. A new one fails this test until it is named here, with its row or with a reason.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.strict_types import LINKED, ROOT
from tests.tidewheel.postgres.test_statements import real_files

_SHARED = {
    "ThreadPoolExecutor", "ProcessPoolExecutor", "to_thread", "Semaphore", "BoundedSemaphore", "Bucket",
    "Turns", "Turnstile", "SharedThreads", "SharedPlaces", "Places", "Workers", "WorkerPool", "SessionPool",
    "BackgroundQuery", "BodyMemory", "WeighedCache",
}  # fmt: skip
_CACHES, _QUEUES = {"lru_cache", "cache"}, {"deque", "Queue", "LifoQueue", "PriorityQueue"}
_COMMANDS = (
    "control/archive/", "control/cli/", "control/occurrence_audit/", "control/supervise/", "tidewheel/local/",
    "control/client/async_client", "control/client/bulk_load", "tidewheel/testing/",
)  # fmt: skip
"""Parts that run for one caller, in a process of their own."""

SHARES: Mapping[str, str] = {
    "API: threads of reads, of changes": "control/api/workers.py reads lists writes _pool",
    "API: threads of streams": "control/api/workers.py streams",
    "API: threads of executors' calls": "control/api/workers.py executors",
    "API: threads of task tokens, of schemas": "control/api/workers.py reports strangers",
    "API: threads that read keys": "control/api/workers.py keys",
    "API: requests that wait for a thread": "control/api/workers.py _waiting _QUEUED",
    "API: requests that met a lock": "control/api/workers.py _PARKED_SECONDS",
    "API: requests that block claims": "control/api/workers.py _blockers",
    "API: requests in progress": "control/api/app.py _CONNECTIONS, control/api/key_check.py _MOST_AT_ONCE",
    "API: requests a second": "control/api/key_check.py _bucket bucket",
    "API: memory for bodies of keys": "control/api/authorization.py _bodies",
    "API: memory for bodies of executors, of reports, of strangers": "control/api/request_input.py ALLOWANCES",
    "API: answers that no client reads": "control/api/connections.py _UNREAD_BYTES",
    "API: streams of `/run-events`": "control/api/run_events.py _places",
    "API: live pages of the console": "control/console/live.py _places _turns",
    "API: connections that show no token": "control/api/connections.py connection_type",
    "API: turns of strangers; to sign in": "control/api/authorization.py _turnstile",
    "API: keys in memory": "control/api/key_check.py _KEPT",
    "API: places of tenants with rates": "tidewheel/transitions/tenant_rates.py _sessions",
    "executor: slots": "executor/slots.py Slots",
    "executor: bytes of large payloads": "executor/slots.py HeldBytes",
    "executor: threads of plain handlers; worker processes": "executor/runners/python.py _threads _pool pool",
    "executor: calls of `ctx` that wait": "executor/context_parts.py CALLS",
    "executor: calls of `ctx.batch.add`": (
        "executor/context_parts.py _ADDS, executor/handler_services.py _places, executor/loop.py _batch_adds"
    ),
    "executor: look-ups of host names": "executor/runners/http_transport.py _threads",
    "executor: calls of Lambda": "executor/runners/aws.py _threads",
    "relay: a batch of messages": "relay/staging.py Staging",
    "relay: runs of a topic that is held back": "relay/held_topic.py _MOST_STAGED",
    "intake: requests topic": "intake/service.py MEMBERS run",
    "scheduler: shards": "tidewheel/ids.py shard_of",
}
"""The rows of docs/tenants.md#shares, each with its things: a file, then names in it."""

MEMORY: Mapping[str, str] = {
    "messages that the client has fetched and unpacked": "tidewheel/kafka/clients.py BOUNDED_FETCH RUNS_QUEUED",
    "one batch of messages": "tidewheel/kafka/clients.py _BATCH_BYTES",
    "messages of a partition that waits for a lock": "intake/partitions.py _KEPT_BYTES",
    "a dead letter": "intake/batch.py _HEAD_BYTES",
    "definitions of one firing batch": "scheduler/firing.py _MAX_LARGE",
    "messages of one batch, three of which are in memory": "relay/outbox_rows.py MAX_BYTES",
    "runs of a topic that is held back": "relay/held_topic.py _MOST_STAGED",
    "the producer's queue": "tidewheel/kafka/clients.py producer",
    "payloads of claimed attempts in three forms, and unwritten results": "executor/slots.py HeldBytes",
    "results in one transaction": "executor/completer.py _BATCH_BYTES",
    "messages of one sweep": "executor/sweep.py _READ_BYTES",
    "output of an attempt": "executor/outcome.py OUTPUT_BYTES _STREAM_BYTES",
    "the response of a target": "executor/runners/http_client.py _HEAD_BYTES, executor/runners/http.py _BODY_BYTES",
    "decoded definitions": "tidewheel/transitions/messages.py DEFINITIONS",
    "days of calendars; open days": (
        "tidewheel/transitions/decision_inputs.py _DAY_SETS, tidewheel/schedules/open_days.py _OPEN_DAYS"
    ),
    "parsed schedules": (
        "tidewheel/schedules/parse.py _shared _of_job _hashed _LARGE, tidewheel/schedules/cron_parser.py parse_cron,"
        " tidewheel/schedules/cron_schedule.py _zoned_cron"
    ),
    "specs that jobs share": "tidewheel/jobs/spec_cache.py _read_template _read_schedule schedule_in_zone",
    "parts of definitions that jobs share": (
        "intake/job_rows.py _definition_template, schemas/generated/wire.py _job_definition_shared_1_seen"
        " _job_definition_shared_2_seen"
    ),
    "messages in the response to a claim": "executor/remote_executors.py _ANSWER_BYTES",
    "answers that no client reads": "control/api/connections.py _UNREAD_BYTES",
    "a page that a thread reads or encodes": "control/api/request_input.py MAX_LIMIT, control/api/run_events.py _RUNS",
    "a page of jobs": "tidewheel/nouns/jobs/reads.py _PAGE_CHARACTERS _READ_AT_ONCE",
    "a page of versions": "tidewheel/nouns/jobs/versions.py MAX_VERSIONS",
    "registered executors": "executor/remote_executors.py MAX_EXECUTORS",
}
"""The rows of docs/scale.md#memory, by their buffers."""

APART: Mapping[str, str] = {
    "one thread for a loop of the process, whose work has the shares": """
        control/api/workers.py probes, executor/consume.py _claiming, relay/outbox_rows.py _thread,
        relay/outbox_scans.py _background, scheduler/backlog.py _background, scheduler/concurrency_keys.py
        _background, scheduler/poller.py _second_thread, scheduler/tenant_deletions.py _background""",
    "a part of other things, each of which is listed": """
        tidewheel/turns.py _pool _waiting close, tidewheel/postgres/session_kinds.py _places _thread""",
    "a step of the process's start or end, and a look at a folder that the operator allows": """
        executor/loop.py run _drain clean, executor/runners/kafka.py close, executor/runners/python.py close,
        executor/runners/runner.py _runner, executor/runners/shell.py cwd""",
    "a process of the client's own": "tidewheel/postgres/session_kinds.py running cancelling",
    "a key is a name in the code, in a file of the package or in the environment": """
        control/api/openapi.py _schema_text, control/reads/stored.py _loader, executor/runners/http_client.py
        _roots, schemas/avro.py json_schema_uri shape, schemas/codec.py _names, tidewheel/audit.py process_actor,
        tidewheel/doors/rest.py _made _list_of, tidewheel/postgres/statements.py _read _blocks,
        tidewheel/schedules/zones.py _load, tidewheel/schedules/cron_schedule.py offset_spans,
        tidewheel/settings/sources.py _warn_once""",
    "a schema is one of a release, or registered by an operator": """
        schemas/avro.py fingerprint, schemas/codec.py _parsed _name""",
    "a full cache costs a line in the log": """
        control/reads/stored.py _log_once, tidewheel/postgres/session.py _leave_out""",
    "a full cache costs some microseconds, and an entry has some kilobytes at most": """
        control/console/words.py _times, executor/runners/http.py _redactor, executor/runners/http_client.py
        _timeout read_place, intake/request.py _submit_body
        _json_instant, relay/publish.py _names, schemas/primitives.py cached_instant _seen,
        tidewheel/ids.py _named key_id order_id, tidewheel/jobs/http_values.py read_url,
        tidewheel/jobs/values.py _from_text,
        tidewheel/membership.py _owners, tidewheel/schedules/cron_fields.py days_by_month_shape,
        tidewheel/schedules/decide.py _fires_exactly _interval_step, tidewheel/schedules/decision.py
        policies_from_text""",
}
"""The other things, by the reason why no tenant can take them from the others."""


def things(path: Path) -> Iterator[str]:
    """Yield the name of each thing that a file makes: the function that has it, or what it is assigned to."""
    yield from _within(ast.parse(path.read_text(encoding="utf-8")), "")


def _within(node: ast.AST, owner: str) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        inner = owner
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = child.name
            takes = isinstance(child, ast.ClassDef) or any(vars(child.args).values())
            yield from (inner for each in child.decorator_list if takes and _named(each) in _CACHES)
        elif isinstance(child, ast.Assign | ast.AnnAssign):
            inner = _named(child.targets[0] if isinstance(child, ast.Assign) else child.target) or owner
        decorates = child in getattr(node, "decorator_list", ())
        if isinstance(child, ast.Call) and not decorates and _is_thing(child):
            yield inner
        yield from _within(child, inner)


def _is_thing(call: ast.Call) -> bool:
    name = _named(call.func)
    if isinstance(call.func, ast.Call):  # of what `lru_cache(…)` returns
        return False
    if name == "cache":
        return not isinstance(call.args[0], ast.Lambda)
    bounded = len(call.args) > (name == "deque") or bool(call.keywords)
    return name in _SHARED or name == "lru_cache" or (name in _QUEUES and bounded)


def _named(node: ast.AST) -> str:
    """Return the last name of an expression, without its arguments."""
    while isinstance(node, ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def found() -> set[tuple[str, str]]:
    paths = [path for folder in ("tidewheel", *LINKED) for path in real_files(folder, "*.py")]
    files = {str(path.relative_to(ROOT)): path for path in paths}
    return {(file, name) for file, path in files.items() if not file.startswith(_COMMANDS) for name in things(path)}


def listed(*lists: Mapping[str, str]) -> set[tuple[str, str]]:
    entries = [entry.split() for each in lists for text in each.values() for entry in text.split(",")]
    return {(file, name) for file, *names in entries for name in names}


def defined(file: str) -> set[str]:
    """Return the names that a module defines."""
    body = ast.parse((ROOT / file).read_text(encoding="utf-8")).body
    targets = [each for node in body if isinstance(node, ast.Assign) for each in node.targets]
    targets += [node.target for node in body if isinstance(node, ast.AnnAssign)]
    return {getattr(node, "name", "") for node in body} | {_named(each) for each in targets}


def rows(page: str, heading: str, column: int) -> list[str]:
    """Return the cells of a column of the first table below a heading."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2]
    table = re.search(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert table is not None
    return [line.split(" | ")[column].strip("| ") for line in table[0].splitlines()[2:]]


def test_each_thing_that_tenants_may_share_has_its_row_or_a_reason() -> None:
    made, named = found(), listed(SHARES, MEMORY, APART)
    assert made - named == set()
    assert {(file, name) for file, name in named - made if name not in defined(file)} == set()


def test_each_row_of_the_pages_names_its_things() -> None:
    assert rows("tenants.md", "Shares", 0) == [*SHARES]
    assert rows("scale.md", "Memory", 1) == [*MEMORY]


def test_a_planted_thing_is_found(tmp_path: Path) -> None:
    path = tmp_path / "planted.py"
    path.write_text(
        "class A:\n    def __init__(self):\n        self.pool = ThreadPoolExecutor(4)\n"
        "        self.lines: deque[str] = deque(maxlen=9)\n        self.turns = Turns[str]()\n"
        "        self.any, self.all = deque(), Queue()\n\n"
        "@lru_cache(maxsize=9)\ndef kept(text):\n    return text\n\n"
        "@cache\ndef endless(text):\n    return text\n\n@cache\ndef once():\n    return 1\n\n"
        "seen = lru_cache(maxsize=9)(kept)\n"
    )
    assert [*things(path)] == ["pool", "lines", "turns", "kept", "endless", "seen"]
