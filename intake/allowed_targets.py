"""Refuse submits whose target no executor may run, by the allow-lists that intake knows."""

from tidewheel.errors import FieldError, InvalidInput
from tidewheel.jobs.allow_lists import AllowLists
from tidewheel.jobs.hosts import read_url
from tidewheel.jobs.invalid import InvalidValue
from tidewheel.jobs.targets import HttpTargetSpec, KafkaTargetSpec, LambdaTargetSpec, ShellTargetSpec, TargetSpec


def ensure_allowed(target: TargetSpec, allow_lists: AllowLists) -> None:
    """Refuse a target that the allow-lists do not name."""
    try:
        match target:
            case HttpTargetSpec():
                allow_lists.check_url(read_url(target.url))
            case KafkaTargetSpec():
                allow_lists.check_topic(target.topic)
            case ShellTargetSpec():
                allow_lists.check_program(target.argv, target.cwd, target.env)
            case LambdaTargetSpec():
                allow_lists.check_function(target.function, target.qualifier, target.region)
            case _:
                pass
    except InvalidValue as refusal:
        paths = ((f"job.target.{error.path}", error) for error in refusal.errors)
        raise InvalidInput([FieldError(path, error.problem, error.remedy) for path, error in paths]) from refusal
