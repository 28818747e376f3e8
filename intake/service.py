"""One intake process: two members that read requests, and one that reads targets' replies.

A member reads a batch, checks it, and then waits for PostgreSQL. While one member waits the other works, so that the
process is limited by its own CPU time. Members share no state. Requests about one job are in one partition, which one
member owns at a time.
"""

from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from functools import partial

from tidewheel.intake.consume import Member
from tidewheel.intake.recovery import RequestBreaker
from tidewheel.process.clock_skew import ClockSkew
from tidewheel.process.service import Shutdown
from tidewheel.settings.services import IntakeSettings
from tidewheel.transitions.installation import Installation

MEMBERS = 2
"""Two keep one interpreter busy: PostgreSQL takes less of a request's time than Python (docs/adr/0025)."""


class Intake:
    """One intake process."""

    def __init__(
        self,
        settings: IntakeSettings,
        url: str,
        kafka: dict[str, str],
        installation: Installation,
        stop: Shutdown,
        *,
        members: int = MEMBERS,
    ) -> None:
        self._stop, topics = stop, installation.topics
        numbered = [*((topics.requests, number) for number in range(1, members + 1)), (topics.target_replies, 1)]
        skew, breaker = ClockSkew(settings.max_clock_skew), RequestBreaker()
        member = partial(Member, settings, url, kafka, skew=skew, breaker=breaker, installation=installation, stop=stop)
        self._members = [member(topic=topic, number=number) for topic, number in numbered]

    def run(self) -> None:
        """Process requests until shutdown is requested, or a member cannot go on (Unusable)."""
        with ThreadPoolExecutor(len(self._members), "intake") as pool:
            running = [pool.submit(member.run) for member in self._members]
            wait(running, return_when=FIRST_EXCEPTION)
            self._stop.request()
        for member in running:
            member.result()
