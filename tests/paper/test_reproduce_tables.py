"""Cells as text."""

from peermask.paper.outcome import Outcome, summarise
from peermask.paper.pages import format_csv, format_latex
from peermask.paper.tables import Entry, Grid, format_mean, format_number


def entry(*accuracies: float, paper: float | None = None, diverged: int = 0) -> Entry:
    lost = [Outcome(config={}, diverged="nan")] * diverged
    return Entry("MCE-PL", "ring", paper, summarise([*(Outcome(config={}, accuracy=a) for a in accuracies), *lost]))


def test_a_mean_has_its_deviation_where_there_are_seeds_enough() -> None:
    assert format_mean(entry(0.7, 0.8).summary) == "0.750 ± 0.071"
    assert format_mean(entry(0.7).summary) == "0.700"
    assert format_mean(entry().summary) == "-"
    assert format_mean(entry(diverged=2).summary) == "diverged"
    assert format_mean(entry(0.7, diverged=1).summary) == "0.700 (1 diverged)"


def test_a_difference_has_its_sign() -> None:
    assert format_number(entry(0.7, paper=0.6394).difference, sign=True) == "+0.061"
    assert format_number(entry(0.6, paper=0.6394).difference, sign=True) == "−0.039"
    assert entry(paper=0.6394).difference is None


def test_latex_and_csv_show_ours_the_papers_and_the_difference() -> None:
    made = Grid("table3", ((entry(0.6, 0.7, paper=0.6394), entry(), entry(), entry()),))
    text = format_latex(made)
    assert r"\begin{tabular}{l|rrr|rrr|rrr|rrr}" in text
    assert r"MCE-PL & 0.650 $\pm$ 0.071 & 0.639 & +0.011 & - & - & -" in text
    measured = Outcome(config={}, accuracy=0.6, all_labels=0.6, own_labels=0.7, weighted=0.61)
    both = Grid("table3", ((Entry("MCE-PL", "ring", 0.6394, summarise([measured])), entry(0.6)),))
    assert r"ours & own labels & paper & diff." in format_latex(both)
    assert r"MCE-PL & 0.600 & 0.700 & 0.639 & $-$0.039 & 0.600 & - & -" in format_latex(both)
    header, first, *_ = format_csv(made).splitlines()
    assert header.startswith("experiment,row,column,seeds,diverged,mean,deviation,half_way,worst,stuck")
    assert first == "table3,MCE-PL,ring,2,0,0.65,0.0707107,,,,,,0,0,0,0.65,,,,,,,0.6394,0.0106,,,"
