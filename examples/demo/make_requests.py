"""Write the input of `make demo`: `python examples/demo/make_requests.py`.

It writes `requests.jsonl` and `expected.json`, the same lines every time. README.md describes them.
"""

import json
from collections.abc import Iterator
from pathlib import Path

FOLDER = Path(__file__).parent

SHOPS = 24
CAMERAS = 16
MAILS = 120
TRIALS = 60
ZONES = ("Europe/Berlin", "America/New_York", "Asia/Kolkata")
# Quick, so that every failing run ends within the minute.
QUICK_RETRY = {"max_attempts": 4, "initial": "500ms", "max": "2s"}

Request = dict[str, object]


def main() -> None:
    """Write both files beside this script."""
    lines = [json.dumps(request, separators=(",", ":"), ensure_ascii=False) for request in requests()]
    (FOLDER / "requests.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (FOLDER / "expected.json").write_text(json.dumps(expected(), indent=2) + "\n", encoding="utf-8")


def requests() -> list[Request]:
    """All requests, in the order they are sent."""
    return [
        *shops(),
        *cameras(),
        *offices(),
        *mails(),
        *trials(),
        *reports(),
        *partners(),
        *cards(),
        never(),
        *malformed(),
    ]


def shops() -> Iterator[Request]:
    """A webhook every second for each shop; a few campaigns begin late and end early."""
    for shop in range(1, SHOPS + 1):
        bounds = {"start_at": "@start+8s", "end_at": "@start+20s"} if shop % 8 == 0 else {}
        yield job(
            f"shops/{shop:02}/stock-level",
            "every second",
            {"interval": "1s"},
            http(f"@receiver/shops/{shop:02}/stock"),
            payload={"shop": shop, "skus": [f"SKU-{shop:02}-{n}" for n in range(3)]},
            **bounds,
        )


def cameras() -> Iterator[Request]:
    """Yield slow webhooks, spread over the seconds, so that an executor always runs some."""
    for camera in range(1, CAMERAS + 1):
        yield job(
            f"cameras/{camera:02}/snapshot",
            "slow answer",
            {"interval": "4s", "anchor": f"@start+{camera % 4}s"},
            http(f"@receiver/cameras/{camera:02}/snapshot?hold=1500ms"),
            payload={"camera": camera, "quality": "high"},
            lane="batch",
        )


def offices() -> Iterator[Request]:
    """Yield cron jobs on the wall clock of three zones: by the second, the minute and the day."""
    expressions = {
        "heartbeat": "*/5 * * * * *",
        "ticker": "1-59/3 * * * * *",
        "shift-board": "10,25,40,55 * * * * *",
        "minute-book": "* * * * *",
        "half-hour": "15 */30 * * * *",
        "opening": "0 8 * * MON-FRI",
        "closing": "30 17 * * 1-5",
        "stocktaking": "0 6 1 * *",
    }
    for zone in ZONES:
        city = zone.rpartition("/")[2].lower().replace("_", "-")
        for floor in (1, 2):
            for name, expression in expressions.items():
                yield job(
                    f"offices/{city}/{name}-{floor}",
                    "cron",
                    {"cron": expression, "timezone": zone},
                    http(f"@receiver/offices/{city}/{name}"),
                    payload={"floor": floor, "office": city},
                )


def mails() -> Iterator[Request]:
    """One-offs, each at an instant of its own; every tenth is urgent."""
    for mail in range(1, MAILS + 1):
        yield job(
            f"mails/welcome-{mail:03}",
            "one-off",
            {"once": f"@start+{4 + mail * 0.22:.2f}s"},
            http("@receiver/mails"),
            payload={"to": f"customer-{mail:03}@example.org", "template": "welcome"},
            lane="critical" if mail % 10 == 0 else "standard",
        )


def trials() -> Iterator[Request]:
    """Yield manual jobs, each with a delayed trigger; every sixth has one without a delay too."""
    for trial in range(1, TRIALS + 1):
        key = f"trials/reminder-{trial:02}"
        yield job(key, "delayed trigger", "manual", http("@receiver/trials"), payload={"trial": trial, "tone": "kind"})
        yield trigger(key, f"trial-{trial:02}-later", delay=f"{2 + trial * 0.45:.2f}s")
        if trial % 6 == 0:
            yield trigger(key, f"trial-{trial:02}-now", payload={"trial": trial, "tone": "urgent"})


def reports() -> Iterator[Request]:
    """Python handlers, half of them async on the loop, half plain functions on threads."""
    for report in range(1, 9):
        yield job(
            f"reports/live-{report}",
            "handler",
            {"interval": "3s", "anchor": f"@start+{report % 3}s"},
            "demo.send-report",
            payload={"subject": f"live figures {report}", "work_ms": 800},
        )
        yield job(
            f"images/thumbnails-{report}",
            "handler",
            {"interval": "3s", "anchor": f"@start+{report % 3}s"},
            "demo.resize-image",
            payload={"subject": f"folder {report}", "work_ms": 400},
        )


def partners() -> Iterator[Request]:
    """Webhooks that are refused once or twice, then taken."""
    for partner in range(1, 13):
        fails = 1 + partner % 2
        yield job(
            f"partners/{partner:02}/order",
            "fails, recovers",
            {"once": f"@start+{3 + 2 * partner}s"},
            http(f"@receiver/partners/{partner:02}?fail={fails}"),
            payload={"partner": partner, "order": 1000 + partner},
        )


def cards() -> Iterator[Request]:
    """Handlers that raise once or twice, then succeed."""
    for card in range(1, 13):
        yield job(
            f"cards/charge-{card:02}",
            "fails, recovers",
            {"once": f"@start+{4 + 2 * card}s"},
            "demo.charge-card" if card % 2 else "demo.sync-ledger",
            payload={"subject": f"invoice {card}", "fail": 1 + card % 2},
        )


def never() -> Request:
    """A handler that never succeeds: it ends as the one dead letter."""
    return job(
        "ledger/reconcile-2019",
        "never succeeds",
        {"once": "@start+6s"},
        "demo.charge-card",
        payload={"subject": "the books of 2019", "fail": 99},
        retry={"max_attempts": 3, "initial": "500ms", "max": "2s"},
    )


def malformed() -> Iterator[Request]:
    """Yield readable requests that are rejected: an unknown zone, a misspelt field, no attempts."""
    target = http("@receiver/never-reached")
    yield job("finance/month-end", "malformed", {"cron": "0 6 1 * *", "timezone": "Europe/Atlantis"}, target)
    wrong = job("finance/year-end", "malformed", {"cron": "0 25 31 12 *"}, target, retry={"max_attempts": 0})
    wrong["job"] = {**dict(wrong["job"]), "retires": 3}  # type: ignore[call-overload]  # an object, as made above
    yield wrong


def expected() -> Request:
    """Return the rejected requests with their fields, and the jobs that end in a dead letter."""
    return {
        "rejected": {
            "finance/month-end": ["job.schedule.timezone"],
            "finance/year-end": ["job.retires", "job.retry.max_attempts"],
        },
        "dead_letters": ["ledger/reconcile-2019"],
    }


def job(key: str, family: str, schedule: object, target: object, **rest: object) -> Request:
    """Return a request that creates a job."""
    spec = {"key": key, "schedule": schedule, "target": target, "retry": QUICK_RETRY, "labels": {"family": family}}
    return {"type": "job.submit", "job": {**spec, **rest}}


def trigger(key: str, request_id: str, **rest: object) -> Request:
    """A request that runs a job once."""
    return {"type": "job.trigger", "request_id": request_id, "key": key, **rest}


def http(url: str) -> Request:
    """A target that posts the payload to a URL."""
    return {"type": "http", "url": url}


if __name__ == "__main__":
    main()
