import doctest
from importlib import import_module
from pkgutil import iter_modules

import pytest

from tidewheel import schedules

MODULES = [module.name for module in iter_modules(schedules.__path__)]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_run(name: str) -> None:
    assert doctest.testmod(import_module(f"{schedules.__name__}.{name}")).failed == 0
