"""Entry point of the `tidewheel` command. Sub-commands and their modules: `commands.py`.

Exit codes: `exit_codes.py`. A refusal is a line on standard error for each problem.
"""

import sys

from tidewheel.control.cli.standard_output import guard_output


def main() -> None:
    """Run the command line."""
    guard_output(_main)


def _main() -> None:
    if sys.argv[1:] == ["--version"]:
        # Imported here: the command line's imports cost more than the rest of this call.
        from tidewheel.release import describe_release

        sys.stdout.write(f"{describe_release()}\n")
        return
    from tidewheel.control.cli.commands import run

    run()
