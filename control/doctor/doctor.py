"""All checks, and the diagnosis of the installation that settings name."""

import os

from tidewheel.control.doctor import broker, database, replication
from tidewheel.control.doctor.check import Check, Context, Limits, Report, run_checks
from tidewheel.extras import is_installed
from tidewheel.settings.connections import Connections

CHECKS = (
    Check("database", database.check_database),
    Check("schema", database.check_schema, needs="database"),
    Check("isolation", database.check_isolation, needs="schema"),
    Check("locks", database.check_locks, needs="schema"),
    Check("server", database.check_server, needs="schema"),
    Check("fleet", database.check_fleet, needs="schema"),
    Check("timers", database.check_timers, needs="schema"),
    Check("outbox", database.check_outbox, needs="schema"),
    Check("handlers", database.check_handlers, needs="schema"),
    Check("partitions", database.check_partitions, needs="schema"),
    Check("archive", database.check_archive, needs="schema"),
    Check("retention", database.check_retention, needs="schema"),
    Check("replication", replication.check_replication, needs="database"),
    Check("standby", replication.check_standby_site, needs="schema"),
    Check("vacuum", database.check_vacuum, needs="database"),
    Check("quarantine", database.check_quarantine, needs="schema"),
    Check("order", database.check_order, needs="schema"),
    Check("signatures", database.check_signatures, needs="schema"),
    Check("keys", database.check_keys, needs="schema"),
    Check("broker", broker.check_broker),
    Check("topics", broker.check_topics, needs="broker"),
    Check("disk", broker.check_disk),
)


def diagnose(settings: Connections, limits: Limits | None = None) -> Report:
    """Run all checks on the installation that these settings name."""
    context = Context(settings, limits or Limits())
    if is_installed("local") and settings.database_url is None and not os.environ.get("PGHOST"):
        from tidewheel.local.stack import running_stack  # its packages are an extra

        stack = running_stack()
        context.data_dir = stack.data_dir if stack is not None else None
    return run_checks(CHECKS, context)
