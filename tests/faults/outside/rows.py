"""The rows of the fault matrix: each injects a fault, and heals it."""

import os
import random
import signal
from contextlib import suppress
from typing import Any, ClassVar

from tests.faults.outside.load import Load
from tests.faults.outside.process import until
from tests.faults.outside.records import now_us, read_lines
from tests.faults.outside.site import LEASE_SECONDS, SERVICES, Site

PAST_LEASE = LEASE_SECONDS + 3.0
ONE = {"intake": "intake", "scheduler": "a scheduler", "relay": "a relay", "executor": "an executor"}
_LONG_CALLS = 24  # of both executors; far less than their slots
_LONG_SECONDS = 30.0


class Row:
    """One row.

    `hold` is the time in seconds between fault and heal. Every check holds in every row. `expected` is for the report.
    `holds_commits` is True if a transaction may commit more than a second after it has read the clock.
    """

    name: ClassVar[str]
    hold: ClassVar[float] = 3.0
    expected: ClassVar[str] = "other processes take over"
    holds_commits: ClassVar[bool] = False

    @classmethod
    def of(cls, **values: object) -> "type[Row]":
        """Return a row that differs from this one in these values alone."""
        return type(cls.__name__, (cls,), values)

    def __init__(self, site: Site, load: Load, seed: int) -> None:
        self.site, self.load = site, load
        self.random = random.Random(f"{seed} {self.name}")  # noqa: S311
        self.detail: dict[str, Any] = {"holds_commits": self.holds_commits}

    def inject(self) -> None:
        """Begin."""
        raise NotImplementedError

    def heal(self) -> None:
        """Remove the cause; everything has to recover by itself from here."""
        raise NotImplementedError

    def choose(self, role: str) -> str:
        """Choose a service of a role."""
        name = self.random.choice(self.site.named(role))
        self.detail["victim"] = name
        return name


class Crash(Row):
    """SIGKILL one service; it is started again up to three seconds later."""

    role: ClassVar[str]

    def inject(self) -> None:
        self.victim = self.choose(self.role)
        self.site.kill(self.victim)

    def heal(self) -> None:
        self.site.start(self.victim)


CRASH: dict[str, type[Row]] = {
    "intake": Crash.of(name="crash of intake", role="intake", hold=1.0, expected="requests wait; each is applied once"),
    "scheduler": Crash.of(name="crash of a scheduler", role="scheduler"),
    "relay": Crash.of(name="crash of a relay", role="relay"),
    "executor": Crash.of(
        name="crash of an executor", role="executor", expected="its attempts are lost after the lease, and run again"
    ),
}


class CrashAll(Row):
    name, hold = "crash of all services", 2.0
    expected = "everything due meanwhile fires late"

    def inject(self) -> None:
        self.site.kill(*SERVICES)

    def heal(self) -> None:
        self.site.start(*SERVICES)


class Pause(Row):
    """SIGSTOP one service past the lease."""

    role: ClassVar[str]
    hold = PAST_LEASE
    expected = "other processes take over; what it does afterwards changes nothing"
    holds_commits = True

    def inject(self) -> None:
        self.victim = self.choose(self.role)
        self.site.pause(self.victim)

    def heal(self) -> None:
        self.site.resume(self.victim)


PAUSE: dict[str, type[Row]] = {role: Pause.of(name=f"pause of {one}", role=role) for role, one in ONE.items()}


class PauseExecutorInCalls(Row):
    """SIGSTOP one executor while its calls are open, until another executor makes them as attempt 2."""

    name, hold = "pause of an executor in the midst of long calls", 0.0
    expected = "attempt 2 ends the run; the late outcome of attempt 1 changes nothing"
    holds_commits = True

    def inject(self) -> None:
        since = now_us()
        self.victim = self.choose("executor")
        self.load.hold_slots(_LONG_CALLS, "long")
        until(lambda: len(self._made(1, since)) == _LONG_CALLS, "the long calls are open", _LONG_SECONDS)
        self.site.pause(self.victim)
        self.paused = now_us()

    def heal(self) -> None:
        with suppress(AssertionError):  # another executor had them all
            until(lambda: self._made(2, self.paused), "attempt 2 of a long call", _LONG_SECONDS)
        self.detail["repeated"] = len(self._made(2, self.paused))
        self.site.resume(self.victim)

    def _made(self, attempt: int, since: int) -> list[dict[str, Any]]:
        """Return the calls of long runs since an instant."""
        lines = [line for line in read_lines(self.site.effects) if line.get("job_key") == "long"]
        return [line for line in lines if line["attempt"] == attempt and line["received"] > since]


class PauseBroker(Row):
    name, hold = "pause of the broker", PAST_LEASE
    expected = "due runs are claimed from the table; messages wait"

    def inject(self) -> None:
        self.site.stack.broker(1).pause()

    def heal(self) -> None:
        self.site.stack.broker(1).resume()


class PauseServerProcess(Row):
    name, hold = "pause of a server process of PostgreSQL", PAST_LEASE
    expected = "the service that it serves stands still, and what its transaction has locked"
    holds_commits = True

    def inject(self) -> None:
        self.pid = self.random.choice(self.site.backends())
        self.detail["victim"] = self.pid
        os.kill(self.pid, signal.SIGSTOP)

    def heal(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGCONT)


class CutSessions(Row):
    name, hold = "end of every session", 1.0
    expected = "a commit with a lost answer is looked up, not repeated"

    def inject(self) -> None:
        with self.site.database() as connection:
            for pid in self.site.backends():
                connection.execute("SELECT pg_terminate_backend(%s)", [pid])

    def heal(self) -> None:
        """Nothing is to be healed."""


class KillPostmaster(Row):
    name = "SIGKILL of the postmaster"
    expected = "a database restart ends no attempt"

    def inject(self) -> None:
        self.site.kill_postmaster()

    def heal(self) -> None:
        self.site.start_database()


class KillBroker(Row):
    name, hold = "SIGKILL of the broker", 6.0
    expected = "due runs are claimed from the table; messages wait"

    def inject(self) -> None:
        self.site.stack.broker(1).kill()

    def heal(self) -> None:
        self.site.start_broker()


class CrashRelaysInOutage(Row):
    name, hold = "crash of the relays while the broker is away", 4.0
    expected = "no row is deleted without its delivery report"

    def inject(self) -> None:
        self.site.stack.broker(1).kill()

    def heal(self) -> None:
        relays = self.site.named("relay")
        self.site.kill(*relays)
        self.site.start_broker()
        self.site.start(*relays)


class KillBoth(Row):
    name, hold = "SIGKILL of the postmaster and the broker", 5.0

    def inject(self) -> None:
        self.site.kill_postmaster()
        self.site.stack.broker(1).kill()

    def heal(self) -> None:
        self.site.start_database()
        self.site.start_broker()


class StartMeanwhile(Row):
    name, hold = "services that start without PostgreSQL and broker", 8.0
    expected = "they wait, as services at work do"

    def inject(self) -> None:
        self.site.kill_postmaster()
        self.site.stack.broker(1).kill()
        self.site.kill(*SERVICES)
        self.site.start(*SERVICES)

    def heal(self) -> None:
        self.site.start_database()
        self.site.start_broker()


class FullSlots(Row):
    name, hold = "executors whose slots are full, and one is killed", 4.0
    expected = "runs wait for a slot; none is lost"

    def inject(self) -> None:
        self.load.hold_slots(160)
        self.victim = self.choose("executor")

    def heal(self) -> None:
        self.site.kill(self.victim)
        self.site.start(self.victim)


class PauseTarget(Row):
    name, hold = "pause of the HTTP target", 6.0
    expected = "calls wait or time out"

    def inject(self) -> None:
        os.kill(self.site.receiver.pid, signal.SIGSTOP)

    def heal(self) -> None:
        os.kill(self.site.receiver.pid, signal.SIGCONT)


class KillTarget(Row):
    name, hold = "SIGKILL of the HTTP target", 4.0
    expected = "refused calls are retried"

    def inject(self) -> None:
        self.site.receiver.kill()
        self.site.receiver.wait()

    def heal(self) -> None:
        self.site.start_receiver()


class WrongClock(Row):
    """Start one service again with another clock than the database's; afterwards with the right one."""

    name, hold = "a service with a wrong clock", 6.0
    expected = "the database's clock decides what is due"

    def inject(self) -> None:
        self.victim = self.random.choice(SERVICES)
        self.detail["victim"] = self.victim
        self.detail["clock"] = self.random.choice(("ahead 120", "ahead -120", "fast 2"))
        self.site.kill(self.victim)
        self.site.start(self.victim, clock=self.detail["clock"], wait=True)

    def heal(self) -> None:
        self.site.kill(self.victim)
        self.site.start(self.victim)


class KillOneBroker(Row):
    """SIGKILL one broker of three."""

    name, hold = "SIGKILL of one broker of three", 8.0
    expected = "the other two lead its partitions; nothing that was acknowledged is lost"

    def inject(self) -> None:
        self.number = self.random.randint(1, self.site.brokers)
        self.detail["victim"] = self.number
        self.site.stack.broker(self.number).kill()

    def heal(self) -> None:
        self.site.start_broker(self.number)


class PauseOneBroker(KillOneBroker):
    name = "pause of one broker of three"

    def inject(self) -> None:
        self.number = self.random.randint(1, self.site.brokers)
        self.detail["victim"] = self.number
        self.site.stack.broker(self.number).pause()

    def heal(self) -> None:
        self.site.stack.broker(self.number).resume()


class RollingRestart(Row):
    name, hold = "rolling restart of everything", 0.0
    expected = "each service ends by itself in time"

    def inject(self) -> None:
        took: dict[str, list[float]] = {}
        for name in SERVICES:
            took |= self.site.stop(name)
            self.site.start(name, wait=True)
        self.detail["stopped"] = took

    def heal(self) -> None:
        """Nothing is to be healed."""


class StopAfterOutage(Row):
    name, hold = "stop of everything after a restart of the broker", 1.0
    expected = "each service ends by itself in time"

    def inject(self) -> None:
        self.site.stack.broker(1).kill()
        self.site.start_broker()

    def heal(self) -> None:
        self.detail["stopped"] = self.site.stop(*SERVICES)
        self.site.start(*SERVICES)


class Away(Row):
    name, hold = "everything down for a while", 15.0
    expected = "catch_up decides what is missed, and it is recorded"

    def inject(self) -> None:
        self.site.kill(*SERVICES)
        self.site.kill_postmaster()
        self.site.stack.broker(1).kill()

    def heal(self) -> None:
        self.site.start_database()
        self.site.start_broker()
        self.site.start(*SERVICES)


PROCESSES: tuple[type[Row], ...] = (
    *CRASH.values(),
    *PAUSE.values(),
    PauseExecutorInCalls,
    CutSessions,
    PauseServerProcess,
    KillPostmaster,
    PauseBroker,
    KillBroker,
    CrashRelaysInOutage,
    KillBoth,
    StartMeanwhile,
    CrashAll,
    FullSlots,
    PauseTarget,
    KillTarget,
    WrongClock,
    RollingRestart,
    StopAfterOutage,
)
SHORT: tuple[type[Row], ...] = (CRASH["executor"], PAUSE["executor"], KillBoth)
BROKERS: tuple[type[Row], ...] = (KillOneBroker, PauseOneBroker, KillOneBroker)
MISSED: tuple[type[Row], ...] = (Away,)
