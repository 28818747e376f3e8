"""Pyright over everything, as a test: it has one processor while other workers wait for servers."""

import pytest

from tests import strict_types

pytestmark = [pytest.mark.process, pytest.mark.landing]


def test_pyright_finds_nothing_and_leaves_no_file_out() -> None:
    assert strict_types.main() == 0
