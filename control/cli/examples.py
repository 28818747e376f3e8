"""Examples that the help of commands shows, for those with more than two options of their own.

A test parses each of them by the command that it shows.
"""

from collections.abc import Mapping

EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "up": ("tidewheel up --brokers 3 --standby",),
    "dev": ("tidewheel dev --handlers hello",),
    "serve": ("tidewheel serve --roles scheduler,relay,executor --handlers hello",),
    "admin bench": ("tidewheel admin bench fire relay --rounds 3", "tidewheel admin bench pipeline --output json"),
    "service intake": ("tidewheel service intake --metrics-port 9101",),
    "service scheduler": ("tidewheel service scheduler --metrics-port 9102",),
    "service relay": ("tidewheel service relay --metrics-port 9103",),
    "service executor": ("tidewheel service executor --handlers hello --queues default,reports --slots 50",),
    "service api": ("tidewheel service api --host 0.0.0.0 --port 8080",),
    "env": ('eval "$(tidewheel env)"', "tidewheel env --format kafka --secrets"),
    "apply": ("tidewheel apply -f jobs.yaml --dry-run", "tidewheel apply -f jobs.yaml --prune --label team=billing"),
    "job create": (
        "tidewheel job create report --cron '0 9 * * MON-FRI' --tz Asia/Tokyo --url https://example.org/",
        "tidewheel job create tidy --every 10m --handler tidy --max-attempts 5",
        "tidewheel job create -f job.yaml",
    ),
    "job list": ("tidewheel job list --prefix reports/ --paused", "tidewheel job list --label team=billing -o json"),
    "job update": ("tidewheel job update report --cron '30 9 * * MON-FRI'", "tidewheel job update -f job.yaml"),
    "job pause": ("tidewheel job pause report --until 'tomorrow 09:00' --tz Europe/Berlin --reason audit",),
    "job release": ("tidewheel job release report", "tidewheel job release --all --dry-run"),
    "job trigger": (
        """tidewheel job trigger send-email --payload '{"to": "a@example.org"}' --wait""",
        "tidewheel job trigger report --delay 10m",
        "tidewheel job trigger report --dedupe-key acme --window 10m --mode debounce",
    ),
    "job backfill": ("tidewheel job backfill report --from 2026-11-01 --to 2026-11-08 --tz UTC --max-concurrent 4",),
    "job preview": ("tidewheel job preview --cron '30 2 * * *' --tz Europe/Berlin --handler tidy",),
    "explain": (
        "tidewheel explain report",
        "tidewheel explain report --last 24h",
        "tidewheel explain report --at 2027-03-28T03:00 --tz Europe/Berlin",
    ),
    "job skip": ("tidewheel job skip report --at 'tomorrow 09:00' --tz Europe/Berlin --reason holiday",),
    "job move": ("tidewheel job move report --at 'tomorrow 09:00' --to 'tomorrow 11:00' --tz Europe/Berlin",),
    "freeze": ("tidewheel freeze --fleet --reason 'database upgrade' --yes", "tidewheel freeze --queue reports"),
    "thaw": ("tidewheel thaw --fleet",),
    "admin calendar put": ("tidewheel admin calendar put weekend --weekdays SAT,SUN",),
    "run list": ("tidewheel run list --status failed --since yesterday", "tidewheel run list --job report -n 10"),
    "run cancel": (
        "tidewheel run cancel --job report --not-started --dry-run",
        "tidewheel run cancel --queue reports --before 1h",
    ),
    "run retry": (
        "tidewheel run retry 01a1f866-8561-8c4e-a263-6b34d2c2d0e3 --wait",
        "tidewheel run retry 01a1f866-8561-8c4e-a263-6b34d2c2d0e3 --attempt 3",
    ),
    "run retry-failed": ("tidewheel run retry-failed --job report --since yesterday --rate 10/s --wait",),
    "dlq list": ("tidewheel dlq list --since yesterday --error TimeoutError",),
    "dlq groups": ("tidewheel dlq groups --since yesterday",),
    "dlq redrive": (
        "tidewheel dlq redrive --since yesterday --until today --dry-run",
        "tidewheel dlq redrive --job send-email --error TimeoutError --rate 10/s --wait",
    ),
    "dlq purge": ("tidewheel dlq purge --until 30d --redriven --dry-run",),
    "work list": ("tidewheel work list --kind purge", "tidewheel work list --job report -n 10"),
    "workflow list": ("tidewheel workflow list etl/load --state failed",),
    "batch submit": ("tidewheel batch submit -f batch.yaml --wait",),
    "batch add": ("tidewheel batch add 019b2d5e-7a10-7c3e-8f00-1f5f1f9b1a3c -f more.yaml",),
    "admin limit set": ("tidewheel admin limit set 'api/*' --at-once 3 --rate 100/min",),
    "admin api-key create": (
        "tidewheel admin api-key create ci --scope write --scope read --expires 90d",
        "tidewheel admin api-key create billing --scope execute --queue billing --tenant acme --expires 90d",
    ),
    "admin api-key list": ("tidewheel admin api-key list --all-tenants",),
    "admin limit keys": ("tidewheel admin limit keys api/",),
    "admin tenant create": ("tidewheel admin tenant create acme --triggers-per-second 100 --in-flight 500",),
    "admin tenant limits": (
        "tidewheel admin tenant limits acme --triggers-per-second 100 --jobs 1000 --payload 64KiB",
        "tidewheel admin tenant limits acme --in-flight none",
        "tidewheel admin tenant limits acme --grant-role acme_app",
    ),
    "admin tenant delete": ("tidewheel admin tenant delete acme --yes", "tidewheel admin tenant delete acme --undo"),
    "admin audit": (
        "tidewheel admin audit --from 2026-11-01 --to 2026-12-01 --tz UTC --report november.json",
        "tidewheel admin audit --from 24h --job report",
    ),
    "admin restore": (
        "tidewheel admin restore --dry-run",
        "tidewheel admin restore --stopped-at 2026-11-20T08:00Z --yes",
    ),
    "admin standby raise": ("tidewheel admin standby raise --from kafka.b:9092 --prefix a.tidewheel",),
    "admin changes": ("tidewheel admin changes --since 24h --object job/report",),
    "admin cron explain": ("tidewheel admin cron explain '0 9 * * MON-FRI' --tz America/New_York",),
    "migrate": ("tidewheel migrate --dry-run", "tidewheel migrate --roles --passwords passwords"),
    "admin topics apply": ("tidewheel admin topics apply --queues default,reports --dry-run",),
}
