"""Draw one plot per scenario as PNG and SVG, with the extra `bench` (matplotlib)."""

# pyright: reportUnknownMemberType=false
# Its own types leave most keyword arguments open.

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from tidewheel.bench.measurement import Points, Round, percentile
from tidewheel.errors import refuse

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDTH, _HEIGHT = 8.0, 4.0  # inches, of one panel
_FIGURE, _FLOOR = "#1f5fa8", "#b8b8b8"


def check_plots(folder: Path) -> None:
    """See that plots can be drawn, and kept there, before anything is measured.

    Raises:
        Refused: matplotlib is not installed, or this is no folder; says what to do.
    """
    if find_spec("matplotlib") is None:
        refuse("plots", "matplotlib is not installed", "install tidewheel[bench], or leave out --plots")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        refuse("plots", f"{folder} can be no folder: {error.strerror}", "name a folder, or leave out --plots")


def plot(folder: Path, scenario: str, rounds: Sequence[Round]) -> list[Path]:
    """Draw figure and floor of each round, distributions of latencies, and what changed over time.

    Args:
        folder: Where to; made if it is not there.
        scenario: Its name; the files are called so.
        rounds: What was found.

    Returns:
        The files.
    """
    from matplotlib.figure import Figure

    bars = _bars(rounds)
    spread: dict[str, list[float]] = {}
    for each in rounds:
        for name, values in each.distributions.items():
            spread.setdefault(name, []).extend(values)
    series = {name: points for each in rounds for name, points in each.series.items() if points}
    panels = len(bars) + bool(spread) + len(series)
    figure = Figure(figsize=(_WIDTH, _HEIGHT * panels), layout="constrained")
    axes: list[Axes] = list(figure.subplots(panels, 1, squeeze=False)[:, 0])
    figure.suptitle(f"tidewheel bench {scenario}")
    for unit, names in bars.items():
        _draw_bars(axes.pop(0), unit, names, rounds)
    if spread:
        _draw_spread(axes.pop(0), spread)
    for name, points in series.items():
        _draw_series(axes.pop(0), name, points)
    folder.mkdir(parents=True, exist_ok=True)
    made = [folder / f"{scenario}.{kind}" for kind in ("png", "svg")]
    for path in made:
        figure.savefig(path, dpi=120)
    return made


def _bars(rounds: Sequence[Round]) -> dict[str, list[str]]:
    """The names of the figures by their units: those of one unit share a panel."""
    found: dict[str, list[str]] = {}
    for each in rounds:
        for name, figure in each.figures.items():
            names = found.setdefault(figure.unit, [])
            if name not in names:
                names.append(name)
    return found


def _draw_bars(axes: "Axes", unit: str, names: Sequence[str], rounds: Sequence[Round]) -> None:
    """A group for each figure, in it a bar for each round, and behind it the round's floor."""
    labels: list[str] = []
    floored = False
    for group, name in enumerate(names):
        figures = [each.figures[name] for each in rounds if name in each.figures]
        labels.append(name.replace("_", " "))
        width = 0.8 / max(len(figures), 1)
        for number, figure in enumerate(figures):
            at = group - 0.4 + width * (number + 0.5)
            if figure.floor:
                axes.bar(at, figure.floor, width * 0.95, color=_FLOOR, label=None if floored else "floor")
                floored = True
            axes.bar(at, figure.value, width * 0.6, color=_FIGURE, label=None if group or number else "each round")
    axes.set_xticks(
        range(len(names)), labels, rotation=15 if len(names) > 2 else 0, ha="right" if len(names) > 2 else "center"
    )
    axes.set_ylabel(unit)
    axes.legend()


def _draw_spread(axes: "Axes", spread: Mapping[str, Sequence[float]]) -> None:
    """Draw the share of runs by their maximum lateness in milliseconds."""
    shares = [number / 10 for number in range(1001)]
    for name, values in spread.items():
        ordered = sorted(values)
        late = [max(ordered[min(len(ordered) - 1, int(share / 100 * len(ordered)))], 0.01) for share in shares]
        axes.plot(late, shares, label=f"{name} (p99 {percentile(ordered, 99):,.1f} ms)")
    axes.set_xscale("log")
    axes.set_xlabel("milliseconds")
    axes.set_ylabel("% no later")
    axes.grid(visible=True, alpha=0.3)
    axes.legend()


def _draw_series(axes: "Axes", name: str, points: Points) -> None:
    axes.plot([at for at, _ in points], [value for _, value in points], color=_FIGURE)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("seconds")
    axes.set_title(name, fontsize="medium")
    axes.grid(visible=True, alpha=0.3)
