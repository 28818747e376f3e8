"""Table of the commands, which imports none of them.

`tidewheel --help` prints the first lines of their docstrings from `commands.json`, which `python -m tests.golden`
writes.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

_PACKAGE = "tidewheel.control.cli"
_SERVICES_MODULE = "tidewheel.control.services"
_LIMITS = "tidewheel.nouns.limits.commands"
_JOBS = "tidewheel.nouns.jobs.commands"
_FREEZES = "tidewheel.nouns.freezes.commands"


class Command(NamedTuple):
    """One command."""

    module: str  # in this package, or with a dot that of a noun
    function: str
    extra: str | None = None
    passes_arguments: bool = False  # unknown options are arguments, which it passes on
    hidden: bool = False

    @property
    def path(self) -> str:
        """The full name of its module."""
        return self.module if "." in self.module else f"{_PACKAGE}.{self.module}"

    @property
    def help(self) -> str:
        """The first line of its docstring."""
        return _docstrings()[self.path][self.function]


class Group(NamedTuple):
    """A group of commands; `by_flags` is the command if the first argument is a flag."""

    help: str
    commands: Mapping[str, "Command | Group"]
    by_flags: Command | None = None


@cache
def _docstrings() -> Mapping[str, Mapping[str, str]]:
    """Return the first lines of the docstrings of all commands, by module and function."""
    found: Mapping[str, Mapping[str, str]] = json.loads(Path(__file__).with_name("commands.json").read_text("utf-8"))
    return found


def _group(text: str, module: str, functions: str = "*") -> Group:
    """Return a group of commands of one module; `*` adds those that are not named.

    A command has the name of its function, `list` for `list_…`, or another one before `=`. A function of another module
    has this module before `:`.
    """
    given = functions.removesuffix("*").split()
    others: Iterable[str] = _docstrings().get(module, {}) if functions.endswith("*") else ()
    commands = {}
    for each in [*given, *(each for each in others if each not in given)]:
        name, _, place = each.rpartition("=")
        other, _, function = place.rpartition(":")
        name = name or ("list" if function.startswith("list_") else function.replace("_", "-"))
        commands[name] = Command(other or module, function)
    return Group(text, commands)


_SERVE = Command("dev", "run")
_BENCH = Command("local", "bench", extra="local")
_SERVICES: Mapping[str, Command] = {
    **{name: Command(_SERVICES_MODULE, name) for name in ("intake", "scheduler", "relay", "executor")},
    "api": Command(_SERVICES_MODULE, "api", extra="api"),
}
_JOB = _group(
    "Jobs, their occurrences and versions.",
    _JOBS,
    "job_edit:create list_jobs show job_edit:update pause resume job_edit:release delete job_edit:trigger backfill"
    " next=occurrences:next_occurrences stats occurrences:preview skip move unskip reschedule versions diff rollback *",
)
_RUN = _group(
    "Runs and their attempts.",
    "tidewheel.nouns.runs.commands",
    "runs:list_runs runs:show runs:attempts runs:cancel runs:retry retry_failed runs:logs *",
)._replace(by_flags=_SERVE._replace(hidden=True))
_DLQ = _group("Dead letters: failed runs, and messages that are not requests.", "tidewheel.nouns.dead_letters.commands")
_WORK = _group("Bulk work: redrives, purges, retries by filter and backfills.", "tidewheel.nouns.works.commands")
_WORKFLOW = _group("Occurrences of workflows.", "tidewheel.nouns.workflows.commands")
_BATCH = _group("Runs that one request creates together.", "tidewheel.nouns.batches.commands")
_FREEZE = Group(
    "Hold all new runs of a scope until you thaw it. With `list`: list what is frozen.",
    {"list": Command(_FREEZES, "list_all")},
    by_flags=Command(_FREEZES, "freeze"),
)
_SERVICE = Group("Run one process of a service.", _SERVICES)
_ARCHIVE = _group("The archive of finished runs.", "archive", "run list_archived show verify restore forget")
_SHARDS = _group("Shards, which divide jobs among schedulers.", "status", "list_shards")
_SCHEMAS = _group("The Avro schemas.", "admin", "check=check_schemas register=register_schemas")
_TOPICS = _group("The Kafka topics.", "admin", "apply=apply_topics list_topics")
_SECRETS = _group("The keys that services sign with.", "admin", "rotate")
_API_KEY = _group("API keys for REST and the console.", "tidewheel.nouns.api_keys.commands")
_ORDERING_KEY = _group("Ordering keys blocked by a failed run.", _LIMITS, "list=blocked unblock")
_TENANT = _group(
    "Tenants and their limits.",
    "tidewheel.nouns.tenants.commands",
    "create list_tenants show limits retention pause resume delete usage *",
)
_LIMIT = _group("Limits of concurrency keys.", _LIMITS, "set=set_limit rm=remove list_all keys")
_CALENDAR = _group(
    "Named sets of days on which jobs do not fire, or fire exclusively.", "schedules", "put list_all show delete"
)
_CRON = _group("Cron expressions.", "schedules", "explain")
_ADMIN = Group(
    "Operate an installation: tenants, keys, archive, audit, topics.",
    {
        "archive": _ARCHIVE,
        "audit": Command("recovery", "audit"),
        "restore": Command("recovery", "restore"),
        "failover": Command("local", "fail_over", extra="local"),
        "shards": _SHARDS,
        "schemas": _SCHEMAS,
        "topics": _TOPICS,
        "secrets": _SECRETS,
        "api-key": _API_KEY,
        "ordering-key": _ORDERING_KEY,
        "tenant": _TENANT,
        "limit": _LIMIT,
        "calendar": _CALENDAR,
        "cron": _CRON,
        "psql": Command("connect", "psql", passes_arguments=True),
        "changes": Command("tidewheel.nouns.audit_log.commands", "list_all"),
        "executors": Command("status", "list_executors"),
        "bench": _BENCH,
    },
)

COMMANDS: Mapping[str, Command | Group] = {
    "dev": Command("dev", "dev", extra="local"),
    "up": Command("local", "up", extra="local"),
    "down": Command("local", "down", extra="local"),
    "env": Command("connect", "env"),
    "status": Command("status", "status"),
    "doctor": Command("status", "doctor"),
    "job": _JOB,
    "run": _RUN,
    "dlq": _DLQ,
    "work": _WORK,
    "workflow": _WORKFLOW,
    "batch": _BATCH,
    "apply": Command("apply", "apply"),
    "freeze": _FREEZE,
    "thaw": Command(_FREEZES, "thaw"),
    "explain": Command("occurrences", "explain"),
    "migrate": Command("admin", "migrate"),
    "serve": _SERVE,
    "service": _SERVICE,
    "admin": _ADMIN,
}

# Names of 0.1.0, until 0.3; docs/performance.md measures builds of either in turns, by `bench`.
OLDER_COMMANDS = {name: command._replace(hidden=True) for name, command in {**_SERVICES, "bench": _BENCH}.items()}


def every_command(group: Mapping[str, Command | Group] = COMMANDS, before: str = "") -> Iterator[tuple[str, Command]]:
    """Yield each command with its words, such as `job create`; one by flags has those of its group."""
    for name, each in group.items():
        words = f"{before} {name}".strip()
        if isinstance(each, Command):
            yield words, each
        else:
            yield from every_command(each.commands, words)
            if each.by_flags is not None and not each.by_flags.hidden:
                yield words, each.by_flags
