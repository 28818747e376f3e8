"""`submit`: job requests/s that intake accepts from the topic."""

import json
from collections.abc import Iterator
from functools import partial

from tidewheel.clock import monotonic_seconds
from tidewheel.intake.service import MEMBERS
from tools.bench.complete import wait_for
from tools.bench.environment import Server
from tools.bench.load import PAYLOAD
from tools.bench.measurement import Figure, Incomplete, Options, Round
from tools.bench.messages import Made, produce, sender

REQUESTS = 100_000
_WARM_SHARE = 10  # the first of so many parts is not timed
_STILL_SECONDS = 8.0  # that intake may stand still: its group puts out who is silent for 9 or 10
_OWNERS = "SELECT count(DISTINCT owner) FROM intake_offsets WHERE topic LIKE '%%.requests'"
# By committed offsets: jobs, counted 20 times a second, were a fifth of a core.
_READ = "SELECT coalesce(sum(next_offset), 0)::bigint FROM intake_offsets"
_ACCEPTED = """
SELECT (SELECT count(*) FROM timers AS t JOIN job_versions AS v USING (job_id, version)),
       (SELECT count(*) FROM dead_letters)"""


def measure(server: Server, options: Options) -> Round:
    """Let intake loose on requests that lie on Kafka."""
    requests = options.jobs or REQUESTS
    warm = requests // _WARM_SHARE
    with server.environment() as environment:
        topics, client, read = environment.topics, sender(environment), partial(environment.count, _READ)
        with environment.services(("intake",)) as processes, environment.meter(processes) as meter:
            [intake] = processes["intake"]
            wait_for(partial(environment.count, _OWNERS), MEMBERS, "owners of partitions")
            produce(client, topics.requests, _requests(0, warm))
            wait_for(read, warm, "requests read")
            options.report(f"producing {requests - warm:,} requests")
            intake.suspend()  # so that each partition lies there as a whole
            try:
                still = monotonic_seconds()
                produce(client, topics.requests, _requests(warm, requests))
                if monotonic_seconds() - still > _STILL_SECONDS:
                    message = "producing took so long that intake's group has put it out: use fewer --jobs at once"
                    raise Incomplete(message)
                options.report("accepting")
                before, began = meter.mark(), monotonic_seconds()
            finally:
                intake.resume()
            wait_for(read, requests, "requests read")
            seconds, spent = monotonic_seconds() - began, meter.since(before, requests - warm)
            replies = partial(environment.count, "SELECT count(*) FROM outbox WHERE topic = %s", topics.replies)
            wait_for(replies, requests, "replies")
        environment.expect(_ACCEPTED, requests, 0)
    return Round({"requests_per_second": Figure((requests - warm) / seconds, "requests/s", spent)})


def _requests(first: int, end: int) -> Iterator[Made]:
    """Yield distinct jobs with a payload of about 200 bytes, as users send them."""
    for number in range(first, end):
        key = f"submitted-{number:08d}"
        schedule = {"cron": f"{number % 60} 8 * * MON-FRI", "timezone": "Europe/Berlin"}
        job = {"key": key, "schedule": schedule, "target": "noop", "payload": PAYLOAD}
        yield key.encode(), json.dumps({"type": "job.submit", "request_id": f"r-{number}", "job": job}).encode()
