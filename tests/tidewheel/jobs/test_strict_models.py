"""Every model of a request reads whole numbers strictly."""

from collections.abc import Iterator
from importlib import import_module
from pkgutil import walk_packages
from typing import get_args

import pytest
from fastapi import APIRouter
from pydantic import ValidationError

import tidewheel
from tidewheel.control.api.app import NOUNS
from tidewheel.doors.rest import add_routes
from tidewheel.jobs.validation import StrictModel


def models(base: type[StrictModel] = StrictModel) -> Iterator[type[StrictModel]]:
    for model in base.__subclasses__():
        yield model
        yield from models(model)


def holds_int(annotation: object) -> bool:
    return annotation is int or any(map(holds_int, get_args(annotation)))


def test_every_count_of_every_request_refuses_fractions_and_truth_values() -> None:
    """A model that a later release adds is found by itself."""
    for module in walk_packages(tidewheel.__path__, "tidewheel."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    for noun, routes in NOUNS:
        add_routes(APIRouter(), noun, routes)  # their models are made with them
    tried = 0
    for model in set(models()):
        for name, field in model.model_fields.items():
            for wrong in (2.0, True) if holds_int(field.annotation) else ():
                with pytest.raises(ValidationError):
                    model.__pydantic_validator__.validate_assignment(model.model_construct(), name, wrong)
                tried += 1
    assert tried > 100
