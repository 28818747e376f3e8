"""Write the golden files anew: `python -m tests.golden`, with further arguments of pytest."""

import os
import subprocess
import sys
from pathlib import Path

from tests.golden.files import WRITE

_PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:randomly")

os.environ[WRITE] = "1"
codes = [  # a process each: the command line reads at its import what the first one writes
    subprocess.run([*_PYTEST, str(Path(__file__).with_name(name)), *sys.argv[1:]], check=False).returncode
    for name in ("test_generated.py", "test_golden.py")
]
sys.exit(any(codes))
