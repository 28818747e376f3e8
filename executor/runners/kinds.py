"""The types of targets that one executor runs, by its settings."""

from collections.abc import Iterable
from difflib import get_close_matches

from tidewheel.errors import SettingsError
from tidewheel.extras import require
from tidewheel.jobs.targets import TARGETS
from tidewheel.schemas.generated.records import TargetKind
from tidewheel.settings.executor import ExecutorSettings


def target_kinds(settings: ExecutorSettings) -> list[TargetKind]:
    """Return the types of targets that an executor runs."""
    if unknown := next((name for name in settings.targets if name not in TARGETS), None):
        near = get_close_matches(unknown, TARGETS, n=1)
        remedy = f"did you mean {near[0]!r}?" if near else f"write some of {', '.join(TARGETS)}"
        message = f"TIDEWHEEL_TARGETS: there is no type of target {unknown!r}; {remedy}"
        raise SettingsError(message)
    if not settings.targets:
        message = f"TIDEWHEEL_TARGETS: an executor without targets runs nothing; write some of {', '.join(TARGETS)}"
        raise SettingsError(message)
    lists = {
        TargetKind.KAFKA: ("TIDEWHEEL_KAFKA_TOPICS", settings.kafka_topics),
        TargetKind.SHELL: ("TIDEWHEEL_SHELL_ALLOW", settings.shell_allow),
        TargetKind.LAMBDA: ("TIDEWHEEL_LAMBDA_FUNCTIONS", settings.lambda_functions),
    }
    kinds = [TargetKind(kind) for kind in TARGETS if kind in settings.targets]
    for kind in kinds:
        variable, entries = lists.get(kind, ("", ("*",)))
        if not entries:
            message = f"TIDEWHEEL_TARGETS names {kind}, but {variable} is empty; name what jobs may use, or * for all"
            raise SettingsError(message)
    if TargetKind.LAMBDA in kinds:
        require("lambda", "TIDEWHEEL_TARGETS with lambda")
    return kinds


def capabilities(kinds: Iterable[TargetKind]) -> frozenset[str]:
    """Return the names by which an executor registers these types, beside its handlers."""
    return frozenset(name for kind in kinds if (name := TARGETS[kind].requires))
