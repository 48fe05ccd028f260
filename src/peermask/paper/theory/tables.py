"""The study's tables: one source for the terminal and for the Markdown report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from peermask.paper.theory.measures import Distances
from peermask.paper.theory.study import LEVELS, Study
from peermask.paper.theory.widths import needed_width

DELTA = 0.05  # the failure probability for which widths are compared


@dataclass(frozen=True)
class Table:
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    meaning: str


def tables(study: Study) -> list[Table]:
    return [
        theorem_table(study),
        accuracy_table(study),
        width_table(study),
        success_table(study),
        lemma_table(study),
        overlap_table(study),
        shared_table(study),
        counterexample_table(study.counterexample),
    ]


def theorem_table(study: Study) -> Table:
    pair = study.pair
    data, noise = pair.seen
    cube = [f"in [{low:.3g}, {high:.3g}]" for low, high in zip(pair.climbed, pair.certified, strict=True)]
    certified = sum(pair.certified)
    alpha, largest = pair.certified_alpha, max(data.sup, noise.sup)
    rows = (
        ("ε1 = sup ‖f1 − g_m1‖, (23)", *_both(data, noise, "eps1"), cube[0]),
        ("ε2 = sup ‖f2 − g_m2‖, (24)", *_both(data, noise, "eps2"), cube[1]),
        ("α_l = inf ‖f1 − f2‖", *_both(data, noise, "alpha_l"), "0, at x = 0"),
        (
            "α_u = sup ‖f1 − f2‖",
            *_both(data, noise, "alpha_u"),
            f"in [{max(data.alpha_u, noise.alpha_u):.3g}, {alpha:.3g}]",
        ),
        ("inf ‖g_m1 − g_m2‖", *_both(data, noise, "inf"), "0, at x = 0"),
        ("sup ‖g_m1 − g_m2‖", *_both(data, noise, "sup"), f"at least {largest:.3g}"),
        ("upper bound, (25)", *_both(data, noise, "upper"), f"{certified + alpha:.3g}"),
        ("  holds", _yes(data.upper_holds), _yes(noise.upper_holds), _yes(largest <= certified + alpha)),
        ("lower bound, (26) valid form", *_both(data, noise, "lower"), "0"),
        ("  holds", _yes(data.lower_holds), _yes(noise.lower_holds), "yes"),
        ("lower bound, (26) as printed", *_both(data, noise, "lower_printed"), "0"),
        ("  implied here (ε1+ε2 ≤ α_l)", *[_yes(d.printed_is_implied) for d in pair.seen], "no"),
        ("  holds", *[_yes(d.printed_holds) for d in pair.seen], "yes"),
    )
    first, second = (", ".join(map(str, labels)) for labels in pair.labels)
    return Table(
        f"Theorem 1 for agents with labels {{{first}}} and {{{second}}}, width n = {study.scale.width}",
        ("", f"data ({data.inputs})", f"random ({noise.inputs})", "whole cube"),
        rows,
        "On the agents' images, on random inputs and on all of [0, 1]^(D×D). Values over samples are lower "
        "estimates of a sup and upper estimates of an inf; over the whole cube the "
        "interval runs from the largest error found by ascent to the certificate that no input exceeds. The lower "
        "bound as printed follows from the triangle inequality only where ε1 + ε2 ≤ α_l; the valid form is used. "
        "Without biases f(0) = g_m(0) = 0, so over the whole cube any lower bound is 0.",
    )


def accuracy_table(study: Study) -> Table:
    pair = study.pair
    rows = tuple(
        (
            f"agent {number}",
            ", ".join(map(str, pair.labels[number - 1])),
            _percent(pair.target_accuracy[number - 1]),
            _percent(pair.mask_accuracy[number - 1]),
            _percent(pair.kept[number - 1]),
        )
        for number in (1, 2)
    )
    state = "bit for bit what was drawn" if pair.untouched else "CHANGED"
    return Table(
        "The subnetworks as classifiers (test images)",
        ("", "labels", "f trained", "g_m never trained", "entries of g kept"),
        rows,
        f"A mask alone turns the one random network into either agent's classifier; g's weights are {state}.",
    )


def width_table(study: Study) -> Table:
    rows = []
    for width in study.scale.widths:
        trials = [trial for trial in study.trials if trial.width == width]
        worst = [trial.worst for trial in trials]
        rows.append(
            (
                str(width),
                ", ".join(str(width * outs) for outs in study.scale.channels[1:]),
                f"{median(worst):.2g}",
                f"{min(worst):.2g} .. {max(worst):.2g}",
                f"{median(max(trial.seen.eps1, trial.seen.eps2) for trial in trials):.2g}",
                f"{sum(trial.out_of_reach > 0 for trial in trials)}/{len(trials)}",
                _percent(fmean(value for trial in trials for value in trial.accuracy)),
            )
        )
    return Table(
        f"Error against width, {study.scale.draws} draws of g for each",
        ("n", "I_l", "ε median", "ε range", "ε seen", "short", "accuracy"),
        tuple(rows),
        "ε is the larger of the two agents' certified errors over the whole cube, 'seen' the largest on the agents' "
        "data; 'short' counts the draws in which some weight is beyond the sum of all its usable products, where no "
        f"search can help. The median falls like exp(−{study.rate:.2f} n) once it is small.",
    )


def success_table(study: Study) -> Table:
    rows = []
    for width in study.scale.widths:
        trials = [trial for trial in study.trials if trial.width == width]
        rates = [row.rate for eps in LEVELS for row in study.successes if (row.width, row.eps) == (width, eps)]
        rows.append(
            (
                str(width),
                *[f"{rate:.2f}" for rate in rates],
                f"{sum(trial.seen.lower_holds for trial in trials)}/{len(trials)}",
                f"{sum(trial.seen.printed_holds for trial in trials)}/{len(trials)}",
            )
        )
    failed = [trial for trial in study.trials if not trial.seen.printed_holds]
    return Table(
        "How often it works",
        ("n", *[f"P(ε ≤ {eps:g})" for eps in LEVELS], "(26) valid", "(26) printed"),
        tuple(rows),
        "Fraction of draws in which both agents' certified error is at most ε, and in how many each form of the lower "
        f"bound holds on the agents' data: the printed one fails in {len(failed)} of {len(study.trials)} draws, "
        f"{sum(trial.seen.printed_is_implied for trial in failed)} of them with ε1 + ε2 ≤ α_l.",
    )


def lemma_table(study: Study) -> Table:
    rows = []
    for eps in LEVELS:
        enough = [row for row in study.successes if row.eps == eps and row.rate >= 1 - DELTA]
        needed = needed_width(study.constant, study.problems, eps, DELTA)
        constant = min(enough, key=lambda row: row.width, default=None)
        measured = "beyond the sweep" if constant is None else str(constant.width)
        spread = (
            "" if constant is None else f"{constant.rate:.2f} [{constant.interval[0]:.2f}, {constant.interval[1]:.2f}]"
        )
        rows.append((f"{eps:g}", measured, spread, f"{math.ceil(needed)}"))
    return Table(
        f"Width for success with probability at least 1 − δ = {1 - DELTA:g}",
        ("ε", "smallest measured n", "rate there [95 %]", "lemma's n with Ĉ"),
        tuple(rows),
        f"Lemma 1 asks for n = I_l/O_l ≥ C ln(M/min(ε, δ)) with M = {study.problems}; Ĉ = {study.constant:.2f} is the "
        f"smallest constant for which no measured rate is below its promise (with {study.scale.draws} draws a rate of "
        f"1 proves little beyond {1 - 3 / study.scale.draws:.2f}). The fall of ε alone corresponds to "
        f"1/ρ = {1 / study.rate:.2f}; one bit per usable product would give 1/ln(4/3) = 3.48.",
    )


def overlap_table(study: Study) -> Table:
    pair = study.pair
    rows = [("solved to the last digit", f"{pair.certified[1]:.2g}", _percent(pair.mask_accuracy[1]), pair.common)]
    rows += [
        (f"near m1, {near.tolerance:g} per weight", f"{near.certified:.2g}", _percent(near.accuracy), near.common)
        for near in study.near
    ]
    return Table(
        "What the two masks have in common (d × d layers)",
        ("m2", "ε2 certified", "accuracy", "kept by both", "by chance", "σ above", "Jaccard"),
        tuple(
            (
                name,
                error,
                accuracy,
                str(common.both),
                f"{common.chance:.0f} ± {common.spread:.0f}",
                f"{common.sigmas:+.1f}",
                f"{common.jaccard:.2f}",
            )
            for name, error, accuracy, common in rows
        ),
        "Chance picks as many products of each weight blindly from the usable ones "
        f"({pair.common.chance_anywhere:.0f} if from all entries). Subset sums solved to the last digit give "
        "masks that share little more than chance, however alike the functions; told to stay near m1, agent 2 finds "
        "one that shares more of it the more error it may have.",
    )


def shared_table(study: Study) -> Table:
    rows = []
    for shared in sorted({row.shared for row in study.correlated}):
        seen = [row.seen for row in study.correlated if row.shared == shared]
        names = ("alpha_l", "alpha_u", "lower", "inf", "sup", "upper")
        held = sum(d.upper_holds and d.lower_holds for d in seen)
        means = [f"{fmean(getattr(d, name) for d in seen):.3g}" for name in names]
        rows.append((str(shared), *means, f"{held}/{len(seen)}"))
    return Table(
        f"Correlated as the data are? {study.scale.pairs} pair(s) for each number of shared labels",
        ("shared", "α_l", "α_u", "lower", "inf ‖g1−g2‖", "sup ‖g1−g2‖", "upper", "both hold"),
        tuple(rows),
        "Means over pairs on their data, each from an initialisation of its own: the subnetworks are as far apart "
        "as the trained networks are, give or take ε1 + ε2, whatever the labels do to those.",
    )


def counterexample_table(case: Distances) -> Table:
    row = (
        f"{case.eps1:g} + {case.eps2:g}",
        f"{case.alpha_l:g}",
        f"{case.lower_printed:g}",
        f"{case.lower:g}",
        f"{case.inf:g}",
    )
    return Table(
        "Where (26) as printed fails: f1 = x/10, f2 = x/20, x = 1",
        ("ε1 + ε2", "α_l = α_u", "(26) printed", "(26) valid", "inf ‖g_m1 − g_m2‖"),
        (row,),
        "In a g of width 1 with both weights 1/2, both agents' best mask is the empty one, so the "
        "subnetworks are equal; the printed bound says they are not.",
    )


def _both(data: Distances, noise: Distances, name: str) -> Sequence[str]:
    return [f"{getattr(seen, name):.3g}" for seen in (data, noise)]


def _yes(holds: bool) -> str:
    return "yes" if holds else "NO"


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.1f} %"
