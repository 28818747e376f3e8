"""Triggers by topic and by REST, the completions of their runs, the console."""

import json
import re
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from types import TracebackType
from typing import Self

import httpx
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import StackError
from tidewheel.kafka.topics import Topics
from tidewheel.schemas.codec import decode
from tidewheel.schemas.generated.records import RunCompleted, RunStatus

_BROKER: dict[str, str | int] = {"reconnect.backoff.max.ms": 500, "log_level": 0}
BY_TOPIC, BY_REST, _EACH_SECOND = "by-topic", "by-rest", "each-second"
_TOPIC_PAUSE_SECONDS = 0.1  # between two triggers
_REST_PAUSE_SECONDS = 0.2
_AGAIN_SECONDS = 0.5
_PATIENCE_SECONDS = 300.0  # for a container that a kill has ended, on a busy machine
_REPEAT = {HTTPStatus.CONFLICT, HTTPStatus.TOO_MANY_REQUESTS}


class Load:
    """Jobs and their triggers, each sent until it is accepted; a context manager that ends the threads.

    `sent` has the request id of each trigger.
    """

    def __init__(self, api: str, broker: str, key: str) -> None:
        self.sent: set[str] = set()
        self._undelivered: list[str] = []
        self._stopped, self._left = threading.Event(), threading.Event()
        self._producer = Producer(
            {**_BROKER, "bootstrap.servers": broker, "enable.idempotence": True, "message.timeout.ms": 300_000}
        )
        self._api = httpx.Client(
            base_url=f"{api}/api/v1", headers={"Authorization": f"Bearer {key}"}, timeout=10, trust_env=False
        )
        self._pool = ThreadPoolExecutor(2)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._left.set()
        self._pool.shutdown()
        self._api.close()

    def submit_jobs(self) -> None:
        """Submit two jobs by topic, of which one fires each second, and one by REST; wait until all are there."""
        for key, schedule in ((BY_TOPIC, "manual"), (_EACH_SECOND, "@every 1s")):
            job = {"key": key, "schedule": schedule, "target": "work"}
            self._produce(key, {"type": "job.submit", "request_id": f"submit-{key}", "job": job})
        self._request("PUT", f"/jobs/{BY_REST}", {"schedule": "manual", "target": "work"})
        for key in (BY_TOPIC, _EACH_SECOND):
            self._request("GET", f"/jobs/{key}", also={HTTPStatus.NOT_FOUND})

    def start(self) -> None:
        """Send triggers from now on."""
        self._tasks = [self._pool.submit(each) for each in (self._trigger_by_topic, self._trigger_by_rest)]

    def check(self) -> None:
        """Raise the error of a thread that has ended by one."""
        for task in self._tasks:
            if task.done():
                task.result()

    def stop(self) -> None:
        """Send no more triggers, wait until each one is accepted, and pause the job that fires each second."""
        self._stopped.set()
        for task in self._tasks:
            task.result()
        left = self._producer.flush(_PATIENCE_SECONDS)
        if left or self._undelivered:
            message = f"{left + len(self._undelivered)} triggers did not reach the broker: {self._undelivered[:3]}"
            raise StackError(message)
        self._request("POST", f"/jobs/{_EACH_SECOND}:pause", {"reason": "the trial ends"})

    def _trigger_by_topic(self) -> None:
        while not self._stopped.wait(_TOPIC_PAUSE_SECONDS):
            request_id = self._next(BY_TOPIC)
            self._produce(BY_TOPIC, {"type": "job.trigger", "request_id": request_id, "key": BY_TOPIC})

    def _trigger_by_rest(self) -> None:
        while not self._stopped.wait(_REST_PAUSE_SECONDS):
            self._request("POST", f"/jobs/{BY_REST}:trigger", {}, request_id=self._next(BY_REST))

    def _next(self, key: str) -> str:
        request_id = f"{key}-{len(self.sent)}-{monotonic_seconds()}"
        self.sent.add(request_id)
        return request_id

    def _produce(self, key: str, document: dict[str, object]) -> None:
        def placed(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self._undelivered.append(f"{message.key()!r}: {error}")

        self._producer.produce(Topics().requests, json.dumps(document).encode(), key.encode(), on_delivery=placed)
        self._producer.poll(0)

    def _request(
        self,
        method: str,
        path: str,
        body: dict[str, object] | None = None,
        *,
        request_id: str | None = None,
        also: set[HTTPStatus] | None = None,
    ) -> None:
        """Send a request until it is accepted; a repeated `request_id` changes nothing twice."""
        headers = {"Idempotency-Key": request_id} if request_id else {}
        deadline = monotonic_seconds() + _PATIENCE_SECONDS
        while True:
            try:
                answer = self._api.request(method, path, json=body, headers=headers)
                if answer.is_success:
                    return
                found = f"{answer.status_code} {answer.text}"
                again = answer.is_server_error or answer.status_code in _REPEAT | (also or set())
            except httpx.TransportError as error:
                found, again = repr(error), True
            if not again or monotonic_seconds() > deadline or self._left.wait(_AGAIN_SECONDS):
                message = f"REST does not accept {method} {path}: {found}"
                raise StackError(message)


class Completions:
    """The topic of completions from its beginning: runs by request, events by run, failed runs."""

    def __init__(self, broker: str) -> None:
        self.runs: defaultdict[str, set[str]] = defaultdict(set)
        self.events: defaultdict[str, set[str]] = defaultdict(set)
        self.failed: dict[str, str] = {}
        self._consumer = Consumer(
            {**_BROKER, "bootstrap.servers": broker, "group.id": "trial", "enable.auto.commit": False}
        )
        topic = Topics().completions
        partitions = self._consumer.list_topics(topic, timeout=30).topics[topic].partitions
        self._consumer.assign([TopicPartition(topic, number, 0) for number in partitions])

    def read(self) -> None:
        """Add what arrives within half a second."""
        for message in self._consumer.consume(5000, 0.5):
            if message.error() is None:
                self._add(decode(message.value() or b"", RunCompleted))

    def close(self) -> None:
        """Leave the broker."""
        self._consumer.close()

    def _add(self, end: RunCompleted) -> None:
        self.events[end.run_id].add(end.event_id)
        if end.request_id is not None:
            self.runs[end.request_id].add(end.run_id)
        expected = {RunStatus.SUCCEEDED} if end.request_id else {RunStatus.SUCCEEDED, RunStatus.SKIPPED}
        if end.status not in expected:
            self.failed[end.run_id] = f"{end.status} ({end.reason or end.error})"


def open_console(api: str, key: str) -> None:
    """Sign in to the console by an API key, and find the jobs on its page."""
    html = {"Accept": "text/html"}
    with httpx.Client(base_url=api, headers=html, follow_redirects=True, timeout=30, trust_env=False) as browser:
        form = re.search(r'name="token" value="([0-9a-f]+)"', browser.get("/sign-in").text)
        sent = {"token": form[1] if form else "", "key": key, "next": "/jobs", "name": ""}
        page = browser.post("/sign-in", data=sent)
    missing = [each for each in (BY_TOPIC, BY_REST, _EACH_SECOND) if each not in page.text]
    if not page.is_success or missing:
        message = f"the console's page {page.url} ({page.status_code}) lacks {missing}"
        raise StackError(message)
