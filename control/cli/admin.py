"""`tidewheel migrate`, `admin schemas`, `admin topics`, and `admin secrets` with the rotation of keys.

A secret has a table whose keys all verify, and whose newest key signs once services know it. A rotation keeps the key
before the newest, so nothing on its way is refused. Services read these tables, and only this module writes them.
"""

from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Final, cast

import typer

from tidewheel import message_signatures, task_token_keys
from tidewheel.audit import ALL_TENANTS, Change, Door, process_actor, record_change
from tidewheel.control.cli.dev import joined
from tidewheel.control.cli.exit_codes import ExitCode
from tidewheel.control.cli.options import Replication, check_replication, checked_url, read_duration
from tidewheel.control.cli.output import Output, OutputOption, print_result, print_rows
from tidewheel.control.cli.parser import argument, option, switch
from tidewheel.errors import SettingsError, refuse
from tidewheel.kafka import topics
from tidewheel.kafka.topics import (
    PartitionCounts,
    Topics,
    queue_names,
    queues_with_topics,
    tenant_names,
    tenants_with_topics,
    topic_statuses,
)
from tidewheel.migrations import runner
from tidewheel.migrations.registrations import forget_silent as forget_silent_processes
from tidewheel.migrations.service_roles import ROLES
from tidewheel.postgres.session import Conn, connect
from tidewheel.postgres.statements import Statements
from tidewheel.redaction import protect
from tidewheel.schemas import registry
from tidewheel.schemas.avro import check
from tidewheel.settings.connections import Connections
from tidewheel.transitions.installation import record_schema_ids

_LEAST_SILENCE = timedelta(minutes=1)
MIN_ROTATION_SECONDS: Final = 60  # until then messages and tokens of the key before the newest may be unread

_SQL = Statements("tidewheel.control")

Queues = Annotated[
    list[str] | None,
    option("NAMES", "Queues, separated by commas; repeatable; by default `default` and every queue that has topics."),
]

Tenants = Annotated[
    list[str] | None,
    option(
        "NAMES", "Tenants with topics of their own, separated by commas; repeatable; by default all that have them."
    ),
]

Revoke = Annotated[bool, switch("Invalidate all other keys at once, because one has leaked.", "--revoke")]


def rotate_message_keys(connection: Conn, *, revoke: bool = False) -> int:
    """Add a key of run messages, and delete those that no longer verify; in the caller's transaction."""
    connection.execute(_SQL["lock_message_keys"])
    newest = connection.execute(_SQL["read_message_key_age"], binary=True).fetchone()
    if newest is not None and not revoke:
        _ensure_old(cast("float", newest[0]), "messages signed with the previous key may be unread")
    added = cast("tuple[int]", connection.execute(_SQL["add_message_key"], binary=True).fetchone())
    connection.execute(_SQL["delete_message_keys"], {"kept": 1 if revoke else 2})
    return added[0]


def rotate_task_tokens(connection: Conn, *, revoke: bool = False) -> int:
    """Add a key of task tokens, and delete those before the newest; in the caller's transaction."""
    connection.execute(_SQL["lock_task_token_keys"])
    rows = connection.execute(_SQL["read_task_token_key_ages"], binary=True).fetchall()
    ages = [age for (age,) in cast("list[tuple[float]]", rows)]
    if ages and not revoke:
        _ensure_old(ages[0], "services still sign with the previous key")
        if len(ages) > 1:
            _ensure_none_is_lost(connection)
    added = cast("tuple[int]", connection.execute(_SQL["add_task_token_key"], binary=True).fetchone())
    connection.execute(_SQL["delete_task_token_keys"], {"kept": 1 if revoke else 2})
    connection.execute(_SQL["replace_readable_key"])
    return added[0]


ROTATIONS: Mapping[str, tuple[Callable[..., int], int]] = {
    "run-messages": (rotate_message_keys, message_signatures.SIGNS_AFTER_SECONDS),
    "task-tokens": (rotate_task_tokens, task_token_keys.SIGNS_AFTER_SECONDS),
}
"""The secrets by name: how each is rotated, and the seconds after which its new key signs."""


def _ensure_old(age: float, why: str) -> None:
    if age < MIN_ROTATION_SECONDS:
        raise SettingsError(
            f"the newest key is {age:.0f} s old, and {why}; rotate again in {MIN_ROTATION_SECONDS - age:.0f} s, or"
            " revoke all other keys at once with --revoke"
        )


def _ensure_none_is_lost(connection: Conn) -> None:
    columns = {"signs_after": task_token_keys.SIGNS_AFTER_SECONDS}
    row = connection.execute(_SQL["count_attempts_of_old_keys"], columns, binary=True).fetchone()
    [count] = cast("tuple[int]", row)
    if count:
        raise SettingsError(
            f"{count} open attempts may have a task token of the key that this rotation deletes; rotate after their"
            " end, or revoke all other keys at once with --revoke, so that waiting attempts end by their timeouts"
        )


def migrate(
    status: Annotated[bool, switch("Only show the state of each migration.", "--status")] = False,  # noqa: FBT002
    dry_run: Annotated[bool, switch("Run the pending migrations, then roll back.", "--dry-run")] = False,  # noqa: FBT002
    *,
    post: Annotated[
        bool, switch("Apply the …_post migrations, after the last process of the previous release.", "--post")
    ] = False,
    forget_silent: Annotated[
        str | None,
        option(
            "DURATION", "With --post: first delete registrations of killed processes of other releases, silent so long."
        ),
    ] = None,
    roles: Annotated[bool, switch("Also create a role for each service, with the rights it needs.", "--roles")] = False,
    passwords: Annotated[
        Path | None,
        option(
            "FOLDER", "With --roles: only services with a password file in this folder, such as `relay`, can log in."
        ),
    ] = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Migrate the database to this release's schema."""
    if passwords is not None and not roles:
        refuse("--passwords", "needs --roles", "add --roles, or leave it out")
    silent = _read_silence(forget_silent, post=post, dry_run=dry_run or status) if forget_silent is not None else None
    settings = Connections.load()
    url = settings.database()
    if status:
        states = [(row.name, row.state.value, row.applied_at) for row in runner.status(url)]
        print_result([f"{state:<8} {name}" for name, state, _ in states], {"migrations": states}, output)
        return
    forgotten = [] if silent is None else forget_silent_processes(url, silent)
    for each in forgotten:
        typer.echo(f"forgot   {each}", err=output is not Output.TEXT)
    applied = runner.migrate(
        url,
        dry_run=dry_run,
        post=post,
        tenant_role=settings.role_of_tenants,
        role_prefix=settings.role_prefix,
        roles=_read_passwords(passwords) if roles else None,
    )
    verb = "would apply" if dry_run else "applied"
    left = [] if post or not any(each.is_post for each in runner.migrations()) else runner.pending_post(url)
    lines = [f"{verb} {name}" for name in applied]
    if roles:
        lines.append(f"{'would grant' if dry_run else 'granted'} the rights of the roles {settings.role_prefix}_…")
    lines = lines or ["nothing to do"]
    lines += [
        f"left     {name}: `tidewheel migrate --post`, after the last process of the previous release" for name in left
    ]
    print_result(lines, {verb.replace(" ", "_"): applied, "left": left}, output)


def _read_silence(text: str, *, post: bool, dry_run: bool) -> timedelta:
    silent = read_duration(text, "--forget-silent")
    if dry_run or not post:
        refuse("--forget-silent", "needs --post without --dry-run", "run `tidewheel migrate --post` with it")
    if silent < _LEAST_SILENCE:
        refuse("--forget-silent", "is shorter than a minute, and processes that live would count", "give 5m, or longer")
    return silent


def _read_passwords(folder: Path | None) -> dict[str, str]:
    """Return the passwords in a folder, by role."""
    found: dict[str, str] = {}
    try:
        for file in sorted(folder.iterdir()) if folder else ():
            if file.name.startswith("."):
                continue  # of the volumes of Kubernetes
            if file.name not in ROLES:
                refuse("--passwords", f"{file.name} is not a role", f"name the files {', '.join(ROLES)}")
            found[file.name] = file.read_text().rstrip("\r\n")
            if not found[file.name]:
                refuse("--passwords", f"{file.name} is empty", "write the password into the file, or delete the file")
    except (OSError, UnicodeDecodeError) as error:
        refuse("--passwords", str(error), "give a folder with a readable file for each role")
    protect(*found.values())
    return found


def check_schemas(output: OutputOption = Output.TEXT) -> None:
    """Check the schemas against every released version; exit code 1 on a conflict."""
    found = check()
    print_result(found or ["all schemas are compatible with every released version"], {"problems": found}, output)
    if found:
        raise typer.Exit(ExitCode.FAILED)


def register_schemas(
    dry_run: Annotated[bool, switch("Print what would be registered; change nothing.", "--dry-run")] = False,  # noqa: FBT002
    output: OutputOption = Output.TEXT,
) -> None:
    """Register this release's schemas in the schema registry, and record their ids in the database.

    A repeat changes nothing. The exit code is 1 if the registry refuses a schema, or would refuse it with
    --dry-run, and 6 if it does not answer. --dry-run does not need the database.
    """
    settings = Connections.load()
    if settings.schema_registry_url is None:
        raise SettingsError("TIDEWHEEL_SCHEMA_REGISTRY_URL is not set; write http://host:port")
    names = Topics(settings.topic_prefix)
    subjects = {
        f"{names.completions}-value": "RunCompleted",
        f"{names.events}-value": "LifecycleEvent",
        f"{names.dead_letters}-value": "DeadLetter",
        f"{names.replies}-value": "Reply",
        f"{names.requests}-value": "Request",
    }
    client = registry.Registry(settings.schema_registry_url.get_secret_value())
    if dry_run:
        found = registry.registered_schemas(client, subjects)
        facts = [{"subject": each, "name": subjects[each], "id": number} for each, number in found.items()]
        lines = [
            f"would register {subject} ({subjects[subject]})" if number is None
            else f"{number:>6} {subject} ({subjects[subject]}) is registered"
            for subject, number in found.items()
        ]  # fmt: skip
        print_result(
            lines, {"would_register": [each for each in facts if each["id"] is None], "schemas": facts}, output
        )
        return
    recorded = registry.register_schemas(client, subjects)
    with connect(checked_url(), "tidewheel-schemas") as connection:
        record_schema_ids(connection, recorded)
        connection.commit()
    lines = [f"{facts['id']:>6} {facts['subject']} ({name})" for name, facts in recorded.items()]
    print_result(lines, {"schemas": recorded}, output)


def apply_topics(
    queues: Queues = None,
    tenants: Tenants = None,
    replication: Replication = None,
    dry_run: Annotated[bool, switch("Print the changes; change nothing.", "--dry-run")] = False,  # noqa: FBT002
    output: OutputOption = Output.TEXT,
) -> None:
    """Create missing topics; raise partition counts that are too low."""
    check_replication(replication)
    settings = Connections.load(replication=replication)
    config, names = settings.kafka_config(), Topics(settings.topic_prefix)
    wanted = _wanted(settings, config, names, queues, tenants)
    done = topics.apply_topics(config, names, replication=settings.replication, dry_run=dry_run, **wanted)
    print_result(done or ["nothing to do"], {"would_do" if dry_run else "done": done}, output)


def list_topics(queues: Queues = None, tenants: Tenants = None, output: OutputOption = Output.TEXT) -> None:
    """List the topics and what `topics apply` would change."""
    settings = Connections.load()
    config, names = settings.kafka_config(), Topics(settings.topic_prefix)
    found = topic_statuses(config, names, **_wanted(settings, config, names, queues, tenants))
    document = [
        {
            "topic": each.topic.name,
            "partitions": each.partitions,
            "wanted_partitions": each.topic.partitions,
            "copies": each.copies,
            "would_be": each.lacks,
        }
        for each in found
    ]
    rows = [
        (
            each.topic.name,
            f"{each.partitions} of {each.topic.partitions}" if each.lacks else str(each.partitions),
            str(each.copies),
            f"would be {each.lacks}" if each.lacks else "nothing to do",
        )
        for each in found
    ]
    print_rows(("topic", "partitions", "copies", "apply"), rows, {"topics": document}, output)


def _wanted(
    settings: Connections, config: dict[str, str], names: Topics, queues: list[str] | None, tenants: list[str] | None
) -> dict[str, Any]:
    """Return the topics that an installation should have."""
    queue, tenant, present = joined(queues), joined(tenants), tenants_with_topics(config, names)
    return {
        "queues": queues_with_topics(config, names) if queue is None else queue_names(queue),
        "tenants": present if tenant is None else tenant_names(tenant, present),
        "outputs": settings.outputs_topic,
        "counts": PartitionCounts(settings.runs_partitions, settings.events_partitions, settings.tenant_partitions),
    }


def rotate(
    name: Annotated[str, argument("NAME", f"{' or '.join(ROTATIONS)}.")],
    revoke: Revoke = False,  # noqa: FBT002 - a flag
    output: OutputOption = Output.TEXT,
) -> None:
    """Add a signing key for run messages or task tokens; keep only the previous key beside it.

    The keys are in the database, and services read a new one within seconds, without a restart. Rotate keys as often
    as your rules for passwords require.

    run-messages: relays sign each message that brings a run to executors, so that no other client of Kafka starts a
    run. Messages signed with the previous key stay valid until the next rotation. With --revoke, executors ignore
    those messages and read the runs from the database some seconds later: no run is lost.

    task-tokens: the holder of an attempt's token may report its end from outside. Tokens of the previous key stay
    valid until the next rotation, which is refused while an attempt with such a token is open. With --revoke, those
    attempts end by their timeouts.
    """
    if name not in ROTATIONS:
        refuse("NAME", f"{name!r} is not a secret that can be rotated", f"write {' or '.join(ROTATIONS)}")
    work, signs_after_seconds = ROTATIONS[name]
    with connect(checked_url(), "tidewheel-secrets") as connection:
        key_id = work(connection, revoke=revoke)
        change = Change(ALL_TENANTS, "secret.rotate", f"secret/{name}/{key_id}")
        record_change(connection, process_actor(Door.CLI), change)
    signs = "at once" if revoke else f"in {signs_after_seconds} s"
    others = "all other keys are deleted" if revoke else "the previous key stays valid"
    print_result([f"added key {key_id}, which signs {signs}; {others}"], {"key_id": key_id}, output)
