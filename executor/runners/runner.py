"""The form of a runner, and the types of targets that one executor runs."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace
from difflib import get_close_matches
from typing import Protocol, runtime_checkable

from tidewheel.errors import SettingsError
from tidewheel.executor.attempt import Attempt
from tidewheel.executor.outcome import Outcome, from_exception
from tidewheel.extras import require
from tidewheel.jobs.targets import TARGETS
from tidewheel.schemas.generated.records import TargetKind
from tidewheel.settings.executor import ExecutorSettings


class Runner(Protocol):
    """Runs attempts of one kind of target."""

    async def run(self, attempt: Attempt) -> Outcome:
        """Run an attempt and return its outcome.

        A cancellation of the task means that the attempt's time is over or that it is requested to stop: clean up and
        re-raise. Any other exception is the attempt's failure. Look at `attempt.lease` right before each write to the
        target: once it is over, nothing may be sent, and `NOT_STARTED` is the outcome if nothing was.
        """
        ...

    async def close(self) -> None:
        """Release connections and threads."""
        ...


@runtime_checkable
class Recalling(Protocol):
    """A runner whose client queues what is to be sent."""

    def recall(self) -> None:
        """Take back what is not sent yet: the lease is over. Called from the thread of the heartbeat."""
        ...


class DeferredRunner:
    """Loads a runner with its first attempt, in a thread: most executors never need its modules.

    An attempt that waits for the load has not started: its time does not count, and a stop releases it as not started.

    Args:
        load: Imports and returns the runner. If it raises, the attempts that wait fail and the next one calls it again.
    """

    def __init__(self, load: Callable[[], Runner]) -> None:
        self._load = load
        self._loading: asyncio.Task[Runner | Outcome] | None = None
        self._runner: Runner | None = None

    async def run(self, attempt: Attempt) -> Outcome:
        """Run an attempt and return its outcome."""
        loaded = self._runner or await self._wait_for_load(attempt)
        return loaded if isinstance(loaded, Outcome) else await loaded.run(attempt)

    async def close(self) -> None:
        """Release what was loaded."""
        if self._loading is not None:
            await self._loading
        if self._runner is not None:
            await self._runner.close()

    async def _wait_for_load(self, attempt: Attempt) -> Runner | Outcome:
        if self._loading is None:
            self._loading = asyncio.create_task(self._load_once())
        loading = asyncio.shield(self._loading)  # other attempts wait for it too
        attempt.wait_for_worker(loading.cancel)
        loaded = await loading
        attempt.restart_clock(asyncio.get_running_loop())
        return loaded

    async def _load_once(self) -> Runner | Outcome:
        """Return the runner, or the outcome of the attempts that wait for it."""
        try:
            self._runner = loaded = await asyncio.to_thread(self._load)
            return loaded
        except Exception as error:  # noqa: BLE001 - whatever the import of a library raises
            return replace(from_exception(error), not_started=True)
        finally:
            self._loading = None


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
