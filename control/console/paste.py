"""Pasted schedules of others: a crontab line, an EventBridge expression, a Kubernetes CronJob."""

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import yaml

from tidewheel.errors import FieldError, InvalidInput
from tidewheel.jobs.peer_words import our_value
from tidewheel.jobs.strict_json import as_list, as_object
from tidewheel.runs import Overlap

_MOST = 16_384  # characters: a longer text is no schedule
_CRONTAB = re.compile(r"(@\w+|(?:\S+\s+){4}\S+)(?:\s+(.*))?")
_RATE = re.compile(r"rate\(\s*(\d{1,9})\s+(minute|hour|day)s?\s*\)")
_EVENT_CRON = re.compile(r"cron\(\s*(\S+\s+\S+\s+\S+\s+\S+\s+)(\S+)\s+(\S+)\s*\)")
_ZONE = re.compile(r"(?:CRON_TZ|TZ)\s*=\s*[\"']?([A-Za-z0-9_+/-]+)[\"']?")
_DAY = re.compile(r"(?<![#\w])[1-7](?=[-,#L]|$)|(?<=[-,])[1-7](?=[,#L]|$)")


@dataclass(frozen=True, slots=True)
class Pasted:
    """A job made of a schedule of others.

    Args:
        job: The job, as far as the text has it.
        notes: What it was read as, and what is left to do.
    """

    job: dict[str, object]
    notes: Sequence[str]


def read_pasted(text: str) -> Pasted:
    r"""Return the job that a pasted schedule becomes.

    >>> read_pasted("CRON_TZ=Europe/Berlin\n30 2 * * 1-5 /srv/bin/count --all").job["schedule"]
    {'cron': ['30 2 * * 1-5'], 'timezone': 'Europe/Berlin'}
    >>> read_pasted("rate(5 minutes)").job, read_pasted("cron(0 10 ? * 2-6 *)").job
    ({'schedule': {'interval': '5m'}}, {'schedule': {'cron': ['0 10 ? * 1-5']}})

    Raises:
        InvalidInput: It is none of these.
    """
    bare = text.strip()
    for read in _READERS if len(bare) <= _MOST else ():
        if (found := read(bare)) is not None:
            return found
    remedy = "paste one line of a crontab, rate(…) or cron(…) of EventBridge, or a CronJob of Kubernetes"
    raise InvalidInput([FieldError("paste", "this is not a known schedule format", remedy)])


def _event_bridge(text: str) -> Pasted | None:
    if rate := _RATE.fullmatch(text):
        interval = f"{rate[1]}{rate[2][0]}"
        return Pasted({"schedule": {"interval": interval}}, (f"EventBridge {text} is an interval of {interval}.",))
    if (cron := _EVENT_CRON.fullmatch(text)) is None:
        return None
    year = [] if cron[3] == "*" else [f"The year {cron[3]} is left out: write start_at and end_at."]
    days = _DAY.sub(lambda day: str(int(day[0]) - 1), cron[2])  # 1 is Sunday there, 0 here
    line = " ".join(f"{cron[1]}{days}".split())
    return Pasted({"schedule": {"cron": [line]}}, (f"EventBridge {text} is cron {line}, in UTC.", *year))


def _cron_job(text: str) -> Pasted | None:
    if "\n" not in text or "schedule" not in text:
        return None
    try:
        document = as_object(yaml.safe_load(text)) or {}
    except (yaml.YAMLError, RecursionError, ValueError):
        return None
    spec = as_object(document.get("spec"))
    if document.get("kind") != "CronJob" or spec is None or not isinstance(spec.get("schedule"), str):
        return None
    schedule: dict[str, object] = {"cron": [spec["schedule"]]}
    if zone := _text(spec.get("timeZone")):
        schedule["timezone"] = zone
    job: dict[str, object] = {"schedule": schedule}
    if name := _text((as_object(document.get("metadata")) or {}).get("name")):
        job["key"] = name
    policy = _text(spec.get("concurrencyPolicy")) or "Allow"
    job["overlap"] = our_value("overlap", policy, [*Overlap]) or "allow_all"
    notes = [f"concurrencyPolicy {policy} is overlap {job['overlap']}."]
    if spec.get("suspend") is True:
        job["paused"] = True
        notes.append("suspend: true is paused: true, which applies when the job is created.")
    if "startingDeadlineSeconds" in spec:
        notes.append("startingDeadlineSeconds has no field: catch_up decides what fires after downtime.")
    command = _command(spec)
    if command:
        job["target"] = {"type": "shell", "argv": command}
        notes.append("The command of its container is a shell target: an executor must have its program.")
    else:
        notes.append("Its container is not imported: choose a target.")
    return Pasted(job, notes)


def _command(spec: dict[str, object]) -> list[str]:
    """Return the command of the only container of a CronJob."""
    found: object = spec
    for name in ("jobTemplate", "spec", "template", "spec", "containers"):
        found = (as_object(found) or {}).get(name)
    containers = as_list(found) or ()
    only = as_object(containers[0]) if len(containers) == 1 else None
    words = [*(as_list((only or {}).get("command")) or ()), *(as_list((only or {}).get("args")) or ())]
    return [word for each in words if (word := _text(each))] if only and only.get("command") else []


def _text(value: object) -> str:
    """Return a value of YAML that is text; a nested one may unfold to any size."""
    return value if isinstance(value, str) else ""


def _crontab(text: str) -> Pasted | None:
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("#")]
    zones = [found[1] for line in lines if (found := _ZONE.fullmatch(line))]
    lines = [line for line in lines if not re.match(r"[A-Za-z_]\w*\s*=", line)]
    found = _CRONTAB.fullmatch(lines[0]) if len(lines) == 1 else None
    if found is None:
        return None
    schedule: dict[str, object] = {"cron": [found[1]]}
    notes = ["A crontab has no time zone: choose the one of its machine."]
    if zones:
        schedule["timezone"], notes = zones[-1], [f"Its time zone is {zones[-1]}."]
    job: dict[str, object] = {"schedule": schedule}
    if command := (found[2] or "").strip():
        job["target"] = {"type": "shell", "argv": _words(command)}
        notes.append("The command becomes a shell target, which an operator must enable. Or choose a handler or a URL.")
    return Pasted(job, notes)


def _words(command: str) -> list[str]:
    """Return a command as words; one that needs a shell is given to one."""
    try:
        words = shlex.split(command)
    except ValueError:
        words = []
    plain = not re.search(r"[|&;<>$`*?~%(){}]", command) and words and words[0].startswith("/")
    return words if plain else ["/bin/sh", "-c", command]


_READERS: Sequence[Callable[[str], Pasted | None]] = (_event_bridge, _cron_job, _crontab)
