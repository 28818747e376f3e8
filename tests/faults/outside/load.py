"""The load of a campaign: jobs of every kind, and a seeded stream of edits, triggers and cancels."""

import base64
import hashlib
import random
import threading
from collections.abc import Mapping
from typing import Any

from tests.faults.outside.client import Client
from tests.faults.outside.due import text
from tests.faults.outside.records import SECOND, now_us

STEADY = 4  # jobs that are never edited and whose targets answer at once: the clock of recovery
_EDITED = 5
_ANCHOR = 1_767_225_600 * SECOND  # 2026-01-01
_RETRY = {"max_attempts": 10, "backoff": "fixed", "initial": "2s", "jitter": "0%"}
_PACE_SECONDS = 0.2
_WAIT_SECONDS = 90.0


class Load:
    """Submits the jobs and edits them until it is stopped."""

    def __init__(self, client: Client, seed: int, port: int) -> None:
        self._client, self._random, self._port = client, random.Random(seed), port  # noqa: S311
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)
        self._jobs: dict[str, dict[str, Any]] = {}
        self._triggers: list[tuple[str, int]] = []
        self._deleted: set[str] = set()
        self._onces = 0

    def submit(self) -> None:
        """Submit every job and wait for the replies."""
        for number in range(STEADY):
            self._submit(self._job(f"steady-{number}", self._interval(1), "steady"))
        for number in range(_EDITED):
            self._submit(self._job(f"edited-{number}", self._interval(1), "random"))
        self._submit(self._job("random-1", self._interval(1), "random"))
        self._submit(self._job("cron-utc", {"cron": "*/2 * * * * *", "timezone": "UTC"}, "steady"))
        self._submit(self._job("cron-berlin", {"cron": "1-59/3 * * * * *", "timezone": "Europe/Berlin"}, "random"))
        self._submit({**self._job("turns", self._interval(1), "slow"), "overlap": "skip"})
        self._submit({**self._job("note", self._interval(1), "steady"), "target": "outside-note"})
        self._submit(self._job("task", "manual", "random"))
        for path in ("held", "long"):
            self._submit(self._job(path, "manual", path))
        outside = self._job("outside", self._interval(1), "outside")
        self._submit({**outside, "target": {**outside["target"], "async": True, "async_timeout": "40s"}})
        self._submit({**self._job("doomed", "manual", "doomed"), "retry": {**_RETRY, "max_attempts": 2}})
        assert self._client.wait_answered(_WAIT_SECONDS), "the jobs are not accepted"

    def submit_policies(self) -> None:
        """Submit a job of each `catch_up`."""
        for policy in ("fire_once", "fire_all", "skip"):
            for every in (1, 2):
                job = self._job(f"missed-{policy}-{every}", self._interval(every), "steady")
                self._submit({**job, "catch_up": policy})
        assert self._client.wait_answered(_WAIT_SECONDS), "the jobs are not accepted"

    def start(self) -> None:
        """Begin to edit."""
        self._thread.start()

    def hold_slots(self, runs: int, key: str = "held") -> None:
        """Trigger runs that take seconds each."""
        for _ in range(runs):
            self._client.request({"type": "job.trigger", "key": key}, key)

    def complete(self, token: str) -> None:
        """Complete an attempt from outside."""
        self._client.request({"type": "run.complete", "token": token, "result": {"rows": 7}}, "outside")

    def stop(self, patience: float) -> bool:
        """Edit no more and pause what recurs; return True if every request is answered within these seconds."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        answered = self._client.wait_answered(patience)
        for key in self._jobs:
            self._client.request({"type": "job.pause", "key": key}, key)
        return self._client.wait_answered(patience) and answered

    def _run(self) -> None:
        acts = (self._edit, self._edit, self._pause, self._trigger, self._trigger, self._cancel, self._once)
        while not self._ended.wait(self._random.expovariate(1 / _PACE_SECONDS)):
            self._random.choice(acts)()

    def _edit(self) -> None:
        key = f"edited-{self._random.randrange(_EDITED)}"
        if not self._client.is_free(key):
            return
        if key not in self._deleted and self._random.random() < 0.1:
            self._deleted.add(key)
            self._client.request({"type": "job.delete", "key": key}, key)
            return
        self._deleted.discard(key)
        self._submit(self._job(key, self._interval(self._random.randint(1, 3)), "random"))

    def _pause(self) -> None:
        key = f"edited-{self._random.randrange(_EDITED)}"
        if self._client.is_free(key) and key not in self._deleted:
            self._client.request(
                {"type": self._random.choice(("job.pause", "job.resume", "job.resume")), "key": key}, key
            )

    def _trigger(self) -> None:
        key = self._random.choice(("task", "task", "task", "doomed"))
        delay = self._random.choice((None, None, 2, 5))
        late = {} if delay is None else {"delay": f"{delay}s"}
        request_id = self._client.request({"type": "job.trigger", "key": key, **late}, key)
        if delay is not None and key == "task":
            self._triggers.append((request_id, now_us() + delay * SECOND))

    def _cancel(self) -> None:
        self._triggers = [(request, at) for request, at in self._triggers if at > now_us() - 3 * SECOND]
        for place, (request_id, _) in enumerate(self._triggers):
            reply = self._client.reply(request_id)
            if reply is not None and reply["run_id"] is not None:
                del self._triggers[place]
                self._client.request({"type": "run.cancel", "run_id": reply["run_id"]}, "task")
                return

    def _once(self) -> None:
        self._onces += 1
        at = now_us() + self._random.randint(-2, 5) * SECOND
        self._submit(self._job(f"once-{self._onces}", {"once": text(at)}, "random"), paused_later=False)

    def _submit(self, job: Mapping[str, Any], *, paused_later: bool = True) -> None:
        key = str(job["key"])
        if paused_later:
            self._jobs[key] = dict(job)
        self._client.request({"type": "job.submit", "job": job}, key)

    def _interval(self, seconds: int) -> dict[str, str]:
        """An interval whose anchor lies at a random part of a second."""
        return {"interval": f"{seconds}s", "anchor": text(_ANCHOR + self._random.randrange(SECOND))}

    def _job(self, key: str, schedule: object, path: str) -> dict[str, Any]:
        payload = f"{key} {self._random.random()}".encode()
        return {
            "key": key,
            "schedule": schedule,
            "target": {
                "type": "http",
                "url": f"http://127.0.0.1:{self._port}/{path}",
                "headers": {"x-body": hashlib.sha256(payload).hexdigest()},
            },
            "payload_base64": base64.b64encode(payload).decode(),
            "overlap": "allow_all",
            "catch_up": "fire_all",
            "retry": _RETRY,
            "start_to_close": "15s",
        }
