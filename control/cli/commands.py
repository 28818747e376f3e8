"""Table of the commands, which imports none of them.

`tidewheel --help` prints the help lines of this table. A test compares each line with the first line of the function's
docstring.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

_PACKAGE = "tidewheel.control.cli"
_SERVICES_MODULE = "tidewheel.control.services"
_LIMITS = "tidewheel.nouns.limits.commands"
_JOBS = "tidewheel.nouns.jobs.commands"
_RUNS = "tidewheel.nouns.runs.commands"
_FREEZES = "tidewheel.nouns.freezes.commands"


class Command(NamedTuple):
    """One command."""

    module: str  # in this package, or with a dot that of a noun
    function: str
    help: str
    extra: str | None = None
    passes_arguments: bool = False  # unknown options are arguments, which it passes on
    hidden: bool = False

    @property
    def path(self) -> str:
        """The full name of its module."""
        return self.module if "." in self.module else f"{_PACKAGE}.{self.module}"


class Group(NamedTuple):
    """A group of commands; `by_flags` is the command if the first argument is a flag."""

    help: str
    commands: Mapping[str, "Command | Group"]
    by_flags: Command | None = None


def _group(text: str, module: str, helps: Mapping[str, str]) -> Group:
    """Return a group of one module; a key is a command's name, with `=` and its function if that differs."""
    commands = {}
    for key, line in helps.items():
        name, _, function = key.partition("=")
        commands[name] = Command(module, function or name, line)
    return Group(text, commands)


_SERVE = Command("dev", "run", "Run several services as one unit, for a small installation; restart any that ends.")
_BENCH = Command("local", "bench", "Benchmark this machine, from a checkout.", extra="local")
_SERVICES: Mapping[str, Command] = {
    "intake": Command(_SERVICES_MODULE, "intake", "Apply the requests from the requests topic."),
    "scheduler": Command(_SERVICES_MODULE, "scheduler", "Create the runs of due occurrences."),
    "relay": Command(_SERVICES_MODULE, "relay", "Publish outbox rows to Kafka."),
    "executor": Command(_SERVICES_MODULE, "executor", "Claim and execute runs, and record their outcomes."),
    "api": Command(
        _SERVICES_MODULE,
        "api",
        "Serve REST: jobs, runs and dead letters, executors in other languages, and task tokens.",
        extra="api",
    ),
}
_JOB = Group(
    "Jobs, their occurrences and versions.",
    {
        "create": Command("job_edit", "create", "Create a job from a file, from flags, or both; fail if it exists."),
        "list": Command(_JOBS, "list_jobs", "List jobs by key, each with its next occurrence and last run."),
        "show": Command(_JOBS, "show", "Show a job: its spec, state, pause and last run."),
        "update": Command("job_edit", "update", "Change a job: flags set single fields, a file sets all."),
        "pause": Command(_JOBS, "pause", "Pause a job's schedule; triggers still run."),
        "resume": Command(_JOBS, "resume", "Resume a paused job."),
        "release": Command("job_edit", "release", "Let quarantined jobs fire again, after you fix the cause."),
        "delete": Command(_JOBS, "delete", "Delete a job; started runs finish, the rest are cancelled."),
        "trigger": Command("job_edit", "trigger", "Run a job once, now or later; print the run's id."),
        "backfill": Command(_JOBS, "backfill", "Run the occurrences of a past range, both ends included."),
        "next": Command(
            "occurrences", "next_occurrences", "Show a job's next occurrences, also skipped and moved ones."
        ),
        "stats": Command(_JOBS, "stats", "Show a job's runs by day: counts, durations and lateness."),
        "preview": Command("occurrences", "preview", "Show what an unsaved job would do, from a file or from flags."),
        "skip": Command(_JOBS, "skip", "Skip one future occurrence of a job."),
        "move": Command(_JOBS, "move", "Move one future occurrence of a job to another time."),
        "unskip": Command(_JOBS, "unskip", "Undo a skip or a move of a future occurrence."),
        "reschedule": Command(
            _JOBS, "reschedule", "Set when a fixed_delay job runs next; later intervals are its own again."
        ),
        "versions": Command(_JOBS, "versions", "List a job's versions, newest first, each with its changes."),
        "diff": Command(_JOBS, "diff", "Compare version B of a job with version A, field by field."),
        "rollback": Command(_JOBS, "rollback", "Restore the spec of an earlier version, as a new version."),
    },
)
_RUN = Group(
    "Runs and their attempts.",
    {
        "list": Command("runs", "list_runs", "List runs, latest first; runs scheduled for the future come last."),
        "show": Command("runs", "show", "Show a run: state, attempts, result, deadlines and retry chain."),
        "attempts": Command("runs", "attempts", "List a run's attempts, with their errors and results."),
        "cancel": Command("runs", "cancel", "Cancel runs by id, or all open runs that match the filters."),
        "retry": Command(
            "runs", "retry", "Retry a finished run with a new run, or start the next attempt of a retrying run now."
        ),
        "retry-failed": Command(
            _RUNS, "retry_failed", "Retry failed and timed-out runs that match a filter, oldest first."
        ),
        "logs": Command("runs", "logs", "Print the output of a run's attempts: the last 64 KiB of each."),
    },
    by_flags=_SERVE._replace(hidden=True),
)
_DLQ = _group(
    "Dead letters: failed runs, and messages that are not requests.",
    "tidewheel.nouns.dead_letters.commands",
    {
        "list=list_dead_letters": "List dead letters, newest first.",
        "groups": "Group the newest 10,000 dead letters by job, error type and final state, largest group first.",
        "show": "Show a dead letter: its run with attempts and retry chain, or its message.",
        "redrive": "Redrive dead letters, oldest first: schedulers create new runs, or publish messages again.",
        "purge": "Delete dead letters, oldest first; their runs are kept.",
    },
)
_WORK = _group(
    "Bulk work: redrives, purges, retries by filter and backfills.",
    "tidewheel.nouns.works.commands",
    {
        "list=list_works": "List bulk work, newest first.",
        "show": "Show bulk work: its filter, its progress and its rejections.",
        "pause": "Pause bulk work until you resume it; work already done is kept.",
        "resume": "Resume bulk work.",
        "cancel": "Stop bulk work; work already done is kept. A backfill's unstarted runs are cancelled.",
    },
)
_WORKFLOW = _group(
    "Occurrences of workflows.",
    "tidewheel.nouns.workflows.commands",
    {
        "list=list_workflows": "List occurrences of workflows, newest first; those of one root are sorted by instant.",
        "show": "Show an occurrence as a graph from its root, each job with the state of its latest run.",
        "pause": "Start no further jobs of an occurrence until you resume it; queued runs continue.",
        "resume": "Continue a paused occurrence, or rerun the failed part of an ended one.",
        "cancel": "Cancel an occurrence: end its open runs, and start no further jobs.",
    },
)
_BATCH = _group(
    "Runs that one request creates together.",
    "tidewheel.nouns.batches.commands",
    {
        "submit": "Run jobs once each, with dependencies between them, and trigger jobs when they end.",
        "add": "Add runs to an open batch, or to any batch from one of its own runs.",
        "close": "Close an open batch, so that it ends with its last run.",
        "resume": "Continue a paused batch, or rerun the failed part of an ended one.",
        "cancel": "Cancel the runs of a batch, and close it.",
        "list=list_batches": "List batches, newest first.",
        "show": "Show a batch: its counts, and its runs sorted by ref.",
    },
)
_FREEZE = Group(
    "Hold all new runs of a scope until you thaw it. With `list`: list what is frozen.",
    {"list": Command(_FREEZES, "list_all", "List the freezes in force, each with its waiting runs and held jobs.")},
    by_flags=Command(_FREEZES, "freeze", "Hold all new runs of a scope until you thaw it; running ones finish."),
)
_SERVICE = Group("Run one process of a service.", _SERVICES)
_ARCHIVE = _group(
    "The archive of finished runs.",
    "archive",
    {
        "run": "Archive closed days; remove days beyond the archive's period, and deleted tenants.",
        "list=list_archived": "List archived days, oldest first, each with its runs and its size.",
        "show": "Show a run from the archive, even while the database still has it.",
        "verify": "Check every file of the archive, or of a day; exit code 1 if one is damaged, missing or extra.",
        "restore": "Copy an archived day into tables of the schema tidewheel_archive, to read it with SQL.",
        "forget": "Stop archiving: retention again drops days that are not archived; the archive's files stay.",
    },
)
_SHARDS = Group(
    "Shards, which divide jobs among schedulers.",
    {"list": Command("status", "list_shards", "List shards, each with the scheduler that fires its jobs.")},
)
_SCHEMAS = _group(
    "The Avro schemas.",
    "admin",
    {
        "check=check_schemas": "Check the schemas against every released version; exit code 1 on a conflict.",
        "register=register_schemas": "Register this release's schemas in the schema registry, and "
        "record their ids in the database.",
    },
)
_TOPICS = _group(
    "The Kafka topics.",
    "admin",
    {
        "apply=apply_topics": "Create missing topics; raise partition counts that are too low.",
        "list=list_topics": "List the topics and what `topics apply` would change.",
    },
)
_SECRETS = _group(
    "The keys that services sign with.",
    "admin",
    {"rotate": "Add a signing key for run messages or task tokens; keep only the previous key beside it."},
)
_API_KEY = _group(
    "API keys for REST and the console.",
    "tidewheel.nouns.api_keys.commands",
    {
        "create": "Create an API key; only this response contains its secret.",
        "list=list_keys": "List API keys, newest first, each with its last use.",
        "revoke": "Revoke an API key; it stops working within a second.",
    },
)
_ORDERING_KEY = _group(
    "Ordering keys blocked by a failed run.",
    _LIMITS,
    {
        "list=blocked": "List ordering keys blocked by a failed run, longest blocked first.",
        "unblock": "Retry the failed run of an ordering key; its success lets the next run start.",
    },
)
_TENANT = _group(
    "Tenants and their limits.",
    "tidewheel.nouns.tenants.commands",
    {
        "create": "Create a tenant, with or without limits.",
        "list=list_tenants": "List tenants by name, each with its limits.",
        "show": "Show a tenant: its state, its limits and the progress of its deletion.",
        "limits": "Change limits of a tenant; limits that you leave out stay.",
        "retention": "Keep a tenant's finished runs for a shorter time, in all final states or in one.",
        "pause": "Hold all new runs of a tenant until you resume it; running ones finish.",
        "resume": "End the pause of a tenant; its jobs' on_resume decides which held occurrences fire.",
        "delete": "Delete a tenant with its jobs, runs and all else, a day later; --undo cancels the deletion.",
        "usage": "Show a tenant's current usage beside its limits.",
    },
)
_LIMIT = _group(
    "Limits of concurrency keys.",
    _LIMITS,
    {
        "set=set_limit": "Set the limit of a key, or of each key with a prefix; it overrides the jobs' own limits.",
        "rm=remove": "Remove a limit; the next shorter prefix, or the jobs' own limits, apply again.",
        "list=list_all": "List limits, each with its running and waiting runs.",
        "keys": "List keys in use, each with its limit and its running and waiting runs.",
    },
)
_CALENDAR = _group(
    "Named sets of days on which jobs do not fire, or fire exclusively.",
    "schedules",
    {
        "put": "Create or replace a calendar; jobs that use it follow at once.",
        "list=list_all": "List the calendars of a tenant.",
        "show": "Show a calendar: its days and the jobs that use it.",
        "delete": "Delete a calendar that no job uses.",
    },
)
_CRON = Group(
    "Cron expressions.",
    {"explain": Command("schedules", "explain", "Describe cron expressions and show their next instants.")},
)
_ADMIN = Group(
    "Operate an installation: tenants, keys, archive, audit, topics.",
    {
        "archive": _ARCHIVE,
        "audit": Command(
            "recovery",
            "audit",
            "Recompute every occurrence of a range, and compare it with the records. Exit code 1 for a gap.",
        ),
        "restore": Command(
            "recovery",
            "restore",
            "Catch up after a restore from a base backup: record what Kafka has since, before services start.",
        ),
        "failover": Command(
            "local", "fail_over", "Stop the local stack's primary PostgreSQL and promote its standby.", extra="local"
        ),
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
        "psql": Command(
            "connect", "psql", "Open psql on the database; further arguments are passed to psql.", passes_arguments=True
        ),
        "changes": Command(
            "tidewheel.nouns.audit_log.commands",
            "list_all",
            "List changes and operations with actor, door, result and reason, newest first.",
        ),
        "executors": Command(
            "status", "list_executors", "List executors, each with its slots, queues, handlers and last heartbeat."
        ),
        "bench": _BENCH,
    },
)

COMMANDS: Mapping[str, Command | Group] = {
    "dev": Command(
        "dev",
        "dev",
        "Run all of Tidewheel in this terminal for development; reload handlers when they are saved.",
        extra="local",
    ),
    "up": Command(
        "local", "up", "Start PostgreSQL and Kafka on this machine; create the schema and the topics.", extra="local"
    ),
    "down": Command("local", "down", "Stop the local stack. Its data stays unless --erase is given.", extra="local"),
    "env": Command("connect", "env", 'Print what a shell, a Kafka client or psql needs: eval "$(tidewheel env)".'),
    "status": Command("status", "status", "Show services, due work and problems. Exit code 1 if there are problems."),
    "doctor": Command("status", "doctor", "Check the installation; print each finding with its evidence and a remedy."),
    "job": _JOB,
    "run": _RUN,
    "dlq": _DLQ,
    "work": _WORK,
    "workflow": _WORKFLOW,
    "batch": _BATCH,
    "apply": Command("apply", "apply", "Submit every job in the given files; report rejected jobs, apply the rest."),
    "freeze": _FREEZE,
    "thaw": Command(
        _FREEZES, "thaw", "End the freeze of exactly this scope; `on_resume` decides which held occurrences fire."
    ),
    "explain": Command(
        "occurrences",
        "explain",
        "Explain why a job did or did not fire: the last occurrence and the next one, or any instant.",
    ),
    "migrate": Command("admin", "migrate", "Migrate the database to this release's schema."),
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
