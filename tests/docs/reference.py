"""Write the pages that code defines: `python -m tests.docs.reference`.

A test compares them with the code.
"""

import sys
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from types import UnionType
from typing import Annotated, Literal, Union, cast, get_args, get_origin

from annotated_types import Ge, Gt, Le
from pydantic import SecretStr
from pydantic.fields import FieldInfo

from tests.docs.asyncapi import PAGE as ASYNCAPI
from tests.docs.asyncapi import asyncapi
from tests.docs.reference_errors import errors_page
from tests.docs.reference_messages import messages_page, requests_page
from tests.docs.reference_tables import PAGE as TABLES
from tests.docs.reference_tables import migrated, tables_page
from tests.docs.tables import table
from tidewheel.jobs.values import format_duration
from tidewheel.process.metrics import METRICS, Kind
from tidewheel.settings.connections import Connections
from tidewheel.settings.executor import ExecutorSettings
from tidewheel.settings.services import ApiSettings, ArchiveSettings, IntakeSettings, RelaySettings, SchedulerSettings
from tools.bench.figures import PAGE as FIGURES
from tools.bench.figures import current_page

DOCS = Path(__file__).parents[2] / "docs"

_COMMANDS: dict[str, type[Connections]] = {
    "service intake": IntakeSettings,
    "service scheduler": SchedulerSettings,
    "service relay": RelaySettings,
    "service executor": ExecutorSettings,
    "service api": ApiSettings,
    "admin archive": ArchiveSettings,
}
_SETTINGS_HEAD = """\
# Settings

<!-- Generated from `tidewheel/settings/` by `python -m tests.docs.reference`.
A test compares the two. Edit the models. -->

A flag wins over the environment, the environment over the TOML file that `TIDEWHEEL_CONFIG` names. In the file a
setting has its name in lower case without the prefix: `lease = "20s"`. One file may serve every service. An unknown
name in it is refused, with the nearest known one. Each process warns once of an unknown
`TIDEWHEEL_…` in its environment, with the nearest known one.

A **list** has commas or line ends between its entries in the environment: `orders.*,invoices`. In the file it is a TOML
list: `kafka_topics = ["orders.*", "invoices"]`. An entry with a comma in it can stand in the file only.

A **duration** is written as in requests: `10s`, `5m`, `1h30m`, `250ms`, ISO 8601 (`PT5S`), or a number of seconds. A
value that does not fit ends the process with exit code 1 and one line that names the variable.
"""
_OUTSIDE: tuple[tuple[str, str, str], ...] = (
    ("`TIDEWHEEL_CONFIG`", "every command", "path of the TOML file"),
    (
        "`TIDEWHEEL_KAFKA_CONFIG_<KEY>`",
        "every Kafka client",
        "passed through: `TIDEWHEEL_KAFKA_CONFIG_SASL_USERNAME` is `sasl.username`. Refused, since promises depend on"
        " them: `acks`, `enable.idempotence`, `enable.auto.commit`, `enable.auto.offset.store`, `auto.offset.reset`,"
        " `partitioner`",
    ),
    (
        "`TIDEWHEEL_SECRET_<NAME>`",
        "`executor`",
        "`host[,host…]=value`: a [secret](http-targets.md#secrets) that jobs of the tenant `default` name in headers",
    ),
    (
        "`PGHOST`, `PGHOSTADDR`, `PGSERVICE`, `PGDATABASE`",
        "every command",
        "where one of them is set and `TIDEWHEEL_DATABASE_URL` is not, libpq's own variables name the database",
    ),
    (
        "`TIDEWHEEL_HOME`, `TIDEWHEEL_CACHE_DIR`, `TIDEWHEEL_MAVEN_REPOSITORY`",
        "`up`, `down`, `status`, and every command that looks for the local stack",
        "see [tidewheel/local](../tidewheel/local/README.md)",
    ),
    (
        "`TIDEWHEEL_FAILPOINT`",
        "tests",
        "ends the process by SIGKILL at a named point (`tidewheel/process/failpoint.py`)",
    ),
)
_METRICS_HEAD = """\
# Metrics

<!-- Generated from `METRICS` in `tidewheel/process/metrics.py` by `python -m tests.docs.reference`.
A test compares the two. Edit the table. -->

A service serves them in Prometheus text on 127.0.0.1 when it has a port: `--metrics-port 9464`, or
`TIDEWHEEL_METRICS_PORT`; `0` takes a free port and logs it. `TIDEWHEEL_METRICS_HOST` is the address. Every service
registers every metric. Metrics of other services stay at 0 or have no sample. A histogram has `_bucket`, `_sum` and
`_count`. Alert rules and a dashboard: [telemetry](telemetry.md).

What a transaction does is counted after its COMMIT; a process that is killed between the two does not count it. The
exact numbers are in the tables and on the topics.
"""
_NONE = "none"


def main() -> None:
    """Write the pages that differ."""
    with migrated() as connection:
        of_catalog = {TABLES: tables_page(connection)}
    for path, text in ({path: make() for path, make in PAGES.items()} | of_catalog).items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            sys.stdout.write(f"wrote {path.name}\n")


def settings_page() -> str:
    """Return every setting: name, default, accepted values, meaning."""
    parts = [_SETTINGS_HEAD, _section("Every service", Connections.model_fields)]
    for command, model in _COMMANDS.items():
        own = {name: field for name, field in model.model_fields.items() if name not in Connections.model_fields}
        parts.append(_section(f"`tidewheel {command}`", own))
    outside = table(("Variable", "Read by", "Meaning"), _OUTSIDE)
    return "\n".join([*parts, "## Outside the models", "", outside, ""])


def metrics_page() -> str:
    """Return every metric as Prometheus sees it."""
    rows: list[tuple[str, ...]] = []
    for metric in METRICS:
        suffix = "_total" if metric.kind is Kind.COUNTER else ""
        labels = ", ".join(f"`{label}`" for label in metric.labels) or _NONE
        rows.append((f"`tidewheel_{metric.name}{suffix}`", metric.kind.value, metric.unit, labels, metric.meaning))
    return "\n".join([_METRICS_HEAD, table(("Metric", "Kind", "Unit", "Labels", "Meaning"), rows), ""])


def _section(title: str, fields: dict[str, FieldInfo]) -> str:
    rows = [
        (f"`TIDEWHEEL_{name.upper()}`", _default(field), _takes(field), field.description or "")
        for name, field in fields.items()
    ]
    return "\n".join([f"## {title}", "", table(("Variable", "Default", "Takes", "Meaning"), rows), ""])


def _default(field: FieldInfo) -> str:
    return _NONE if field.default is None or field.default == () else f"`{_written(field.default)}`"


def _written(value: object) -> str:
    """Return a value in the environment's form."""
    match value:
        case timedelta():
            return format_duration(value)
        case bool():
            return str(value).lower()
        case tuple():
            return ",".join(map(str, cast("tuple[object, ...]", value)))
        case _:
            return str(value)


def _takes(field: FieldInfo) -> str:
    kind = _kind(field.annotation)
    low = next((f"{_written(m.ge)} or more" for m in field.metadata if isinstance(m, Ge)), "")
    above = next((f"more than {_written(m.gt)}" for m in field.metadata if isinstance(m, Gt)), "")
    high = next((f"{_written(m.le)} at most" for m in field.metadata if isinstance(m, Le)), "")
    pattern = next((f"matching `{m.pattern}`" for m in field.metadata if getattr(m, "pattern", None)), "")
    return ", ".join(filter(None, (kind, low or above, high, pattern)))


def _kind(annotation: object) -> str:
    origin = get_origin(annotation)
    if origin is Annotated:
        return _kind(get_args(annotation)[0])
    if origin is tuple:
        return "a list"
    if origin in (Union, UnionType):
        return next(_kind(part) for part in get_args(annotation) if part is not type(None))
    if origin is Literal:
        return " or ".join(f"`{choice}`" for choice in get_args(annotation))
    names: dict[object, str] = {
        timedelta: "a duration",
        int: "a whole number",
        float: "a number",
        bool: "`true` or `false`",
        str: "text",
        Path: "a path",
        SecretStr: "text, never shown",
    }
    return names[annotation]


PAGES: Mapping[Path, Callable[[], str]] = {
    DOCS / "settings.md": settings_page,
    DOCS / "metrics.md": metrics_page,
    DOCS / "messages.md": messages_page,
    DOCS / "messages-requests.md": requests_page,
    DOCS / "errors.md": errors_page,
    FIGURES: current_page,
    ASYNCAPI: asyncapi,
}
"""The text of each generated page that needs no database, made when it is called: one parses the hot path."""

if __name__ == "__main__":
    main()
