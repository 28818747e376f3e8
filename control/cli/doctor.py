"""`tidewheel doctor`: find what is wrong with an installation, each with evidence and a remedy.

Exit codes: 0 if nothing is wrong, 1 if there are warnings only, 2 if an error keeps work waiting.
"""

import typer

from tidewheel.control.cli.output import Output, OutputOption, print_document
from tidewheel.control.cli.status import print_finding
from tidewheel.control.doctor.doctor import diagnose
from tidewheel.control.reads.findings import Severity
from tidewheel.settings.connections import Connections

_WARNINGS, _ERRORS = 1, 2


def doctor(output: OutputOption = Output.TEXT) -> None:
    """Check the installation; print each finding with its evidence and a remedy."""
    report = diagnose(Connections.load())
    if output is not Output.TEXT:
        print_document(report, output)
    else:
        for finding in report.findings:
            print_finding(finding)
            typer.echo()
        if report.skipped:
            typer.echo(f"not checked: {', '.join(report.skipped)}")
        found = f"{len(report.findings)} {'finding' if len(report.findings) == 1 else 'findings'}"
        typer.echo(f"{found}; nothing wrong: {', '.join(report.passed) or 'no check'}")
    if report.findings:
        raise typer.Exit(_ERRORS if any(each.severity is Severity.ERROR for each in report.findings) else _WARNINGS)
