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


_SERVE = Command("dev", "run", "Run several services as one unit, for a small installation; restart one that ends.")
_BENCH = Command("local", "bench", "Measure this machine, from a checkout.", extra="local")
_SERVICES: Mapping[str, Command] = {
    "intake": Command(_SERVICES_MODULE, "intake", "Apply the requests of the requests topic."),
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
        "update": Command("job_edit", "update", "Change a job: flags replace single fields, a file all of it."),
        "pause": Command(_JOBS, "pause", "Pause a job's schedule; triggers still run."),
        "resume": Command(_JOBS, "resume", "Resume a paused job."),
        "release": Command("job_edit", "release", "Let quarantined jobs fire again, once their error is corrected."),
        "delete": Command(_JOBS, "delete", "Delete a job; started runs finish, the rest are cancelled."),
        "trigger": Command("job_edit", "trigger", "Run a job once, now or later; print the run's id."),
        "backfill": Command(
            "job_edit", "backfill_job", "Run the occurrences of a past range; print the backfill's id."
        ),
        "next": Command(
            "occurrences", "next_occurrences", "Show a job's next occurrences, skipped and moved ones too."
        ),
        "stats": Command(_JOBS, "stats", "Show a job's runs by day: counts, durations and lateness."),
        "preview": Command("occurrences", "preview", "Show what an unsaved job would do, from a file or from flags."),
        "skip": Command(_JOBS, "skip", "Skip one future occurrence of a job."),
        "move": Command(_JOBS, "move", "Move one future occurrence of a job to another time."),
        "unskip": Command(_JOBS, "unskip", "Undo a skip or a move of a future occurrence."),
        "versions": Command(_JOBS, "versions", "List a job's versions, the newest first, each with its changes."),
        "diff": Command(_JOBS, "diff", "Compare version B of a job with version A, field by field."),
        "rollback": Command(_JOBS, "rollback", "Restore the spec of an earlier version, as a new version."),
    },
)
_RUN = Group(
    "Runs and their attempts.",
    {
        "list": Command("runs", "list_runs", "List runs, the latest first; those whose time is ahead are last."),
        "show": Command("runs", "show", "Show a run: state, attempts, result, deadlines and retry chain."),
        "attempts": Command("runs", "attempts", "List a run's attempts, with their errors and results."),
        "where": Command(
            "runs",
            "where",
            "Show the places of a run: its table and day, its request, its outbox rows and its messages.",
        ),
        "cancel": Command("runs", "cancel", "Cancel runs by id, or all that match every given filter."),
        "retry": Command(
            "runs", "retry", "Create a new run of a finished one, or start the next attempt of a retrying one now."
        ),
        "retry-failed": Command(
            _RUNS, "retry_failed", "Retry failed and timed-out runs that match a filter, the oldest first."
        ),
        "logs": Command("runs", "logs", "Print the output of a run's attempts: the last 64 KiB of each."),
    },
    by_flags=_SERVE._replace(hidden=True),
)
_DLQ = _group(
    "Dead letters: failed runs, and messages that are not requests.",
    "tidewheel.nouns.dead_letters.commands",
    {
        "list=list_dead_letters": "List dead letters, the newest first.",
        "groups": "Group the newest 10,000 dead letters by job, error type and final state, the largest group first.",
        "show": "Show a dead letter: its run with attempts and retry chain, or its message.",
        "redrive": "Redrive dead letters, the oldest first: schedulers create new runs, or publish messages again.",
        "purge": "Delete dead letters, the oldest first; their runs stay.",
    },
)
_WORK = _group(
    "Bulk work: redrives, purges, retries by filter and backfills.",
    "tidewheel.nouns.works.commands",
    {
        "list=list_works": "List bulk work, the newest first.",
        "show": "Show bulk work: its filter, its progress, and what could not be done.",
        "pause": "Pause bulk work until it is resumed; what it has done stays.",
        "resume": "Resume bulk work.",
        "cancel": "Stop bulk work; what it has done stays. Runs of a backfill that have not started are cancelled.",
    },
)
_WORKFLOW = _group(
    "Occurrences of workflows.",
    "tidewheel.nouns.workflows.commands",
    {
        "list=list_workflows": "List occurrences of workflows, the newest first; those of one root by instant.",
        "show": "Show an occurrence with its graph: the root first, each job with the state of its latest run.",
        "pause": "Release no further run of an occurrence until it is resumed; queued runs go on.",
        "resume": "Go on with a paused occurrence, or run the failed part of an ended one again.",
        "cancel": "Cancel the runs of an occurrence, and release no further one.",
    },
)
_BATCH = _group(
    "Runs that one request writes together.",
    "tidewheel.nouns.batches.commands",
    {
        "submit": "Run jobs once each, some after others, and trigger jobs when they end.",
        "add": "Add runs to a batch that is open, or from one of its runs.",
        "close": "Let an open batch end with its last run.",
        "resume": "Go on with a paused batch, or run the failed part of an ended one again.",
        "cancel": "Cancel the runs of a batch, and close it.",
        "list=list_batches": "List batches, the newest first.",
        "show": "Show a batch: its counts, and its runs in the order of their refs.",
    },
)
_FREEZE = Group(
    "Start no run of a scope until its thaw. With `list`: list what is frozen.",
    {"list": Command(_FREEZES, "list_all", "List the standing freezes, with what waits under each.")},
    by_flags=Command(_FREEZES, "freeze", "Start no run of a scope until its thaw; what runs goes on."),
)
_SERVICE = Group("A service of an installation: one process of it.", _SERVICES)
_ARCHIVE = _group(
    "The archive of finished runs.",
    "archive",
    {
        "run": "Archive closed days; remove days beyond the archive's period, and deleted tenants.",
        "list=list_archived": "List archived days, the oldest first, each with its runs and its size.",
        "show": "Show a run of the archive, also while the database has it.",
        "verify": "Read every file of the archive, or of a day; exit code 1 if one is damaged, missing or added.",
        "restore": "Copy an archived day into tables of the schema tidewheel_archive, for reading by SQL.",
        "forget": "Stop archiving: retention drops days without the archive again; the archive's files stay.",
    },
)
_STANDBY = _group(
    "A standby site, raised from the topics of this one.",
    "recovery",
    {
        "enable": "Begin to record jobs and open runs in two compacted topics, for a standby site.",
        "disable": "Stop recording for a standby site; the topics stay.",
        "status": "Show the last complete state in the topics, and the site from which this one was raised.",
        "raise=raise_site": "Raise this installation from the topics of a site that is lost.",
    },
)
_SHARDS = Group(
    "Shards, which divide the jobs between schedulers.",
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
        "rotate-key=rotate_key": "Add a key that signs run messages: the older name of `secrets rotate run-messages`.",
    },
)
_SECRETS = _group(
    "The keys with which services sign.",
    "admin",
    {"rotate": "Add a key that signs run messages or task tokens, and delete all but the one before."},
)
_API_KEY = _group(
    "Keys of REST and the console.",
    "tidewheel.nouns.api_keys.commands",
    {
        "create": "Create a key of the HTTP API; the answer alone has its secret.",
        "list=list_keys": "List keys, the newest first, each with its last use.",
        "revoke": "Revoke a key; it opens nothing from the next second on.",
    },
)
_ORDERING_KEY = _group(
    "Ordering keys that a failed run blocks.",
    _LIMITS,
    {
        "list=blocked": "List ordering keys that a failed run blocks, the longest first.",
        "unblock": "Retry the failed run of an ordering key: its success lets the next run start.",
    },
)
_TENANT = _group(
    "Tenants and their limits.",
    "tidewheel.nouns.tenants.commands",
    {
        "create": "Create a tenant, with limits or without.",
        "list=list_tenants": "List tenants by name, each with its limits.",
        "show": "Show a tenant: its state, its limits, the progress of its deletion.",
        "limits": "Change limits of a tenant; none lifts one, and those that are not named stay.",
        "retention": "Keep finished runs of a tenant for a shorter time, of all states or of one.",
        "pause": "Start no run of a tenant until it is resumed; what runs goes on.",
        "resume": "End the pause of a tenant; on_resume of its jobs decides what came due meanwhile.",
        "delete": "Delete a tenant with its jobs, runs and all else, a day later; --undo takes that back.",
        "usage": "Show what a tenant uses now, beside its limits.",
    },
)
_LIMIT = _group(
    "Limits of concurrency keys.",
    _LIMITS,
    {
        "set=set_limit": "Set the limit of a key or of each key with a prefix; it replaces those of jobs.",
        "rm=remove": "Remove the limit of a key or a prefix; a shorter prefix or the jobs decide again.",
        "list=list_all": "List limits, each with what runs and waits under it.",
        "keys": "List keys in use, each with its limit, and what runs and waits.",
    },
)
_CALENDAR = _group(
    "Named sets of days on which jobs do not fire, or only fire.",
    "schedules",
    {
        "put": "Create or replace a calendar; jobs that name it follow at once.",
        "list=list_all": "List the calendars of a tenant.",
        "show": "Show a calendar: its days and the jobs that name it.",
        "delete": "Delete a calendar that no job names.",
    },
)
_CRON = Group(
    "Cron expressions.",
    {"explain": Command("schedules", "explain", "Describe cron expressions and show their next instants.")},
)
_ADMIN = Group(
    "Operate an installation: tenants, keys, archive, audit, standby site, topics.",
    {
        "archive": _ARCHIVE,
        "audit": Command(
            "recovery",
            "audit",
            "Recompute every occurrence of a range, and compare it with what is recorded. Exit code 1 for a gap.",
        ),
        "restore": Command(
            "recovery",
            "restore",
            "Continue after a restore from a base backup: record what Kafka has since, before services start.",
        ),
        "standby": _STANDBY,
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
            "connect", "psql", "Open psql on the database; further arguments are psql's.", passes_arguments=True
        ),
        "changes": Command(
            "tidewheel.nouns.audit_log.commands",
            "list_all",
            "List changes and operations with actor, door, result and reason, the newest first.",
        ),
        "executors": Command(
            "status", "list_executors", "List executors, each with its slots, queues, handlers and last heartbeat."
        ),
        "find": Command("status", "answer", "Find what a text names: a run, a dead letter or a job."),
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
    "status": Command(
        "status", "status", "Show services, what is due and not done, and what is wrong. Exit code 1 if something is."
    ),
    "doctor": Command("status", "doctor", "Check the installation; print each finding with its evidence and a remedy."),
    "job": _JOB,
    "run": _RUN,
    "dlq": _DLQ,
    "work": _WORK,
    "workflow": _WORKFLOW,
    "batch": _BATCH,
    "apply": Command("apply", "apply", "Submit every job in some files; report rejected ones, apply the rest."),
    "freeze": _FREEZE,
    "thaw": Command(
        _FREEZES, "thaw", "End the freeze of exactly this scope; `on_resume` decides what came due meanwhile."
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
