"""`tidewheel job create | update | release | trigger`: change jobs.

The flags that describe a job come from the table of its fields. A flag replaces only the field that it names, in a file
or in the stored job: a new cron expression keeps the zone, a label keeps the other labels.
"""

import inspect
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from functools import wraps
from typing import Annotated, Any

import typer

from tidewheel.control.cli.job_files import read_bytes, read_job
from tidewheel.control.cli.options import (
    DEFAULT_TENANT,
    Delay,
    DryRun,
    IfVersion,
    Key,
    RequestId,
    Tenant,
    Tz,
    read_duration,
    read_labels,
    reading,
    requesting,
    tenant_flag,
)
from tidewheel.control.cli.output import Output, OutputOption, print_document, print_result, print_table, progress_bar
from tidewheel.control.cli.parser import argument, option, switch
from tidewheel.control.cli.run_output import Wait, print_ended_run, wait_for_run
from tidewheel.control.client.enqueue import TriggerOptions
from tidewheel.control.instants import read_instant, read_later
from tidewheel.control.reads.waits import read_lack
from tidewheel.errors import FieldError, InvalidInput, Unavailable, VersionConflict, refuse
from tidewheel.intake.trigger import ACCEPTED
from tidewheel.jobs.invalid import InvalidValue
from tidewheel.jobs.schedule import CronSpec, read_schedule
from tidewheel.jobs.strict_json import as_object
from tidewheel.jobs.targets import TARGETS
from tidewheel.jobs.values import format_timestamp
from tidewheel.nouns.jobs import reads as read
from tidewheel.nouns.jobs.commands import print_job_change
from tidewheel.nouns.jobs.fields import FIELDS, SpecField, put, value_of

MaybeKey = Annotated[str | None, argument("KEY", "The job's key, unless the file has it.")]
Keys = Annotated[list[str] | None, argument("KEY", "Quarantined jobs, by key.")]

_METAVARS = {
    "span": "DURATION",
    "number": "N",
    "instant": "TIME",
    "json": "JSON",
    "pairs": "NAME=VALUE",
    "parents": "KEY",
}
_SEVERAL = frozenset({"list", "pairs", "parents"})
_BY_NAME = {f"field_{each.path.replace('.', '_')}": each for each in FIELDS if each.flag}
_FILE = Annotated[str | None, option("FILE", "The job as JSON or YAML; - is standard input.", "--file", "-f")]
_TZ = Annotated[
    str | None,
    option(
        "ZONE", "IANA time zone for the cron schedule (default: the tenant's, or UTC), and for times without an offset."
    ),
]
_MANUAL = Annotated[bool, switch("Manual: only triggers start runs.", "--manual")]


@dataclass(frozen=True, slots=True)
class JobFlags:
    """The values of a job's flags; `given` has those of its fields."""

    file: str | None
    tz: str | None
    manual: bool
    given: Mapping[SpecField, Any]

    def fields(self, start: str) -> Mapping[str, SpecField]:
        """Return the fields that are given and whose paths start so, by the rest of their paths."""
        return {each.path.removeprefix(start): each for each in self.given if each.path.startswith(start)}


def with_job_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Replace the argument `flags` of a command by the options of a job."""

    @wraps(command)
    def gathered(**given: Any) -> None:  # noqa: ANN401 - as typer has read them
        values = {each: given.pop(name) for name, each in _BY_NAME.items()}
        found = {each: value for each, value in values.items() if value is not None and value != []}
        flags = JobFlags(given.pop("file"), given.pop("tz"), given.pop("manual"), found)
        command(**given, flags=flags)

    own = inspect.signature(command, eval_str=True).parameters
    first, *others = _flag("file", _FILE), _flag("tz", _TZ), _flag("manual", _MANUAL, default=False)
    others += [_flag(name, _option_of(each)) for name, each in _BY_NAME.items()]
    shown = [first, *(each for name, each in own.items() if name != "flags"), *others]
    shown.sort(key=lambda each: each.kind)
    vars(gathered)["__signature__"] = inspect.Signature(shown)
    gathered.__annotations__ = {each.name: each.annotation for each in shown}
    return gathered


def described(job: Mapping[str, object], flags: JobFlags) -> dict[str, object]:
    """Return a job with the values of the flags in place of its own."""
    changed = deepcopy(dict(job))
    changed |= {"schedule": schedule} if (schedule := _schedule(job.get("schedule"), flags)) else {}
    changed |= {"target": target} if (target := _target(job.get("target"), flags)) else {}
    for each, given in flags.given.items():
        if each.path == "payload":
            changed.pop("payload_base64", None)
        if each.kind == "pairs":
            given = {**(as_object(job.get(each.path)) or {}), **read_labels(given)}
        if each.names[0] not in {"schedule", "target"}:
            put(changed, each.names, _value(each, given, flags))
    return changed


def without(job: Mapping[str, object], paths: list[str]) -> dict[str, object]:
    """Return a job without some of its fields, which then have defaults; `labels.team` is one label."""
    changed = dict(job)
    for path in paths:
        first, _, rest = path.partition(".")
        if first not in changed or (rest and as_object(changed[first]) is None):
            refuse("--unset", f"the job does not set {path!r}", f"name one of its fields: {', '.join(changed)}")
        value = changed.pop(first)
        if rest:
            changed[first] = without(as_object(value) or {}, [rest])
    return changed


def read_payload(text: str) -> object:
    """Return the JSON value of a flag, or of the file that it names after an @; refuse what is not JSON."""
    try:
        return json.loads(read_bytes(text[1:], "--payload") if text.startswith("@") else text.encode())
    except UnicodeError:
        refuse("--payload", f"{text[:60]!r} is not valid UTF-8", "write JSON text in UTF-8")
    except ValueError as error:
        problem = f"{text[:60]!r} is not valid JSON ({error})"
        refuse("--payload", problem, 'write JSON text, such as \'{"to": "ann"}\' or \'"ann"\'')


def _value(each: SpecField, given: Any, flags: JobFlags) -> object:  # noqa: ANN401 - as typer has read it
    """Return the value of a field in the form of a request."""
    match each.kind:
        case "number" | "pairs":
            return given
        case "json":
            return read_payload(given)
        case "instant":
            return format_timestamp(read_instant(given, each.flag, flags.tz, ahead=True))
        case _:
            try:
                return value_of(each, "\n".join(given) if each.kind in _SEVERAL else given)
            except InvalidValue as error:
                raise InvalidInput(
                    [FieldError(each.flag, part.problem, part.remedy) for part in error.errors]
                ) from error


def _schedule(current: object, flags: JobFlags) -> Mapping[str, object]:
    """Return the schedule with the flags applied; empty if no flag concerns it."""
    given = flags.fields("schedule.")
    kinds = {name: each.flag for name, each in given.items() if name == each.only}
    kinds |= {"manual": "--manual"} if flags.manual else {}
    if len(kinds) > 1:
        problem = f"{' and '.join(kinds.values())} cannot be combined"
        refuse("schedule", problem, "keep one; several --cron or --after are one schedule")
    cron = _cron(current)
    begun = cron if kinds.keys() <= {"cron"} else {}
    values = {name: _value(each, flags.given[each], flags) for name, each in given.items()}
    values |= {"manual": True} if flags.manual else {}
    # A zone that only reads times without an offset is not stored in a schedule without a zone.
    reads = {"schedule.once", "start_at", "end_at"} & {each.path for each in flags.given}
    if flags.tz is not None and ("cron" in {**begun, **values} or not reads):
        values["timezone"] = flags.tz
    return {**(begun or ({} if kinds else as_object(current) or {})), **values} if values else {}


def _cron(current: object) -> dict[str, object]:
    """Return a cron schedule as an object, even if it is a bare string; empty for another kind."""
    if isinstance(current, str):
        try:
            read = read_schedule(current)
        except InvalidValue:
            return {}
        return {"cron": list(read.cron)} if isinstance(read, CronSpec) else {}
    schedule = as_object(current) or {}
    return dict(schedule) if "cron" in schedule else {}


def _target(current: object, flags: JobFlags) -> Mapping[str, object]:
    """Return the target with the flags applied, another type whole; empty if no flag concerns it."""
    given = flags.fields("target.")
    kinds = {each.only: each.flag for name, each in given.items() if name == TARGETS[each.only].sets}
    if len(kinds) > 1:
        refuse("target", f"{' and '.join(kinds.values())} cannot be combined", "keep one")
    kind, flag = next(iter(kinds.items()), ("http", ""))
    if wrong := next((each for each in given.values() if each.only != kind), None):
        refuse("target", f"{wrong.flag} cannot be used with {flag}", "leave it out")
    target = as_object(current) or {}
    values = {name: _value(each, flags.given[each], flags) for name, each in given.items()}
    return {**(target if target.get("type") == kind else {"type": kind}), **values} if values else {}


def _option_of(each: SpecField) -> Any:  # noqa: ANN401 - an annotation
    kind: Any = int if each.kind == "number" else list[str] if each.kind in _SEVERAL else str
    metavar = each.metavar or _METAVARS.get(each.kind, "POLICY" if each.options else "TEXT")
    return Annotated[kind | None, option(metavar, each.flag_help, each.flag)]


def _flag(name: str, kind: object, *, default: object = None) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


@with_job_flags
def create(
    key: MaybeKey = None,
    *,
    flags: JobFlags,
    paused: Annotated[bool, switch("Create the job paused; it does not fire until you resume it.", "--paused")] = False,
    tenant: Tenant = DEFAULT_TENANT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Create a job from a file, from flags, or both; fail if it exists."""
    document = described(read_job(flags.file) if flags.file else {}, flags)
    document["key"] = key_of(key, document)
    if paused:
        document["paused"] = True
    with requesting(tenant) as client:
        try:
            result = client.submit(document, if_version=0)
        except VersionConflict as refused:
            refuse("KEY", refused.errors[0].problem, "change it with `tidewheel job update`, or choose another key")
    print_job_change("created", result, output, zone=flags.tz or _zone(document))
    _print_lack(tenant, str(document["key"]), output)


@with_job_flags
def update(
    key: MaybeKey = None,
    *,
    flags: JobFlags,
    unset: Annotated[
        list[str] | None, option("FIELD", "Reset a field, such as end_at, to its default; repeatable.")
    ] = None,
    if_version: IfVersion = None,
    tenant: Tenant = DEFAULT_TENANT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Change a job: flags set single fields, a file sets all."""
    given = read_job(flags.file) if flags.file else {}
    job_key = key_of(key, given)
    with reading() as connection:
        current = read.show_job(connection, tenant, job_key, as_stored=True)
    document = {**described(without(given or current.job, unset or []), flags), "key": job_key}
    with requesting(tenant) as client:
        # The update names the version that was read, so a concurrent edit is refused and not overwritten.
        result = client.submit(document, if_version=if_version or current.summary.version)
    print_job_change("updated", result, output, zone=flags.tz or _zone(document))
    _print_lack(tenant, job_key, output)


def trigger(
    key: Key,
    *,
    payload: Annotated[str | None, option("JSON", "Payload instead of the job's; @FILE reads it from a file.")] = None,
    delay: Delay = None,
    run_at: Annotated[str | None, option("TIME", "Start at this time, or at once if it has passed.")] = None,
    label: Annotated[list[str] | None, option("NAME=VALUE", "Label instead of the job's labels; repeatable.")] = None,
    overlap: Annotated[str | None, option("POLICY", "Overlap policy instead of the job's.")] = None,
    concurrency_key: Annotated[str | None, option("KEY", "Concurrency key instead of the job's.")] = None,
    ordering_key: Annotated[
        str | None, option("KEY", "Start after earlier runs with this key; by default the job's.")
    ] = None,
    on_failure: Annotated[
        str, option("POLICY", "With --ordering-key: block the key after a failed run, or skip that run.")
    ] = "block",
    priority: Annotated[int | None, option("N", "Priority instead of the job's, 0 to 9: 9 starts first.")] = None,
    dedupe_key: Annotated[str | None, option("KEY", "Triggers with this key share one run per window.")] = None,
    window: Annotated[
        str | None, option("DURATION", "Window of --dedupe-key, such as 10m; by default the job's.")
    ] = None,
    mode: Annotated[
        str | None,
        option("MODE", "Effect of later triggers: reject, replace or debounce; by default the job's, or reject."),
    ] = None,
    longest: Annotated[str | None, option("DURATION", "With --mode debounce: the longest delay of the run.")] = None,
    wait: Wait = False,
    request_id: RequestId = None,
    timezone: Tz = None,
    tenant: Tenant = DEFAULT_TENANT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Run a job once, now or later; print the run's id."""
    content = None if payload is None else read_payload(payload)
    options = TriggerOptions(
        delay=None if delay is None else read_duration(delay, "--delay"),
        run_at=read_later(run_at, "--run-at", timezone, "leave it out to start the run now") if run_at else None,
        labels=read_labels(label) if label else None,
        overlap=overlap,
        concurrency_key=concurrency_key,
        ordering_key=None if ordering_key is None else {"key": ordering_key, "on_failure": on_failure},
        priority=priority,
        request_id=request_id,
    )
    with requesting(tenant) as client:
        answer = client.trigger_deduped(
            key,
            content,
            dedupe_key=dedupe_key,
            window=None if window is None else read_duration(window, "--window"),
            mode=mode,
            longest=None if longest is None else read_duration(longest, "--longest"),
            **options,
        )
        run_id = answer.run_id
        is_shared = answer.outcome != ACCEPTED or any((dedupe_key, window, mode, longest))
        done: dict[str, object] = {"dedupe": answer.outcome, "runs_at": answer.runs_at} if is_shared else {}
        if wait:
            print_ended_run(wait_for_run(client, run_id), {"key": key, "run_id": run_id}, output)
            return
    text = f"run {run_id}" + (f": {done['dedupe']}" if done else "")
    print_result([text], {"key": key, "run_id": run_id, **done}, output)
    _print_lack(tenant, key, output)


def _print_lack(tenant: str, key: str, output: Output) -> None:
    """Print on standard error why none of the live executors could run a job now, and the remedy."""
    if output is Output.TEXT:
        lack = None
        with suppress(Unavailable), reading() as connection:  # the change is done, whether this can be read or not
            lack = read_lack(connection, tenant, key)
        if lack is not None:
            typer.echo(f"note: {lack.words}; start one: {lack.remedy}", err=True)


def key_of(key: str | None, document: Mapping[str, object]) -> str:
    """Return the key that argument and file agree on."""
    names = sorted({str(each) for each in (key, document.get("key")) if each is not None})
    if not names:
        refuse("key", "is missing", "give the argument KEY, or `key` in the file")
    if len(names) > 1:
        refuse("key", f"the job is named twice: {' and '.join(map(repr, names))}", "keep one")
    return names[0]


def release(
    keys: Keys = None,
    *,
    error: Annotated[str | None, option("TEXT", "Only jobs whose error contains this text.")] = None,
    everything: Annotated[bool, switch("All quarantined jobs; required without a key or an error.", "--all")] = False,
    dry_run: DryRun = False,
    tenant: Tenant = DEFAULT_TENANT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Let quarantined jobs fire again, after you fix the cause.

    A scheduler quarantines a job that it cannot fire, such as one whose time zone no longer exists. The job stops
    firing, and all other jobs continue. `job list --quarantined` lists quarantined jobs, and `job show KEY` shows the
    error. Select jobs by key or by a text in their error, or select all.

    A released job continues where it stopped. Its catch_up decides which of the missed occurrences fire.
    A job that fails again is quarantined again. The command can be repeated: it changes quarantined jobs only.
    """
    with requesting(tenant) as client, progress_bar("releasing", None) as on_progress:
        result = client.release(
            *(keys or ()), error=error, everything=everything, dry_run=dry_run, on_progress=on_progress
        )
    if output is not Output.TEXT:
        print_document(result, output)
        return
    if dry_run:
        typer.echo(f"jobs that would be released: {result.matched:,}")
        if result.first:
            rows = ((job.key, job.created_at, job.error) for job in result.first)
            print_table(("key", "quarantined", "error"), rows)
        return
    typer.echo(f"jobs released: {result.released:,}")
    if result.released:
        command = f"tidewheel job list --quarantined{tenant_flag(tenant)}"
        typer.echo(f"each continues where it stopped; `{command}` lists jobs that fail again")


def _zone(job: Mapping[str, object]) -> str | None:
    zone = (as_object(job.get("schedule")) or {}).get("timezone")
    return zone if isinstance(zone, str) else None
