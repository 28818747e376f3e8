"""One intake process: two members of the group that reads requests, and one of that which reads targets' replies.

A member reads, checks, and then waits for PostgreSQL, one after the other. While one waits the other works, so that a
process is held up by its own work alone: they share nothing but the process, as two processes would. Requests about one
job lie in one partition, which one member has at a time.
"""

from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

from tidewheel.intake.consume import Member
from tidewheel.process.clock_skew import Skew
from tidewheel.process.service import Stop
from tidewheel.settings import IntakeSettings
from tidewheel.transitions.installation import Installation

MEMBERS = 2
"""As many as keep one interpreter busy: PostgreSQL takes less of a request's time than Python (docs/adr/0025)."""


class Intake:
    """One intake process.

    Args:
        settings: The batch.
        url: The database.
        kafka: The brokers.
        installation: Shards, topics, encoding.
        stop: The wish to stop.
        members: How many read requests.
    """

    def __init__(
        self,
        settings: IntakeSettings,
        url: str,
        kafka: dict[str, str],
        installation: Installation,
        stop: Stop,
        *,
        members: int = MEMBERS,
    ) -> None:
        self._stop = stop
        topics = installation.topics
        places = [*((topics.requests, number) for number in range(1, members + 1)), (topics.target_replies, 1)]
        skew = Skew(settings.max_clock_skew)
        self._members = [
            Member(settings, url, kafka, topic=topic, number=number, skew=skew, installation=installation, stop=stop)
            for topic, number in places
        ]

    def run(self) -> None:
        """Take in requests until asked to stop.

        Raises:
            Unusable: A member cannot go on; the others have ended too, since half an intake is worse than none.
        """
        with ThreadPoolExecutor(len(self._members), "intake") as pool:
            running = [pool.submit(member.run) for member in self._members]
            wait(running, return_when=FIRST_EXCEPTION)
            self._stop.ask()
        for member in running:
            member.result()
