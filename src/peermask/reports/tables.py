"""A run as tables on a terminal."""

from __future__ import annotations

from math import isnan, nan

from rich.table import Table

from peermask.experiment.result import RunResult
from peermask.experiment.table import read_rows

LISTED = 200  # agents with a row of their own
UNEVEN = ("dirichlet", "shards", "quantity", "everything")  # partitions whose label frequencies deserve a column


def bytes_human(count: float) -> str:
    """`12.3 MB`: powers of 1000, as networks count."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 999.5 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1000
    raise AssertionError


def percent(share: float) -> str:
    return "-" if isnan(share) else f"{100 * share:.1f} %"


def label_of(result: RunResult) -> str:
    """The algorithm, or in a comparison the folder's name, which tells two runs of one algorithm apart."""
    return result.folder.path.name if result.compared else result.config.algorithm.name


def mean_density(result: RunResult) -> float:
    return sum(agent.density for agent in result.agents) / len(result.agents)


def _lowest(result: RunResult, figure: str) -> float:
    values = [getattr(agent, figure) for agent in result.agents if not agent.liar]
    return min((value for value in values if not isnan(value)), default=nan)


def agents_table(result: RunResult) -> Table:
    """Per agent what it holds, keeps, reaches and sends; then the mean, and the worst of each column of accuracies."""
    table = Table(title=f"{label_of(result)}: round {result.round} ({result.status})", title_justify="left")
    others = [arm for arm in result.compared if len(arm.agents) == len(result.agents)]
    beside = {} if others else _beside(result)  # where there is room
    for heading in ("agent", "labels", "retention", "density", "accuracy", *beside.values(), "sent"):
        if heading == "labels":  # the one column that may take several lines
            table.add_column(heading, min_width=len(heading))
        else:
            table.add_column(heading, justify="right", no_wrap=True)
    for other in others:
        table.add_column(other.root.name, justify="right", style="dim", no_wrap=True)
    for row, agent in enumerate(result.agents[:LISTED]):
        table.add_row(
            str(agent.agent),
            " ".join(map(str, agent.labels)),
            f"{agent.retention:g}",
            percent(agent.density),
            percent(agent.test_accuracy),
            *(percent(getattr(agent, figure)) for figure in beside),
            bytes_human(agent.sent_bytes),
            *(percent(other.agents[row].test_accuracy) for other in others),
        )
    if len(result.agents) > LISTED:
        table.add_row("...", f"{len(result.agents) - LISTED:,} more, in metrics.csv")
    table.add_section()
    table.add_row(
        "mean",
        "",
        "",
        percent(mean_density(result)),
        percent(result.mean_accuracy),
        *(percent(result.mean(figure)) for figure in beside),
        bytes_human(result.sent_bytes / len(result.agents)),
        *(percent(other.mean_accuracy) for other in others),
        style="bold",
    )
    # Each column has a worst agent of its own, so nothing else about one stands in this row.
    worst = [percent(_lowest(result, figure)) for figure in ("test_accuracy", *beside)]
    table.add_row("worst", "", "", "", *worst, "", *(percent(_lowest(other, "test_accuracy")) for other in others))
    return table


def _beside(result: RunResult) -> dict[str, str]:
    """Figures worth a column of their own, and its heading: those that differ from the accuracy that counts."""
    other = _other(result)
    headings = {f"test_accuracy_{other}": f"{other}\nlabels"}
    if result.config.partition.name in UNEVEN:
        headings["test_accuracy_weighted"] = "weighted"
    return {
        figure: heading
        for figure, heading in headings.items()
        if any(percent(getattr(a, figure)) not in ("-", percent(a.test_accuracy)) for a in result.agents)
    }


def _other(result: RunResult) -> str:
    """The readout that does not count."""
    return "all" if result.readout == "own" else "own"


def _readouts(name: str, result: RunResult) -> str:
    """The mean accuracy by either readout, and weighted."""
    other = _other(result)
    return (
        f"{name}: {percent(result.mean_accuracy)} with answers among {result.readout} labels, "
        f"{percent(result.mean(f'test_accuracy_{other}'))} among {other}; "
        f"{percent(result.mean('test_accuracy_weighted'))} weighted by own label frequencies"
    )


def closing_lines(result: RunResult) -> list[str]:
    """What it came to, in sentences."""
    arms = {label_of(result): result, **{other.root.name: other for other in result.compared}}
    # Runs of earlier versions have but one accuracy.
    lines = [_readouts(name, arm) for name, arm in arms.items() if not isnan(arm.mean("test_accuracy_own"))]
    for other in result.compared:
        gain = 100 * (result.mean_accuracy - other.mean_accuracy)
        used = [percent(mean_density(arm)) for arm in (result, other)]
        with_more = f", with {used[0]} of the weights against {used[1]}" if used[0] != used[1] else ""
        lines.append(f"{label_of(result)} against {other.root.name}: {gain:+.1f} points of mean accuracy{with_more}")
        if result.readout != other.readout:
            gains = [
                100 * (result.mean(each) - other.mean(each)) for each in ("test_accuracy_all", "test_accuracy_own")
            ]
            lines.append(f"both with answers among all labels: {gains[0]:+.1f} points; both among own: {gains[1]:+.1f}")
    # As many as there were: a fleet's agents may have been away, or collected in part.
    messages = sum(int(row["links"]) for row in read_rows(result.folder.traffic))
    if result.sent_bytes and messages:
        each = result.sent_bytes / messages
        floats = 4 * result.manifest["parameters"]
        lines.append(
            f"a message: {bytes_human(each)}, where the float32 model has {bytes_human(floats)} "
            f"({floats / each:.0f} times as much); {messages:,} messages, {bytes_human(result.sent_bytes)} in all"
        )
    return lines
