"""Doctors of a history: each breaks one promise, and a check has to find it (H12)."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.faults.outside.due import text
from tests.faults.outside.records import SECOND, Effect, Fault, History, Message, Operation

Doctor = Callable[[History], History]


def one_effect_and_its_run_dropped(history: History) -> History:
    effect = _calm(history)
    kept = tuple(message for message in history.messages if message.value.get("run_id") != effect.run_id)
    states = {run: state for run, state in history.tables.states.items() if run != effect.run_id}
    effects = tuple(other for other in history.effects if other.run_id != effect.run_id)
    return _numbered(replace(history, effects=effects, tables=replace(history.tables, states=states)), kept)


def attempts_swapped(history: History) -> History:
    first, second = _retried(history)
    swapped = {first: replace(first, attempt=second.attempt), second: replace(second, attempt=first.attempt)}
    return replace(history, effects=tuple(swapped.get(effect, effect) for effect in history.effects))


def one_failure_too_many(history: History) -> History:
    first, second = _retried(history)
    more = [replace(second, attempt=n, received=second.received + n * 3 * SECOND, status=500) for n in range(3, 16)]
    return _with_effects(replace(history), *more, replace(first, attempt=16, received=second.received + 60 * SECOND))


def a_run_invented(history: History) -> History:
    later = _completion(history).value["scheduled_at"] + 1
    return _with_run(history, _completed(history, run_id="invented", event_id="e", scheduled_at=later))


def a_trigger_lost(history: History) -> History:
    [op, *_] = [op for op in history.operations if op.type == "job.trigger"]
    run_id = op.reply["run_id"]
    states = {run: state for run, state in history.tables.states.items() if run != run_id}
    effects = tuple(effect for effect in history.effects if effect.run_id != run_id)
    kept = tuple(m for m in history.messages if m.value.get("run_id") != run_id or m.kind == "Reply")
    return _numbered(replace(history, effects=effects, tables=replace(history.tables, states=states)), kept)


def an_effect_after_a_cancel(history: History) -> History:
    [op] = [op for op in history.operations if op.type == "run.cancel"]
    assert op.answered is not None
    effect = Effect(
        op.request["run_id"], 1, "task", op.answered, op.answered + 2 * SECOND, op.answered + 2 * SECOND, 200
    )
    return _with_effects(history, effect)


def an_edit_that_was_not_followed(history: History) -> History:
    [op, *_] = [op for op in history.operations if op.type == "job.submit" and op.key == "edited"]
    job = {**op.request["job"], "schedule": {"interval": "1s", "anchor": "2026-01-01T00:00:00.25+00:00"}}
    return _with_operation(history, op, replace(op, request={**op.request, "job": job}))


def a_completion_removed(history: History) -> History:
    gone = _completion(history)
    return _numbered(history, tuple(message for message in history.messages if message is not gone))


def a_completion_without_a_row(history: History) -> History:
    gone = _completion(history).value["run_id"]
    states = {run: state for run, state in history.tables.states.items() if run != gone}
    return replace(history, tables=replace(history.tables, states=states))


def a_row_of_another_state(history: History) -> History:
    run_id = _completion(history).value["run_id"]
    return replace(history, tables=replace(history.tables, states={**history.tables.states, run_id: "failed"}))


def an_end_before_the_answer_to_its_attempt(history: History) -> History:
    """Let an earlier attempt end the run, while the call of the later one is open."""
    _, second = _retried(history)
    assert second.answered is not None
    return _altered(history, second, answered=second.answered + SECOND)


def a_token_of_another_attempt(history: History) -> History:
    first, second = _retried(history)
    [op] = [op for op in history.operations if op.type == "run.complete"]
    altered = {effect: replace(effect, token="") for effect in history.effects if effect.token}
    altered[first] = replace(first, token=op.request["token"])
    assert first.run_id == second.run_id
    return replace(history, effects=tuple(altered.get(effect, effect) for effect in history.effects))


def an_offset_left_out(history: History) -> History:
    gone = next(m for m in history.messages if m.topic == "runs.standard" and m.offset == 3)
    return replace(history, messages=tuple(message for message in history.messages if message is not gone))


def an_acknowledged_request_removed(history: History) -> History:
    last = [message for message in history.messages if message.topic == "requests"][-1]
    return replace(history, messages=tuple(message for message in history.messages if message is not last))


def requests_of_attempts_out_of_order(history: History) -> History:
    run_id = _retried(history)[0].run_id
    asked = [m for m in history.messages if m.kind == "RunRequest" and m.value["run_id"] == run_id]
    other = {asked[0].offset: asked[1].value, asked[1].offset: asked[0].value}
    messages = [
        replace(m, value=other[m.offset]) if m.kind == "RunRequest" and m.offset in other else m
        for m in history.messages
    ]
    return replace(history, messages=tuple(messages))


def events_out_of_order(history: History) -> History:
    message = _completion(history)
    earlier: dict[str, Any] = {**message.value, "event_id": "earlier", "sequence": 1, "type": "", "detail": {}}
    return _with_messages(history, replace(message, topic="completions", kind="LifecycleEvent", value=earlier))


def a_reply_that_differs(history: History) -> History:
    reply = next(message for message in history.messages if message.kind == "Reply")
    return _with_messages(history, replace(reply, value={**reply.value, "job_version": 9}))


def a_request_never_answered(history: History) -> History:
    [op] = [op for op in history.operations if op.type == "job.resume"]
    return _with_operation(history, op, replace(op, answered=None, reply={}))


def a_service_that_does_not_stop(history: History) -> History:
    stop = Fault("stop", history.ended, history.ended, history.ended, {"stopped": {"intake-1": [60.0, -9.0]}})
    return replace(history, faults=(*history.faults, stop))


def a_span_passed_over_in_calm(history: History) -> History:
    effect = _calm(history)
    detail = {"first_at": text(effect.scheduled_at), "last_at": text(effect.scheduled_at), "occurrences": "1"}
    value = {
        "event_id": "s",
        "type": "io.tidewheel.occurrence.skipped.v1",
        "job_key": effect.job_key,
        "reason": "misfire",
    }
    return _with_messages(
        history, replace(_completion(history), kind="LifecycleEvent", value={**value, "detail": detail})
    )


DOCTORS: dict[str, tuple[str, Doctor]] = {
    "one effect and its run dropped": ("H1", one_effect_and_its_run_dropped),
    "an effect dropped": (
        "H1",
        lambda h: replace(h, effects=tuple(effect for effect in h.effects if effect is not _calm(h))),
    ),
    "a trigger lost": ("H1", a_trigger_lost),
    "a pause after its time": ("H1", lambda h: _shifted(h, "job.pause", 5)),
    "an edit that was not followed": ("H1", an_edit_that_was_not_followed),
    "a span passed over in calm": ("H1", a_span_passed_over_in_calm),
    "an effect of an unknown run": ("H2", lambda h: _with_effects(h, replace(_calm(h), run_id="unknown"))),
    "a run invented": ("H2", a_run_invented),
    "a trigger invented": ("H2", lambda h: _with_run(h, _completed(h, run_id="x", event_id="e", cause="trigger"))),
    "an occurrence with two runs": ("H2", lambda h: _with_run(h, _completed(h, run_id="second", event_id="e"))),
    "a pause before its time": ("H2", lambda h: _shifted(h, "job.pause", -10)),
    "an effect doubled": ("H3", lambda h: _with_effects(h, replace(_calm(h), received=_calm(h).received + SECOND))),
    "a completion under another id": ("H3", lambda h: _with_messages(h, _completed(h, event_id="another"))),
    "a success repeated": ("H3", lambda h: _altered(h, _retried(h)[0], status=200)),
    "an effect a second early": ("H4", lambda h: _altered(h, _calm(h), received=_calm(h).scheduled_at - SECOND)),
    "every effect a second early": (
        "H4",
        lambda h: replace(h, effects=tuple(replace(e, received=e.received - SECOND) for e in h.effects)),
    ),
    "an effect late": ("H5", lambda h: _altered(h, _calm(h), received=_calm(h).received + 12 * SECOND)),
    "a fault without recovery": ("H5", lambda h: replace(h, faults=(replace(h.faults[0], recovered=None),))),
    "attempts swapped": ("H6", attempts_swapped),
    "attempts overlapping": ("H6", lambda h: _altered(h, _retried(h)[0], answered=_retried(h)[1].received + SECOND)),
    "an attempt before its delay": (
        "H6",
        lambda h: _altered(h, _retried(h)[1], received=_retried(h)[0].received + SECOND),
    ),
    "one failure too many": ("H6", one_failure_too_many),
    "requests of attempts out of order": ("H6", requests_of_attempts_out_of_order),
    "an effect after a cancel": ("H7", an_effect_after_a_cancel),
    "a cancelled run that succeeded": ("H7", lambda h: _with_status(h, "cancelled", "succeeded")),
    "a completion removed": ("H8", a_completion_removed),
    "a completion without a row": ("H8", a_completion_without_a_row),
    "a dead letter removed": (
        "H8",
        lambda h: _numbered(h, tuple(message for message in h.messages if message.kind != "DeadLetter")),
    ),
    "a second reading that differs": (
        "H8",
        lambda h: replace(h, again=(replace(h.again[0], digest="another"), *h.again[1:])),
    ),
    "an offset left out": ("H8", an_offset_left_out),
    "an acknowledged request removed": ("H8", an_acknowledged_request_removed),
    "events out of order": ("H8", events_out_of_order),
    "a reply that differs": ("H8", a_reply_that_differs),
    "a row of another state": ("H9", a_row_of_another_state),
    "a success without its answer": ("H9", lambda h: _altered(h, _calm(h), answered=None, status=0)),
    "an end before the answer to its attempt": ("H9", an_end_before_the_answer_to_its_attempt),
    "an end before its token": ("H9", lambda h: _shifted(h, "run.complete", 1)),
    "a token of another attempt": ("H9", a_token_of_another_attempt),
    "a failure after a success": ("H9", lambda h: _with_status(h, "succeeded", "failed")),
    "a wrong signature": ("H9", lambda h: _altered(h, _calm(h), genuine=False)),
    "work left": ("H10", lambda h: replace(h, tables=replace(h.tables, left={"outbox": 1}))),
    "messages not taken": ("H10", lambda h: replace(h, tables=replace(h.tables, lag=1))),
    "never quiet": ("H10", lambda h: replace(h, quiet=None)),
    "a request never answered": ("H10", a_request_never_answered),
    "a service that does not stop": ("H10", a_service_that_does_not_stop),
    "a service that ended by itself": (
        "H10",
        lambda h: replace(h, faults=(replace(h.faults[0], detail={"exits": ["intake-1 1"]}),)),
    ),
}


def _calm(history: History) -> Effect:
    """An effect of the steady job, long before the fault."""
    return next(e for e in history.effects if e.job_key == "tick" and e.scheduled_at > history.begun + 8 * SECOND)


def _retried(history: History) -> tuple[Effect, Effect]:
    """The two attempts of a run that succeeded in its second."""
    second = next(effect for effect in history.effects if effect.attempt == 2 and effect.status == 200)
    first = next(effect for effect in history.effects if effect.run_id == second.run_id and effect.attempt == 1)
    return first, second


def _completed(history: History, **value: object) -> Message:
    """Return the completion of that effect's run with other values."""
    message = _completion(history)
    return replace(message, value={**message.value, **value})


def _completion(history: History) -> Message:
    run_id = _calm(history).run_id
    return next(m for m in history.messages if m.kind == "RunCompleted" and m.value["run_id"] == run_id)


def _altered(history: History, effect: Effect, **fields: object) -> History:
    altered: Any = replace
    effects = [altered(other, **fields) if other is effect else other for other in history.effects]
    return replace(history, effects=tuple(sorted(effects, key=lambda other: other.received)))


def _with_effects(history: History, *effects: Effect) -> History:
    return replace(history, effects=tuple(sorted((*history.effects, *effects), key=lambda effect: effect.received)))


def _with_operation(history: History, old: Operation, new: Operation) -> History:
    return replace(history, operations=tuple(new if op is old else op for op in history.operations))


def _shifted(history: History, kind: str, seconds: int) -> History:
    """Let the one operation of a kind happen so much later, or earlier."""
    [op] = [op for op in history.operations if op.type == kind]
    assert op.answered is not None
    moved = replace(op, invoked=op.invoked + seconds * SECOND, answered=op.answered + seconds * SECOND)
    return _with_operation(history, op, moved)


def _with_messages(history: History, *messages: Message) -> History:
    return _numbered(history, (*history.messages, *messages))


def _with_run(history: History, message: Message) -> History:
    states = {**history.tables.states, message.value["run_id"]: message.value["status"]}
    return _with_messages(replace(history, tables=replace(history.tables, states=states)), message)


def _with_status(history: History, old: str, new: str) -> History:
    message = next(m for m in history.messages if m.kind == "RunCompleted" and m.value["status"] == old)
    altered = replace(message, value={**message.value, "status": new})
    states = {**history.tables.states, message.value["run_id"]: new}
    messages = tuple(altered if other is message else other for other in history.messages)
    return _numbered(replace(history, tables=replace(history.tables, states=states)), messages)


def _numbered(history: History, messages: tuple[Message, ...]) -> History:
    """Number the offsets again; both readings find the same."""
    ends: dict[tuple[str, int], int] = {}
    numbered: list[Message] = []
    for message in messages:
        place = message.topic, message.partition
        numbered.append(replace(message, offset=ends.get(place, 0)))
        ends[place] = numbered[-1].offset + 1
    return replace(history, messages=tuple(numbered), again=tuple(numbered))
