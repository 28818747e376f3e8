"""Table of the commands, and the group that imports a command's module only when the command runs.

`tidewheel --help` prints the help lines of this table and imports no command. A test compares each line with the first
line of the function's docstring.
"""

import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from tidewheel.control.cli.examples import EXAMPLES
from tidewheel.control.cli.exit_codes import exit_code
from tidewheel.errors import Refused, TidewheelError, UnknownJob, Unusable
from tidewheel.extras import require
from tidewheel.redaction import redact
from tidewheel.release import describe_release

COLUMNS = 100  # widest help and text output where no terminal says otherwise
_HELP = ["-h", "--help"]
_CONTEXT = {"max_content_width": COLUMNS, "help_option_names": _HELP}
_PACKAGE = "tidewheel.control.cli"
_API_KEYS = "tidewheel.nouns.api_keys.commands"
_LETTERS = "tidewheel.nouns.dead_letters.commands"
_BATCHES = "tidewheel.nouns.batches.commands"
_WORKFLOWS = "tidewheel.nouns.workflows.commands"
_LIMITS = "tidewheel.nouns.limits.commands"
_TENANTS = "tidewheel.nouns.tenants.commands"
_JOBS = "tidewheel.nouns.jobs.commands"
_RUNS = "tidewheel.nouns.runs.commands"
_FREEZES = "tidewheel.nouns.freezes.commands"
_WORKS = "tidewheel.nouns.works.commands"


class Command(NamedTuple):
    """One command.

    Args:
        module: Its module in this package, or with a dot that of a noun.
        passes_arguments: True if unknown options are arguments, which it passes on.
    """

    module: str
    function: str
    help: str
    extra: str | None = None
    passes_arguments: bool = False
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


_SERVE = Command("dev", "run", "Run several services as one unit, for a small installation; restart one that ends.")
_BENCH = Command("bench", "bench", "Measure this machine, from a checkout.", extra="local")
_SERVICES: Mapping[str, Command] = {
    "intake": Command("services", "intake", "Apply the requests of the requests topic."),
    "scheduler": Command("services", "scheduler", "Create the runs of due occurrences."),
    "relay": Command("services", "relay", "Publish outbox rows to Kafka."),
    "executor": Command("services", "executor", "Claim and execute runs, and record their outcomes."),
    "api": Command(
        "services",
        "api",
        "Serve REST: jobs, runs and dead letters, executors in other languages, and task tokens.",
        extra="api",
    ),
}

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
    "job": Group(
        "Jobs, their occurrences and versions.",
        {
            "create": Command(
                "job_edit", "create", "Create a job from a file, from flags, or both; fail if it exists."
            ),
            "list": Command(_JOBS, "list_jobs", "List jobs by key, each with its next occurrence and last run."),
            "show": Command(_JOBS, "show", "Show a job: its spec, state, pause and last run."),
            "update": Command(
                "job_edit", "update", "Change a job: flags replace single fields, a file replaces the job."
            ),
            "pause": Command(_JOBS, "pause", "Pause a job's schedule; triggers still run."),
            "resume": Command(_JOBS, "resume", "Resume a paused job."),
            "release": Command(
                "job_edit",
                "release",
                "Let quarantined jobs fire again, once the cause of their error is corrected.",
            ),
            "delete": Command(_JOBS, "delete", "Delete a job; started runs finish, the rest are cancelled."),
            "trigger": Command("job_edit", "trigger", "Run a job once, now or later; print the run's id."),
            "backfill": Command(
                "backfills", "backfill_job", "Run the occurrences of a past range; print the backfill's id."
            ),
            "next": Command(
                "occurrences", "next_occurrences", "Show a job's next occurrences, skipped and moved ones too."
            ),
            "stats": Command(
                _JOBS, "stats", "Show a job's runs by day: counts, durations and lateness, kept for two years."
            ),
            "preview": Command(
                "occurrences", "preview", "Show what an unsaved job would do, from a file or from flags."
            ),
            "skip": Command(_JOBS, "skip", "Skip one future occurrence of a job."),
            "move": Command(_JOBS, "move", "Move one future occurrence of a job to another time."),
            "unskip": Command(_JOBS, "unskip", "Undo a skip or a move of a future occurrence."),
            "versions": Command(_JOBS, "versions", "List a job's versions, the newest first, each with its changes."),
            "diff": Command(_JOBS, "diff", "Compare version B of a job with version A, field by field."),
            "rollback": Command(_JOBS, "rollback", "Restore the spec of an earlier version, as a new version."),
        },
    ),
    "run": Group(
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
    ),
    "dlq": Group(
        "Dead letters: failed runs, and messages that are not requests.",
        {
            "list": Command(_LETTERS, "list_dead_letters", "List dead letters, the newest first."),
            "groups": Command(
                _LETTERS,
                "groups",
                "Group the newest 10,000 dead letters by job, error type and final state, the largest group first.",
            ),
            "show": Command(
                _LETTERS, "show", "Show a dead letter: its run with attempts and retry chain, or its message."
            ),
            "redrive": Command(
                _LETTERS,
                "redrive",
                "Redrive dead letters, the oldest first: schedulers create new runs, or publish messages again.",
            ),
            "purge": Command(_LETTERS, "purge", "Delete dead letters, the oldest first; their runs stay."),
        },
    ),
    "work": Group(
        "Bulk work: redrives, purges, retries by filter and backfills.",
        {
            "list": Command(_WORKS, "list_works", "List bulk work, the newest first."),
            "show": Command(_WORKS, "show", "Show bulk work: its filter, its progress, and what could not be done."),
            "pause": Command(_WORKS, "pause", "Pause bulk work until it is resumed; what it has done stays."),
            "resume": Command(_WORKS, "resume", "Resume bulk work."),
            "cancel": Command(
                _WORKS,
                "cancel",
                "Stop bulk work; what it has done stays. Runs of a backfill that have not started are cancelled.",
            ),
        },
    ),
    "workflow": Group(
        "Occurrences of workflows.",
        {
            "list": Command(
                _WORKFLOWS,
                "list_workflows",
                "List occurrences of workflows, the newest first; those of one root by instant.",
            ),
            "show": Command(
                _WORKFLOWS,
                "show",
                "Show an occurrence with its graph: the root first, each job with the state of its latest run.",
            ),
            "pause": Command(
                _WORKFLOWS,
                "pause",
                "Release no further run of an occurrence until it is resumed; queued runs go on.",
            ),
            "resume": Command(
                _WORKFLOWS, "resume", "Go on with a paused occurrence, or run the failed part of an ended one again."
            ),
            "cancel": Command(_WORKFLOWS, "cancel", "Cancel the runs of an occurrence, and release no further one."),
        },
    ),
    "batch": Group(
        "Runs that one request writes together.",
        {
            "submit": Command(
                _BATCHES, "submit", "Run jobs once each, some after others, and trigger jobs when they end."
            ),
            "add": Command(_BATCHES, "add", "Add runs to a batch that is open, or from one of its runs."),
            "close": Command(_BATCHES, "close", "Let an open batch end with its last run."),
            "resume": Command(
                _BATCHES, "resume", "Go on with a paused batch, or run the failed part of an ended one again."
            ),
            "cancel": Command(_BATCHES, "cancel", "Cancel the runs of a batch, and close it."),
            "list": Command(_BATCHES, "list_batches", "List batches, the newest first."),
            "show": Command(_BATCHES, "show", "Show a batch: its counts, and its runs in the order of their refs."),
        },
    ),
    "apply": Command("apply", "apply", "Submit every job in some files; report rejected ones, apply the rest."),
    "freeze": Group(
        "Start no run of a scope until its thaw. With `list`: list what is frozen.",
        {"list": Command(_FREEZES, "list_all", "List the standing freezes, with what waits under each.")},
        by_flags=Command(_FREEZES, "freeze", "Start no run of a scope until its thaw; what runs goes on."),
    ),
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
    "service": Group("A service of an installation: one process of it.", _SERVICES),
    "admin": Group(
        "Operate an installation: tenants, keys, archive, audit, standby site, topics.",
        {
            "archive": Group(
                "The archive of finished runs.",
                {
                    "run": Command(
                        "archive",
                        "run",
                        "Archive closed days; remove days beyond the archive's period, and deleted tenants.",
                    ),
                    "list": Command(
                        "archive",
                        "list_archived",
                        "List archived days, the oldest first, each with its runs and its size.",
                    ),
                    "show": Command("archive", "show", "Show a run of the archive, also while the database has it."),
                    "verify": Command(
                        "archive",
                        "verify",
                        "Read every file of the archive, or of a day; exit code 1 if one is damaged, missing or added.",
                    ),
                    "restore": Command(
                        "archive",
                        "restore",
                        "Copy an archived day into tables of the schema tidewheel_archive, for reading by SQL.",
                    ),
                    "forget": Command(
                        "archive",
                        "forget",
                        "Stop archiving: retention drops days without the archive again; the archive's files stay.",
                    ),
                },
            ),
            "audit": Command(
                "audit",
                "audit",
                "Recompute every occurrence of a range, and compare it with what is recorded. Exit code 1 for a gap.",
            ),
            "restore": Command(
                "restore",
                "restore",
                "Continue after a restore from a base backup: record what Kafka has since, before services start.",
            ),
            "standby": Group(
                "A standby site, raised from the topics of this one.",
                {
                    "enable": Command(
                        "standby",
                        "enable",
                        "Begin to record jobs and open runs in two compacted topics, for a standby site.",
                    ),
                    "disable": Command("standby", "disable", "Stop recording for a standby site; the topics stay."),
                    "status": Command(
                        "standby",
                        "status",
                        "Show the last complete state in the topics, and the site from which this one was raised.",
                    ),
                    "raise": Command(
                        "standby", "raise_site", "Raise this installation from the topics of a site that is lost."
                    ),
                },
            ),
            "failover": Command(
                "local",
                "fail_over",
                "Stop the local stack's primary PostgreSQL and promote its standby.",
                extra="local",
            ),
            "shards": Group(
                "Shards, which divide the jobs between schedulers.",
                {"list": Command("status", "list_shards", "List shards, each with the scheduler that fires its jobs.")},
            ),
            "schemas": Group(
                "The Avro schemas.",
                {
                    "check": Command(
                        "admin",
                        "check_schemas",
                        "Check the schemas against every released version; exit code 1 on a conflict.",
                    ),
                    "register": Command(
                        "admin",
                        "register_schemas",
                        "Register this release's schemas in the schema registry, and record their ids in the database.",
                    ),
                },
            ),
            "topics": Group(
                "The Kafka topics.",
                {
                    "apply": Command(
                        "admin", "apply_topics", "Create missing topics; raise partition counts that are too low."
                    ),
                    "list": Command("admin", "list_topics", "List the topics and what `topics apply` would change."),
                    "rotate-key": Command(
                        "secrets",
                        "rotate_key",
                        "Add a key that signs run messages: the older name of `secrets rotate run-messages`.",
                    ),
                },
            ),
            "secrets": Group(
                "The keys with which services sign.",
                {
                    "rotate": Command(
                        "secrets",
                        "rotate",
                        "Add a key that signs run messages or task tokens, and delete all but the one before.",
                    )
                },
            ),
            "api-key": Group(
                "Keys of REST and the console.",
                {
                    "create": Command(
                        _API_KEYS, "create", "Create a key of the HTTP API; the answer alone has its secret."
                    ),
                    "list": Command(_API_KEYS, "list_keys", "List keys, the newest first, each with its last use."),
                    "revoke": Command(_API_KEYS, "revoke", "Revoke a key; it opens nothing from the next second on."),
                },
            ),
            "ordering-key": Group(
                "Ordering keys that a failed run blocks.",
                {
                    "list": Command(
                        _LIMITS, "blocked", "List ordering keys that a failed run blocks, the longest first."
                    ),
                    "unblock": Command(
                        _LIMITS,
                        "unblock",
                        "Retry the failed run of an ordering key: its success lets the next run start.",
                    ),
                },
            ),
            "tenant": Group(
                "Tenants and their limits.",
                {
                    "create": Command(_TENANTS, "create", "Create a tenant, with limits or without."),
                    "list": Command(_TENANTS, "list_tenants", "List tenants by name, each with its limits."),
                    "show": Command(
                        _TENANTS, "show", "Show a tenant: its state, its limits, the progress of its deletion."
                    ),
                    "limits": Command(
                        _TENANTS,
                        "limits",
                        "Change limits of a tenant; none lifts one, and those that are not named stay.",
                    ),
                    "retention": Command(
                        _TENANTS,
                        "retention",
                        "Keep finished runs of a tenant for a shorter time, of all states or of one.",
                    ),
                    "pause": Command(
                        _TENANTS, "pause", "Start no run of a tenant until it is resumed; what runs goes on."
                    ),
                    "resume": Command(
                        _TENANTS,
                        "resume",
                        "End the pause of a tenant; on_resume of its jobs decides what came due meanwhile.",
                    ),
                    "delete": Command(
                        _TENANTS,
                        "delete",
                        "Delete a tenant with its jobs, runs and all else, a day later; --undo takes that back.",
                    ),
                    "usage": Command(_TENANTS, "usage", "Show what a tenant uses now, beside its limits."),
                },
            ),
            "limit": Group(
                "Limits of concurrency keys.",
                {
                    "set": Command(
                        _LIMITS,
                        "set_limit",
                        "Set the limit of a key or of each key with a prefix; it replaces those of jobs.",
                    ),
                    "rm": Command(
                        _LIMITS,
                        "remove",
                        "Remove the limit of a key or a prefix; a shorter prefix or the jobs decide again.",
                    ),
                    "list": Command(_LIMITS, "list_all", "List limits, each with what runs and waits under it."),
                    "keys": Command(_LIMITS, "keys", "List keys in use, each with its limit, and what runs and waits."),
                },
            ),
            "calendar": Group(
                "Named sets of days on which jobs do not fire, or only fire.",
                {
                    "put": Command(
                        "calendars", "put", "Create or replace a calendar; jobs that name it follow at once."
                    ),
                    "list": Command("calendars", "list_all", "List the calendars of a tenant."),
                    "show": Command("calendars", "show", "Show a calendar: its days and the jobs that name it."),
                    "delete": Command("calendars", "delete", "Delete a calendar that no job names."),
                },
            ),
            "cron": Group(
                "Cron expressions.",
                {"explain": Command("cron", "explain", "Describe cron expressions and show their next instants.")},
            ),
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
            "find": Command(
                "ask",
                "answer",
                "Find what a text names: a run, a dead letter or a job.",
            ),
            "bench": _BENCH,
        },
    ),
}

# Names of 0.1.0, until 0.3; docs/performance.md measures builds of either in turns, by `bench`.
_OLDER = {name: command._replace(hidden=True) for name, command in {**_SERVICES, "bench": _BENCH}.items()}


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


def run(*, unusable: int | None = None) -> None:
    """Run the command that the arguments name; write a Tidewheel error to standard error, a line a field.

    Args:
        unusable: Exit code for an error that only an operator can correct, in place of its own: a supervisor tells it
            from a crash.
    """
    try:
        root_command()()
    except Refused as refused:
        _exit_with(exit_code(refused), *map(str, refused.errors))
    except Unusable as error:
        _exit_with(exit_code(error) if unusable is None else unusable, str(error))
    except TidewheelError as error:
        _exit_with(exit_code(error), str(error))


class _Command(TyperCommand):
    """A command that explains the key of a job that does not exist."""

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 - as below
        """Run the command; name the option that has an unknown key, and the nearest keys."""
        try:
            return super().invoke(ctx)
        except UnknownJob as unknown:
            from tidewheel.control.cli.unknown_keys import with_nearest  # here: no other error reads the keys

            names = [max(each.opts, key=len) for each in self.params if ctx.params.get(each.name) == unknown.key]
            raise with_nearest(unknown, next((name for name in names if name.startswith("--")), None)) from None


class _LazyCommand(TyperCommand):
    """A command whose module is imported when it is invoked or prints its own help."""

    def __init__(self, words: str, command: Command) -> None:
        super().__init__(words.split()[-1], short_help=command.help, hidden=command.hidden)
        self._words, self._command = words, command

    def make_context(self, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - click's own types are private
        """Parse the arguments with the real command, which the context then names."""
        return self.real().make_context(*arguments, **options)

    def real(self) -> TyperCommand:
        """Import the command."""
        if self._command.extra is not None:
            require(self._command.extra, f"`tidewheel {self._words}`")
        module = import_module(self._command.path)
        app = _app()
        context = {**_CONTEXT, "ignore_unknown_options": self._command.passes_arguments}
        function = getattr(module, self._command.function)
        app.command(self.name, cls=_Command, context_settings=context, epilog=_epilog(self._words))(function)
        command = get_command(app)
        assert isinstance(command, TyperCommand)  # noqa: S101 - it has no callback
        return command


class _Named(TyperGroup):
    """A group that names the place of a command which another group has."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401 - click's own types are private
        """Return the command of the first argument; refuse another one."""
        if args and args[0] not in self.commands and (places := _places(args[0])):
            ctx.fail(f"No such command {args[0]!r}. Write {' or '.join(places)}.")
        return super().resolve_command(ctx, args)


class _Group(_Named):
    """A group of commands, or of one more that needs no name: the flags do."""

    def __init__(self, group: Group, **options: Any) -> None:  # noqa: ANN401 - as above
        super().__init__(**options)
        self._by_flags = group.by_flags

    def make_context(self, info_name: str | None, args: list[str], *rest: Any, **options: Any) -> Any:  # noqa: ANN401
        """Parse the arguments, by the command without a name if the first one is a flag of it."""
        is_flag = bool(args) and args[0].startswith("-") and args[0] not in _HELP
        if self._by_flags is None or not is_flag:
            return super().make_context(info_name, args, *rest, **options)
        return _LazyCommand(info_name or "", self._by_flags).make_context(info_name, args, *rest, **options)

    def format_options(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - as above
        """Write the flags of the command without a name before the commands."""
        if self._by_flags is not None and not self._by_flags.hidden:
            command = _LazyCommand(self.name or "", self._by_flags).real()
            with formatter.section("Without a command"):
                formatter.write_dl(filter(None, (each.get_help_record(ctx) for each in command.params)))
        super().format_options(ctx, formatter)


def root_command() -> TyperGroup:
    """Return the command line, with every command of the table."""
    app = _app(add_completion=True)
    app.callback()(_options)
    root = get_command(app)
    assert isinstance(root, TyperGroup)  # noqa: S101 - it has a callback
    for name, each in {**COMMANDS, **_OLDER}.items():
        root.add_command(_made(name, each))
    return root


def _places(name: str) -> list[str]:
    """Return the commands and groups of this name.

    >>> _places("explain"), _places("archive")
    (['`tidewheel explain`', '`tidewheel admin cron explain`'], ['`tidewheel admin archive`'])
    """
    words = dict.fromkeys(
        " ".join(found[: number + 1])
        for found in (words.split() for words, _ in every_command())
        for number, part in enumerate(found)
        if part == name
    )
    return [f"`tidewheel {each}`" for each in words]


def _made(words: str, entry: Command | Group) -> TyperCommand | TyperGroup:
    if isinstance(entry, Command):
        return _LazyCommand(words, entry)
    group = _Group(
        entry,
        name=words.split()[-1],
        help=entry.help,
        no_args_is_help=True,
        rich_markup_mode=None,
        context_settings=dict(_CONTEXT),
        epilog=_epilog(words),
    )
    for name, each in entry.commands.items():
        group.add_command(_made(f"{words} {name}", each))
    return group


def _epilog(words: str) -> str | None:
    """Return the examples of a command, which click leaves as they are after a backspace."""
    lines = EXAMPLES.get(words, ())
    return "\n  ".join(("\b\nExamples:" if len(lines) > 1 else "\b\nExample:", *lines)) if lines else None


def _app(*, add_completion: bool = False) -> typer.Typer:
    return typer.Typer(
        name="tidewheel",
        cls=_Named,
        help="A distributed job scheduler: PostgreSQL is the truth, Kafka carries the work.",
        no_args_is_help=True,
        add_completion=add_completion,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings=_CONTEXT,
    )


def _print_version(requested: bool) -> None:  # noqa: FBT001 - as typer calls it
    if requested:
        typer.echo(describe_release())
        raise typer.Exit


def _options(
    version: Annotated[  # noqa: FBT002 - a flag, handled by its callback
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Print the versions of the release, its schema and its protocol.",
        ),
    ] = False,
) -> None:
    """Options of every command."""


def _exit_with(code: int, *lines: str) -> None:
    for line in lines:
        sys.stderr.write(f"tidewheel: {redact(line)}\n")
    sys.exit(code)
