"""CronJobs of Kubernetes as jobs: for the form of the console, `apply` and `job create`.

Each field that a job has no place for is named in a note: a part that is silently missing would be noticed only when
it is needed.

Source: Kubernetes API reference, "CronJob v1 batch" and "PodSpec v1 core".
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tidewheel.errors import refuse
from tidewheel.jobs.peer_words import our_value
from tidewheel.jobs.strict_json import as_list, as_object
from tidewheel.runs import Overlap

_READ = {
    "schedule", "timeZone", "concurrencyPolicy", "suspend", "jobTemplate", "startingDeadlineSeconds",
    "successfulJobsHistoryLimit", "failedJobsHistoryLimit",
}  # fmt: skip
_READ_OF_JOB = {"template", "backoffLimit", "activeDeadlineSeconds"}
_WITHOUT_MEANING = {
    "name", "image", "imagePullPolicy", "resources", "restartPolicy", "terminationMessagePath",
    "terminationMessagePolicy", "dnsPolicy", "schedulerName", "securityContext", "terminationGracePeriodSeconds",
}  # fmt: skip
_READ_OF_CONTAINER = {"command", "args", "env", "workingDir"}


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
    spec = as_object(document.get("spec")) or {}
    if document.get("kind") != "CronJob":
        problem = f"{_text(document.get('kind'))[:64] or 'an object without a kind'} of Kubernetes is not a job"
        refuse("kind", problem, "leave it out: of Kubernetes' objects CronJobs are read, and Lists of them")
    expression = _text(spec.get("schedule"))
    if not expression:
        refuse("spec.schedule", "is missing", "write the CronJob's schedule as text")
    schedule: dict[str, object] = {"cron": [expression]}
    if zone := _text(spec.get("timeZone")):
        schedule["timezone"] = zone
    found = ForeignJob({"schedule": schedule})
    _read_metadata(found, as_object(document.get("metadata")) or {})
    _read_policies(found, spec)
    template = as_object(spec.get("jobTemplate")) or {}
    _read_job(found, as_object(template.get("spec")) or {})
    return found


def _read_metadata(found: ForeignJob, metadata: Mapping[str, object]) -> None:
    if name := _text(metadata.get("name")):
        found.job["key"] = name
    if labels := {
        name: text for name, value in (as_object(metadata.get("labels")) or {}).items() if (text := _text(value))
    }:
        found.job["labels"] = labels
    if (namespace := _text(metadata.get("namespace"))) not in {"", "default"}:
        found.notes.append(f"namespace {namespace} is not imported: the job is of the tenant that you name.")


def _read_policies(found: ForeignJob, spec: Mapping[str, object]) -> None:
    policy = _text(spec.get("concurrencyPolicy")) or "Allow"
    found.job["overlap"] = our_value("overlap", policy, [*Overlap]) or "allow_all"
    found.notes.append(f"concurrencyPolicy {policy} is overlap {found.job['overlap']}.")
    if spec.get("suspend") is True or _text(spec.get("suspend")).lower() in {"true", "yes", "on"}:
        found.job["paused"] = True
        found.notes.append("suspend: true is paused: true, which applies when the job is created.")
    if "startingDeadlineSeconds" in spec:
        found.notes.append("startingDeadlineSeconds has no field: catch_up decides what fires after downtime.")
    if "successfulJobsHistoryLimit" in spec or "failedJobsHistoryLimit" in spec:
        found.notes.append("The history limits are not imported: history_limit counts runs of all states.")
    _note_unread(found, "spec", spec.keys() - _READ)


def _read_job(found: ForeignJob, spec: Mapping[str, object]) -> None:
    retries, deadline = spec.get("backoffLimit"), spec.get("activeDeadlineSeconds")
    if type(retries) is int:
        found.job["retry"] = {"max_attempts": retries + 1}
        found.notes.append(f"backoffLimit {retries} is retry.max_attempts {retries + 1}, which counts the first one.")
    if type(deadline) is int:
        found.job["schedule_to_close"] = f"{deadline}s"
        found.notes.append("activeDeadlineSeconds is schedule_to_close, which counts the wait for a start as well.")
    _note_unread(found, "jobTemplate.spec", spec.keys() - _READ_OF_JOB)
    pod = as_object((as_object(spec.get("template")) or {}).get("spec")) or {}
    _note_unread(found, "template.spec", pod.keys() - _WITHOUT_MEANING - {"containers"})
    containers = as_list(pod.get("containers")) or ()
    only = as_object(containers[0]) if len(containers) == 1 else None
    target = _target(found, only) if only else None
    if target is None:
        found.notes.append("Its container is not imported: choose a target.")
        return
    found.job["target"] = target
    found.notes.append("The command of its container is a shell target: an executor must have its program.")


def _target(found: ForeignJob, container: Mapping[str, object]) -> dict[str, object] | None:
    """Return the command of a container; None if the image decides on it."""
    command, arguments = as_list(container.get("command")), as_list(container.get("args")) or ()
    if not command:
        return None
    words = [_text(word) for word in (*command, *arguments)]
    target: dict[str, object] = {"type": "shell", "argv": words}
    if any("$(" in word for word in words) and not words[0].endswith("sh"):
        found.notes.append("Kubernetes replaces $(NAME) in a command; a shell target does not.")
    if folder := _text(container.get("workingDir")):
        target["cwd"] = folder
    variables = [as_object(each) or {} for each in as_list(container.get("env")) or ()]
    given = {_text(each.get("name")): _text(each.get("value")) for each in variables if "valueFrom" not in each}
    if given:
        target["env"] = given
        found.notes.append("An executor must allow its variables: TIDEWHEEL_SHELL_JOB_ENV.")
    if unread := [_text(each.get("name")) for each in variables if "valueFrom" in each]:
        found.notes.append(f"These variables have their value elsewhere, and are not imported: {', '.join(unread)}.")
    _note_unread(found, "container", container.keys() - _WITHOUT_MEANING - _READ_OF_CONTAINER)
    return target


def _note_unread(found: ForeignJob, place: str, names: set[str]) -> None:
    if names:
        found.notes.append(f"Not imported of {place}: {', '.join(sorted(name[:64] for name in names))}.")


def _text(value: object) -> str:
    """Return a value of YAML that is text; a nested one may unfold to any size."""
    return value if isinstance(value, str) else ""
