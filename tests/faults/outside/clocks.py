"""A service by a wrong clock of the fleets: ``python -m tests.faults.outside.clocks CLOCK ROLE``."""

import importlib
import sys

from tests.faults.outside import records
from tests.fixtures import wrong_clock


def main(clock: str, role: str) -> None:
    """Be the service. The log of effects keeps the machine's clock, which `records` took before."""
    importlib.import_module(records.__name__)
    wrong_clock.install(clock)
    sys.argv = ["tidewheel", role]
    importlib.import_module("tidewheel.control.cli.main").main()


if __name__ == "__main__":
    main(*sys.argv[1:])
