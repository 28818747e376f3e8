"""Entry point of the `tidewheel` command. Sub-commands and their modules: `commands.py`.

Exit codes: 0 success, 1 with a line on standard error for each problem, 2 for a wrong flag.
"""

import sys


def main() -> None:
    """Run the command line."""
    if sys.argv[1:] == ["--version"]:
        # Imported here: the command line's imports cost more than the rest of this call.
        from importlib.metadata import version

        sys.stdout.write(f"tidewheel {version('tidewheel')}\n")
        return
    from tidewheel.control.cli.commands import run

    run()
