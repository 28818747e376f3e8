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


def an_effect_dropped(history: History) -> History:
    gone = _calm(history)
    return replace(history, effects=tuple(effect for effect in history.effects if effect is not gone))


def an_effect_doubled(history: History) -> History:
    effect = _calm(history)
    return _with_effects(history, replace(effect, received=effect.received + SECOND))


def an_effect_of_an_unknown_run(history: History) -> History:
    return _with_effects(history, replace(_calm(history), run_id="unknown"))


def an_effect_a_second_early(history: History) -> History:
    return _altered(history, _calm(history), received=_calm(history).scheduled_at - SECOND)


def every_effect_a_second_early(history: History) -> History:
    return replace(history, effects=tuple(replace(e, received=e.received - SECOND) for e in history.effects))


def an_effect_late(history: History) -> History:
    return _altered(history, _calm(history), received=_calm(history).received + 12 * SECOND)


def attempts_swapped(history: History) -> History:
    first, second = _retried(history)
    swapped = {first: replace(first, attempt=second.attempt), second: replace(second, attempt=first.attempt)}
    return replace(history, effects=tuple(swapped.get(effect, effect) for effect in history.effects))


def attempts_overlapping(history: History) -> History:
    first, second = _retried(history)
    return _altered(history, first, answered=second.received + SECOND)


def an_attempt_before_its_delay(history: History) -> History:
    first, second = _retried(history)
    return _altered(history, second, received=first.received + SECOND)


def a_success_repeated(history: History) -> History:
    first, _ = _retried(history)
    return _altered(history, first, status=200)


def one_failure_too_many(history: History) -> History:
    first, second = _retried(history)
    more = [replace(second, attempt=n, received=second.received + n * 3 * SECOND, status=500) for n in range(3, 16)]
    return _with_effects(replace(history), *more, replace(first, attempt=16, received=second.received + 60 * SECOND))


def a_run_invented(history: History) -> History:
    message = _completion(history)
    value = {**message.value, "run_id": "invented", "event_id": "e", "scheduled_at": message.value["scheduled_at"] + 1}
    return _with_run(history, replace(message, value=value))


def a_trigger_invented(history: History) -> History:
    message = _completion(history)
    return _with_run(
        history, replace(message, value={**message.value, "run_id": "x", "event_id": "e", "cause": "trigger"})
    )


def an_occurrence_with_two_runs(history: History) -> History:
    message = _completion(history)
    return _with_run(history, replace(message, value={**message.value, "run_id": "second", "event_id": "e"}))


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


def a_cancelled_run_that_succeeded(history: History) -> History:
    return _with_status(history, "cancelled", "succeeded")


def a_pause_before_its_time(history: History) -> History:
    """Leave over what fired between this pause and the true one."""
    [op] = [op for op in history.operations if op.type == "job.pause"]
    assert op.answered is not None
    earlier = replace(op, invoked=op.invoked - 10 * SECOND, answered=op.answered - 10 * SECOND)
    return _with_operation(history, op, earlier)


def a_pause_after_its_time(history: History) -> History:
    """Miss what did not fire between the true pause and this one."""
    [op] = [op for op in history.operations if op.type == "job.pause"]
    assert op.answered is not None
    return _with_operation(history, op, replace(op, invoked=op.invoked + 5 * SECOND, answered=op.answered + 5 * SECOND))


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


def a_completion_under_another_id(history: History) -> History:
    message = _completion(history)
    return _with_messages(history, replace(message, value={**message.value, "event_id": "another"}))


def a_success_without_its_answer(history: History) -> History:
    return _altered(history, _calm(history), answered=None, status=0)


def an_end_before_the_answer_to_its_attempt(history: History) -> History:
    """Let an earlier attempt end the run, while the call of the later one is open."""
    _, second = _retried(history)
    assert second.answered is not None
    return _altered(history, second, answered=second.answered + SECOND)


def an_end_before_its_token(history: History) -> History:
    [op] = [op for op in history.operations if op.type == "run.complete"]
    assert op.answered is not None
    return _with_operation(history, op, replace(op, invoked=op.invoked + SECOND, answered=op.answered + SECOND))


def a_token_of_another_attempt(history: History) -> History:
    first, second = _retried(history)
    [op] = [op for op in history.operations if op.type == "run.complete"]
    altered = {effect: replace(effect, token="") for effect in history.effects if effect.token}
    altered[first] = replace(first, token=op.request["token"])
    assert first.run_id == second.run_id
    return replace(history, effects=tuple(altered.get(effect, effect) for effect in history.effects))


def a_failure_after_a_success(history: History) -> History:
    return _with_status(history, "succeeded", "failed")


def a_dead_letter_removed(history: History) -> History:
    return _numbered(history, tuple(message for message in history.messages if message.kind != "DeadLetter"))


def a_second_reading_that_differs(history: History) -> History:
    [first, *others] = history.again
    return replace(history, again=(replace(first, digest="another"), *others))


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


def a_wrong_signature(history: History) -> History:
    return _altered(history, _calm(history), genuine=False)


def work_left(history: History) -> History:
    return replace(history, tables=replace(history.tables, left={"outbox": 1}))


def messages_not_taken(history: History) -> History:
    return replace(history, tables=replace(history.tables, lag=1))


def never_quiet(history: History) -> History:
    return replace(history, quiet=None)


def a_request_never_answered(history: History) -> History:
    [op] = [op for op in history.operations if op.type == "job.resume"]
    return _with_operation(history, op, replace(op, answered=None, reply={}))


def a_fault_without_recovery(history: History) -> History:
    [fault] = history.faults
    return replace(history, faults=(replace(fault, recovered=None),))


def a_service_that_does_not_stop(history: History) -> History:
    stop = Fault("stop", history.ended, history.ended, history.ended, {"stopped": {"intake-1": [60.0, -9.0]}})
    return replace(history, faults=(*history.faults, stop))


def a_service_that_ended_by_itself(history: History) -> History:
    [fault] = history.faults
    return replace(history, faults=(replace(fault, detail={"exits": ["intake-1 1"]}),))


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


DOCTORS: dict[Doctor, str] = {
    one_effect_and_its_run_dropped: "H1",
    an_effect_dropped: "H1",
    a_trigger_lost: "H1",
    a_pause_after_its_time: "H1",
    an_edit_that_was_not_followed: "H1",
    a_span_passed_over_in_calm: "H1",
    an_effect_of_an_unknown_run: "H2",
    a_run_invented: "H2",
    a_trigger_invented: "H2",
    an_occurrence_with_two_runs: "H2",
    a_pause_before_its_time: "H2",
    an_effect_doubled: "H3",
    a_completion_under_another_id: "H3",
    a_success_repeated: "H3",
    an_effect_a_second_early: "H4",
    every_effect_a_second_early: "H4",
    an_effect_late: "H5",
    a_fault_without_recovery: "H5",
    attempts_swapped: "H6",
    attempts_overlapping: "H6",
    an_attempt_before_its_delay: "H6",
    one_failure_too_many: "H6",
    requests_of_attempts_out_of_order: "H6",
    an_effect_after_a_cancel: "H7",
    a_cancelled_run_that_succeeded: "H7",
    a_completion_removed: "H8",
    a_completion_without_a_row: "H8",
    a_dead_letter_removed: "H8",
    a_second_reading_that_differs: "H8",
    an_offset_left_out: "H8",
    an_acknowledged_request_removed: "H8",
    events_out_of_order: "H8",
    a_reply_that_differs: "H8",
    a_row_of_another_state: "H9",
    a_success_without_its_answer: "H9",
    an_end_before_the_answer_to_its_attempt: "H9",
    an_end_before_its_token: "H9",
    a_token_of_another_attempt: "H9",
    a_failure_after_a_success: "H9",
    a_wrong_signature: "H9",
    work_left: "H10",
    messages_not_taken: "H10",
    never_quiet: "H10",
    a_request_never_answered: "H10",
    a_service_that_does_not_stop: "H10",
    a_service_that_ended_by_itself: "H10",
}


def _calm(history: History) -> Effect:
    """An effect of the steady job, long before the fault."""
    return next(e for e in history.effects if e.job_key == "tick" and e.scheduled_at > history.begun + 8 * SECOND)


def _retried(history: History) -> tuple[Effect, Effect]:
    """The two attempts of a run that succeeded in its second."""
    second = next(effect for effect in history.effects if effect.attempt == 2 and effect.status == 200)
    first = next(effect for effect in history.effects if effect.run_id == second.run_id and effect.attempt == 1)
    return first, second


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
