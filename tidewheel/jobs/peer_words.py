"""Words of other schedulers, so that the refusal of an unknown field or value names Tidewheel's.

A name is compared without case, `_` and `-`: `maxRetries`, `max_retries` and `MaxRetries` are one word.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

_COUNTS_FIRST = "the first attempt counts too"


class _Ours(NamedTuple):
    """Tidewheel's field: its path from the job or the request, and a remark."""

    path: str
    remark: str = ""


_WORDS: Mapping[_Ours, str] = {
    # Each line: Kubernetes CronJob, Temporal, River, Oban, pg-boss, Celery, Quartz, APScheduler, BullMQ.
    _Ours(
        "key"
    ): "name job_name job_key job_id id identity workflow_id schedule_id trigger_key singleton_key init_identifier",
    _Ours("schedule", "a cron expression, a duration, an instant, or an object"): "spec trigger repeat",
    _Ours("schedule.cron"): "expression cron_expression cron_expressions cron_schedule crontab cron_spec pattern",
    _Ours("schedule.cron", "iCalendar rules are not supported; use calendars of days"): "rrule rrules",
    _Ours("schedule.timezone"): "tz time_zone time_zone_name timezone_name zone",
    _Ours("schedule.interval"): "every intervals interval_seconds repeat_interval repeat_every period run_every",
    _Ours("schedule.once"): "run_date fire_at",
    _Ours("schedule.after"): "depends_on dependencies batch_parent upstream",
    _Ours("schedule.after", "each parent has `when`: success, failure or always"): "batch_run_condition trigger_rule",
    _Ours("start_at"): "start_time start_date starting_at",
    _Ours("end_at"): "end_time end_date until",
    _Ours("max_runs", "the first occurrence counts too"): "repeat_count remaining_actions limited_actions",
    _Ours("target"): "action worker task task_name job_class kind workflow_type workflow func function job_template",
    _Ours("target", 'a handler\'s name, or {"type": "http", ...}'): "executor_type executor_config executor",
    _Ours("payload"): "args arguments kwargs input inputs data body params parameters job_data_map opts request",
    _Ours("queue"): "queue_name task_queue",
    _Ours("lane", "critical, standard or batch"): "priority_class",
    _Ours("overlap"): "concurrency_policy overlap_policy max_instances disallow_concurrent_execution policy",
    _Ours("catch_up"): "misfire_instruction misfire_policy misfire_handling coalesce catchup",
    _Ours("window"): "catchup_window starting_deadline_seconds misfire_grace_time",
    _Ours("paused", "`enabled: false` is `paused: true`"): "enabled active is_enabled",
    _Ours("paused"): "suspend suspended is_paused disabled",
    _Ours("retry"): "retries retry_policy retry_options retry_strategy",
    _Ours("retry.max_attempts", _COUNTS_FIRST): "max_retries maximum_attempts retry_limit backoff_limit attempts",
    _Ours("retry.initial"): "initial_interval retry_delay default_retry_delay initial_delay min_backoff",
    _Ours("retry.factor"): "backoff_coefficient backoff_factor multiplier",
    _Ours("retry.max"): "maximum_interval retry_backoff_max retry_delay_max max_interval max_backoff",
    _Ours("retry.intervals"): "retry_intervals retry_delays",
    _Ours("retry.backoff"): "retry_backoff backoff_strategy backoff_type",
    _Ours("retry.jitter"): "retry_jitter",
    _Ours("retry.non_retryable"): "non_retryable_error_types dont_autoretry_for discard_on",
    _Ours(
        "start_to_close"
    ): "timeout timeout_seconds timeout_sec start_to_close_timeout time_limit soft_time_limit active_deadline_seconds",
    _Ours("schedule_to_start"): "schedule_to_start_timeout expires",
    _Ours("schedule_to_close"): "schedule_to_close_timeout workflow_execution_timeout workflow_run_timeout",
    _Ours("heartbeat"): "heartbeat_timeout",
    _Ours("labels"): "tags meta metadata memo search_attributes annotations",
    _Ours("delay"): "countdown schedule_in start_delay delay_seconds in",
    _Ours("run_at"): "eta scheduled_at start_after scheduled_for run_time execution_time at",
    _Ours("delivery", "at_most_once"): "acks_late",
    _Ours("request_id"): "idempotency_key unique_key",
    _Ours("tenant"): "tenant_id workspace workspace_id",
}


def _plain(name: str) -> str:
    return name.replace("_", "").replace("-", "").casefold()


_OURS: Mapping[str, _Ours] = {_plain(ours.path.rpartition(".")[2]): ours for ours in reversed(list(_WORDS))} | {
    _plain(word): ours for ours, words in _WORDS.items() for word in words.split()
}

_VALUES: Mapping[str, Mapping[str, str]] = {
    "overlap": {"forbid": "skip", "replace": "cancel_other", "allow": "allow_all", "queue": "buffer_all"},
    "backoff": {"linear": "fixed", "constant": "fixed", "expo": "exponential"},
    "catch_up": {"ignore": "skip", "donothing": "skip", "fireonce": "fire_once", "fireoncenow": "fire_once"},
    "lane": {"high": "critical", "low": "batch", "default": "standard", "normal": "standard"},
}
_PREFIXES = ("scheduleoverlappolicy", "misfireinstruction", "withmisfirehandlinginstruction")


def our_field(name: str, known: Collection[str]) -> str | None:
    """Return the remedy for a field that other schedulers have; None if none has it.

    >>> our_field("concurrencyPolicy", ["overlap"]), our_field("MaxRetries", ["overlap", "retry"])
    ('write it as overlap', 'write it as retry: {"max_attempts": ...}; the first attempt counts too')
    """
    ours = _OURS.get(_plain(name))
    if ours is None:
        return None
    parent, _, field = ours.path.rpartition(".")
    if field in known:
        place = f"write it as {field}"
    elif field == "run_at" and "once" in known:
        place = "write it as once"
    elif parent in known:
        place = f'write it as {parent}: {{"{field}": ...}}'
    elif "payload" not in known:
        return None  # the body of another thing, such as a freeze
    elif ours.path in {"request_id", "tenant"}:
        place = f"use {ours.path} of the request"
    elif ours.path in {"delay", "run_at"}:
        place = f"trigger the job with {field}, or write a `once` schedule"
    else:
        place = f"use {ours.path}, a field of the job"
    return f"{place}; {ours.remark}" if ours.remark else place


def our_path(name: str) -> str:
    """Return the path of the field that other schedulers call so; empty if none has it.

    >>> our_path("--timeout-seconds"), our_path("interval_seconds")
    ('start_to_close', 'schedule.interval')
    """
    ours = _OURS.get(_plain(name))
    return "" if ours is None else ours.path


def our_value(field: str, value: str, known: Collection[str]) -> str | None:
    """Return the value that another scheduler's value means; None if it is not known.

    >>> our_value("overlap", "Forbid", ["skip"]), our_value("overlap", "BUFFER_ONE", ["skip", "buffer_one"])
    ('skip', 'buffer_one')
    """
    plain = _plain(value)
    for prefix in _PREFIXES:
        plain = plain.removeprefix(prefix)
    same = next((each for each in known if _plain(each) == plain), None)
    meant = same or _VALUES.get(field, {}).get(plain)
    return meant if meant in known else None
