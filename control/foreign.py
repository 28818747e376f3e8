"""Jobs of other schedulers: CronJobs of Kubernetes and crontab lines.

Each field that a job has no place for is named in a note: a part that is silently missing would be noticed only when
it is needed.

Source: Kubernetes API reference, "CronJob v1 batch" and "PodSpec v1 core".

A crontab is read as cron does on Debian: `TZ` is a variable of the command, as any other, while `CRON_TZ`, which other
crons have, is the schedule's zone. The first `%` without a backslash ends the command; the rest is its standard input,
in which `%` is a line end. Variables hold for the lines below them.

Sources: crontab(5) of Debian and of cronie.
"""

import base64
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import yaml

from tidewheel.control.reads.yaml_form import JobLoader
from tidewheel.errors import refuse
from tidewheel.jobs.peer_words import our_value
from tidewheel.jobs.strict_json import as_list, as_object
from tidewheel.runs import Overlap

_READ = {
    "schedule", "timeZone", "concurrencyPolicy", "suspend", "jobTemplate", "startingDeadlineSeconds",
    "successfulJobsHistoryLimit", "failedJobsHistoryLimit",
}  # fmt: skip
_READ_OF_JOB = {"template", "backoffLimit", "activeDeadlineSeconds"}
_READ_OF_TEMPLATE = {"metadata", "spec"}

_WITHOUT_MEANING = {
    "name", "image", "imagePullPolicy", "resources", "restartPolicy", "terminationMessagePath",
    "terminationMessagePolicy", "dnsPolicy", "schedulerName", "securityContext", "terminationGracePeriodSeconds",
}  # fmt: skip
_READ_OF_CONTAINER = {"command", "args", "env", "workingDir"}
_YES, _NO = ("true", "yes", "on"), ("false", "no", "off")  # of YAML 1.1
_MOST_WHOLE = 2**31 - 1
_BLANKS = " \t\r\n"  # other blanks are text: a crontab with them is none
_MOST = 16_384  # characters: a longer text is no schedule
_REMEDY = "paste one line of a crontab, or a Kubernetes CronJob"
_CRONTAB = re.compile(r"(@[A-Za-z]+|(?:[!#-z|~]+[ \t]+){4}[!#-z|~]+)(?:[ \t]+(.*))?")
_VARIABLE = re.compile(r"""([A-Za-z_]\w*)[ \t]*=[ \t]*(?:"([^"]*)"|'([^']*)'|(.*?))[ \t]*""", re.ASCII)
_CRON_WORD = re.compile(r"[\d*?,/LW#-]+|(?:[A-Z]{3}(?:[-,][A-Z]{3})*)(?:#\d|L)?", re.ASCII)
_HARMLESS = re.compile(r"/[A-Za-z0-9_./:=@,+\- \t]*", re.ASCII)  # no shell gives any of these another meaning
_MAIL = {"MAILTO", "MAILFROM", "CONTENT_TYPE", "CONTENT_TRANSFER_ENCODING"}
_USER_HEADER = re.compile(r"#.*\bdow\s+user\s+command\b", re.IGNORECASE)  # of Debian's /etc/crontab
_LONGEST_DELAY = 1440  # minutes of RANDOM_DELAY: a job's jitter is at most a day


@dataclass(frozen=True, slots=True)
class ForeignJob:
    """A job made of another scheduler's text, with notes on how it was read and what is left to do."""

    job: dict[str, object]
    notes: list[str] = field(default_factory=list[str])


def is_manifest(document: Mapping[str, object]) -> bool:
    """Return True for an object of Kubernetes, which no job looks like."""
    kind = document.get("kind")
    return isinstance(kind, str) and ("apiVersion" in document or kind == "CronJob") and "key" not in document


def objects_of(document: Mapping[str, object]) -> Sequence[Mapping[str, object]]:
    """Return the objects of a List, as `kubectl get` prints them; any other object itself."""
    items = as_list(document.get("items"))
    if items is None or not str(document.get("kind")).endswith("List"):
        return (document,)
    return [as_object(item) or {} for item in items]


def read_cron_job(document: Mapping[str, object]) -> ForeignJob:
    """Return the job that a CronJob becomes."""
    if document.get("kind") != "CronJob":
        problem = f"a Kubernetes {_text(document, 'kind')[:64] or 'object without a kind'} is not a job"
        refuse("kind", problem, "leave it out; only CronJobs and Lists of CronJobs are supported")
    spec = _mapping(document, "spec")
    expression = _text(spec, "spec.schedule")
    if not expression:
        refuse("spec.schedule", "is missing", "write the CronJob's schedule as text")
    schedule: dict[str, object] = {"cron": [expression]}
    if zone := _text(spec, "spec.timeZone"):
        schedule["timezone"] = zone
    found = ForeignJob({"schedule": schedule})
    _read_metadata(found, _mapping(document, "metadata"))
    _read_policies(found, spec)
    template = _mapping(spec, "spec.jobTemplate")
    _note_unread(found, "jobTemplate", template.keys() - _READ_OF_TEMPLATE)
    _read_job(found, _mapping(template, "jobTemplate.spec"))
    return found


def read_pasted(text: str) -> ForeignJob:
    r"""Return the job that a pasted schedule becomes.

    >>> read_pasted("CRON_TZ=Europe/Berlin\n30 2 * * 1-5 /srv/bin/count --all").job["schedule"]
    {'cron': ['30 2 * * 1-5'], 'timezone': 'Europe/Berlin'}
    """
    bare = text.removeprefix("\ufeff").strip(_BLANKS)
    for read in _READERS if len(bare) <= _MOST else ():
        if (found := read(bare)) is not None:
            return found
    return refuse("paste", "this is not a known schedule format", _REMEDY)


def _bare_cron(text: str) -> None:
    """Refuse a bare expression of EventBridge or Quartz: its last fields would become the command."""
    words = re.split(r"[ \t]+", text)
    is_cron = 6 <= len(words) <= 7 and "\n" not in text and all(map(_CRON_WORD.fullmatch, words))
    if is_cron or text.startswith(("cron(", "rate(")):
        refuse("paste", "an expression without a command is no line of a crontab", "write it as the job's schedule")


def _cron_job(text: str) -> ForeignJob | None:
    if "kind" not in text or "schedule" not in text:
        return None
    try:
        documents = [document for each in yaml.load_all(text, JobLoader) if (document := as_object(each))]
    except (yaml.YAMLError, RecursionError):
        return None
    found = [each for document in documents if is_manifest(document) for each in objects_of(document)]
    jobs = [each for each in found if each.get("kind") == "CronJob"]
    if len(jobs) > 1:
        refuse("paste", f"there are {len(jobs)} CronJobs", "paste one of them, or run `tidewheel apply` with the file")
    return read_cron_job(jobs[0]) if jobs else None


def _crontab(text: str) -> ForeignJob | None:
    # Not at U+2028 and others, which are of the command.
    lines = [line.strip(_BLANKS) for line in re.split(r"\r?\n", text)]
    variables: dict[str, str] = {}
    entries: list[str] = []
    for line in lines:
        if not line or line.startswith("#"):
            continue
        if (given := _VARIABLE.fullmatch(line)) is None:
            entries.append(line)
        elif not entries:
            variables[given[1]] = next((value for value in given.groups()[1:] if value is not None), "")
    found = _CRONTAB.fullmatch(entries[0]) if entries else None
    if found is None:
        return None
    if len(entries) > 1:
        refuse(
            "paste", f"there are {len(entries)} lines with a schedule", "paste one of them, with the variables above"
        )
    job = ForeignJob({"schedule": {"cron": [" ".join(found[1].split())]}})
    environment = _read_variables(job, variables)
    command = (found[2] or "").strip(_BLANKS)
    user, *rest = re.split(r"[ \t]+", command, maxsplit=1)
    if rest and (user == "root" or any(map(_USER_HEADER.match, lines))):
        job.notes.append(f"The user {user[:64]} is not imported: the command runs as the executor's user.")
        command = rest[0]
    if command:
        _read_command(job, command, variables.get("SHELL", "/bin/sh"), environment)
    return job


def _read_variables(found: ForeignJob, variables: dict[str, str]) -> dict[str, str]:
    """Read what cron itself does with its variables; return those of the command."""
    schedule = as_object(found.job["schedule"]) or {}
    if zone := variables.get("CRON_TZ"):
        schedule["timezone"] = zone
        found.notes.append(f"Its time zone is {zone}.")
    else:
        found.notes.append("A crontab has no time zone: choose the one of its machine.")
    if delay := variables.get("RANDOM_DELAY"):
        if re.fullmatch(r"\d{1,4}", delay, re.ASCII) and 0 < int(delay) <= _LONGEST_DELAY:
            found.job["jitter"] = f"{delay}m"
            found.notes.append(f"RANDOM_DELAY is a jitter of {delay}m.")
        else:
            found.notes.append(f"RANDOM_DELAY {delay[:64]} is not imported: write a jitter.")
    if mail := sorted(_MAIL & variables.keys()):
        found.notes.append(f"Not imported: {', '.join(mail)}. No mail is sent; failed runs have the command's output.")
    own = {"CRON_TZ", "RANDOM_DELAY", "SHELL", *_MAIL}
    return {name: value for name, value in variables.items() if name not in own}


def _read_command(found: ForeignJob, command: str, shell: str, environment: dict[str, str]) -> None:
    line, standard_input = _without_input(command)
    argv = line.split() if _HARMLESS.fullmatch(line) else [shell, "-c", line]
    found.job["target"] = {"type": "shell", "argv": argv} | ({"env": environment} if environment else {})
    found.notes.append(
        "The command becomes a shell target, which an operator must enable. Or choose a handler or a URL."
    )
    if environment:
        found.notes.append(f"An executor must allow its variables: TIDEWHEEL_SHELL_JOB_ENV={','.join(environment)}.")
    if "TZ" in environment:
        found.notes.append("TZ is the command's variable, as Debian's cron has it; CRON_TZ is the schedule's zone.")
    if standard_input is not None:
        found.job["payload_base64"] = base64.b64encode(standard_input.encode()).decode()
        found.notes.append("The text behind % is the command's standard input: the payload.")


def _without_input(command: str) -> tuple[str, str | None]:
    r"""Split a command at its first `%` without a backslash; the rest is its standard input.

    >>> _without_input(r'date "+\%Y"%one%two')
    ('date "+%Y"', 'one\ntwo\n')
    """
    found = re.fullmatch(r"((?:\\.|[^\\%]|\\\Z)*)(?:%(.*))?", command, re.DOTALL)
    if found is None:
        return command, None
    line = re.sub(r"\\(.)", lambda escaped: "%" if escaped[1] == "%" else escaped[0], found[1]).strip(_BLANKS)
    if found[2] is None:
        return line, None
    text = re.sub(r"\\%|%", lambda sign: "%" if len(sign[0]) > 1 else "\n", found[2])
    return line, text if text.endswith("\n") else text + "\n"


_READERS: Sequence[Callable[[str], ForeignJob | None]] = (_bare_cron, _cron_job, _crontab)


def _read_metadata(found: ForeignJob, metadata: Mapping[str, object]) -> None:
    if name := _text(metadata, "metadata.name"):
        found.job["key"] = name
    labels = _mapping(metadata, "metadata.labels")
    if labels:
        found.job["labels"] = {name: _text(labels, f"metadata.labels.{name[:64]}", name) for name in labels}
    if (namespace := _text(metadata, "metadata.namespace")) not in {"", "default"}:
        found.notes.append(f"namespace {namespace} is not imported: the job is of the tenant that you name.")


def _read_policies(found: ForeignJob, spec: Mapping[str, object]) -> None:
    policy = _text(spec, "spec.concurrencyPolicy") or "Allow"
    if (overlap := our_value("overlap", policy, [*Overlap])) is None:
        refuse("spec.concurrencyPolicy", f"{policy[:64]!r} is no policy", "write Allow, Forbid or Replace")
    found.job["overlap"] = overlap
    found.notes.append(f"concurrencyPolicy {policy} is overlap {found.job['overlap']}.")
    suspend = spec.get("suspend")
    word = suspend.lower() if isinstance(suspend, str) else suspend
    if word is True or word in _YES:
        found.job["paused"] = True
        found.notes.append("suspend: true is paused: true, which applies when the job is created.")
    elif word is not None and word is not False and word not in _NO:
        refuse("spec.suspend", "is neither true nor false", "write true or false")
    if "startingDeadlineSeconds" in spec:
        found.notes.append("startingDeadlineSeconds has no field: catch_up decides what fires after downtime.")
    if "successfulJobsHistoryLimit" in spec or "failedJobsHistoryLimit" in spec:
        found.notes.append("The history limits are not imported: retention keeps runs by days.")
    _note_unread(found, "spec", spec.keys() - _READ)


def _read_job(found: ForeignJob, spec: Mapping[str, object]) -> None:
    retries = _whole(spec, "jobTemplate.spec.backoffLimit")
    deadline = _whole(spec, "jobTemplate.spec.activeDeadlineSeconds")
    if retries is not None:
        found.job["retry"] = {"max_attempts": retries + 1}
        found.notes.append(f"backoffLimit {retries} is retry.max_attempts {retries + 1}, which counts the first one.")
    if deadline is not None:
        found.job["schedule_to_close"] = f"{deadline}s"
        found.notes.append("activeDeadlineSeconds is schedule_to_close, which counts the wait for a start as well.")
    _note_unread(found, "jobTemplate.spec", spec.keys() - _READ_OF_JOB)
    template = _mapping(spec, "jobTemplate.spec.template")
    _note_unread(found, "template", template.keys() - _READ_OF_TEMPLATE)
    pod = _mapping(template, "template.spec")
    _note_unread(found, "template.spec", pod.keys() - _WITHOUT_MEANING - {"containers"})
    containers = _list(pod, "template.spec.containers")
    only = _as_mapping(containers[0], "template.spec.containers") if len(containers) == 1 else None
    target = _target(found, only) if only else None
    if target is None:
        found.notes.append("Its container is not imported: choose a target.")
        return
    found.job["target"] = target
    found.notes.append("The command of its container is a shell target: an executor must have its program.")


def _target(found: ForeignJob, container: Mapping[str, object]) -> dict[str, object] | None:
    """Return the command of a container; None if the image decides on it."""
    command, arguments = (_list(container, f"container.{name}") for name in ("command", "args"))
    if not command:
        if arguments:
            found.notes.append("Not imported of container: args, which need a command.")
        return None
    words = [_as_text(word, "container.command") for word in (*command, *arguments)]
    target: dict[str, object] = {"type": "shell", "argv": words}
    if any("$(" in word for word in words) and not words[0].endswith("sh"):
        found.notes.append("Kubernetes replaces $(NAME) in a command; a shell target does not.")
    if folder := _text(container, "container.workingDir"):
        target["cwd"] = folder
    variables = [_as_mapping(each, "container.env") for each in _list(container, "container.env")]
    _note_unread(found, "env", {name for each in variables for name in each} - {"name", "value", "valueFrom"})
    given = {
        _text(each, "env.name"): _text(each, f"env.{_text(each, 'env.name')[:64]}", "value")
        for each in variables
        if "valueFrom" not in each
    }
    if given:
        target["env"] = given
        found.notes.append("An executor must allow its variables: TIDEWHEEL_SHELL_JOB_ENV.")
    if unread := [_text(each, "env.name") for each in variables if "valueFrom" in each]:
        found.notes.append(f"These variables have their value elsewhere, and are not imported: {', '.join(unread)}.")
    _note_unread(found, "container", container.keys() - _WITHOUT_MEANING - _READ_OF_CONTAINER)
    return target


def _note_unread(found: ForeignJob, place: str, names: set[str]) -> None:
    if names:
        found.notes.append(f"Not imported of {place}: {', '.join(sorted(name[:64] for name in names))}.")


def _text(holder: Mapping[str, object], path: str, name: str = "") -> str:
    """Return the text at the end of a path, or at a name; empty if there is none."""
    value = holder.get(name or path.rpartition(".")[2])
    return "" if value is None else _as_text(value, path)


def _as_text(value: object, path: str) -> str:
    """Return text; refuse other values, as Kubernetes does, without their content of any size."""
    return value if isinstance(value, str) else refuse(path, "is not text", "write it in quotes")


def _whole(holder: Mapping[str, object], path: str) -> int | None:
    value = holder.get(path.rpartition(".")[2])
    if value is None or (type(value) is int and 0 <= value <= _MOST_WHOLE):
        return value
    return refuse(path, "is no whole number of 32 bits", "write a number without quotes, 0 or more")


def _mapping(holder: Mapping[str, object], path: str) -> Mapping[str, object]:
    value = holder.get(path.rpartition(".")[2])
    return {} if value is None else _as_mapping(value, path)


def _as_mapping(value: object, path: str) -> Mapping[str, object]:
    found = as_object(value)
    return found if found is not None else refuse(path, "is not a mapping", "write names with values below it")


def _list(holder: Mapping[str, object], path: str) -> Sequence[object]:
    value = holder.get(path.rpartition(".")[2])
    found = as_list(() if value is None else value)
    return found if found is not None else refuse(path, "is not a list", "write each element on a line with a dash")
