"""The build of an interpreter, from its sysconfig, and the one that `make setup` takes."""

import subprocess
import sys
from collections.abc import Mapping

import pytest

from tests.strict_types import ROOT
from tools.interpreter import read_build

USE = "-fprofile-use -fprofile-correction"
GCC = {"PGO_PROF_GEN_FLAG": "-fprofile-generate", "PGO_PROF_USE_FLAG": USE, "CONFIG_ARGS": "'--enable-shared'"}


@pytest.mark.parametrize(
    ("variables", "pgo", "lto"),
    [
        (GCC, False, False),
        (GCC | {"PY_CFLAGS_NODIST": f"-std=c11 {USE}"}, True, False),
        (GCC | {"PY_CORE_CFLAGS": f"-flto {USE}"}, True, True),
        ({"PY_CFLAGS_NODIST": '-fprofile-instr-use="code.profclangd" -flto=thin'}, True, True),
        (GCC | {"CONFIG_ARGS": "'--enable-optimizations' '--with-lto'"}, True, True),
        (GCC | {"PGO_PROF_USE_FLAG": "", "AR": "x86_64-linux-gnu-gcc-ar"}, True, True),
        (GCC | {"PGO_PROF_USE_FLAG": "", "AR": "riscv64-linux-gnu-ar"}, False, False),
        ({}, False, False),
    ],
    ids=["plain", "make profile-opt", "with LTO", "clang", "arguments", "Debian", "Debian without PGO", "none"],
)
def test_optimization_is_read_from_the_flags_in_use(
    variables: Mapping[str, object],
    pgo: bool,  # noqa: FBT001 - a parameter
    lto: bool,  # noqa: FBT001
) -> None:
    build = read_build(variables)
    assert (build.pgo, build.lto) == (pgo, lto)


def chosen() -> tuple[str, str]:
    """The interpreter that `make setup` takes, and the reason."""
    done = subprocess.run([str(ROOT / ".ci" / "python")], capture_output=True, text=True, check=True)
    return done.stdout.strip(), done.stderr


@pytest.mark.process
def test_setup_takes_an_interpreter_with_pgo_or_python3() -> None:
    python, reason = chosen()
    if not reason:
        assert python == "python3"
        return
    done = subprocess.run([python, "-I", str(ROOT / "tools" / "interpreter.py")], capture_output=True, text=True)
    assert done.returncode == 0, "it can make an environment and has PGO"
    assert reason == f"taking {python}: {done.stdout}"
    assert "with PGO" in reason


@pytest.mark.landing
@pytest.mark.process
def test_setup_uses_the_interpreter_of_the_variable_python() -> None:
    def commands(*variables: str) -> str:
        command = ["make", "--dry-run", "--always-make", "setup", *variables]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        return done.stdout

    assert f"{chosen()[0]} -m venv .venv\n" in commands()
    assert f"{sys.executable} -m venv .venv\n" in commands(f"PYTHON={sys.executable}")
