"""Write the golden files anew: `python -m tests.golden`, with further arguments of pytest."""

import os
import sys
from pathlib import Path

import pytest

from tests.golden.files import WRITE

os.environ[WRITE] = "1"
sys.exit(pytest.main(["-q", "-p", "no:randomly", str(Path(__file__).parent), *sys.argv[1:]]))
