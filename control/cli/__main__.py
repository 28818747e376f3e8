"""`python -m tidewheel.control.cli`: the command where no script was installed."""

from tidewheel.control.cli.main import main

main()
