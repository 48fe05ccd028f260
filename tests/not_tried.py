"""The closing line of a test run: what was skipped, by what it needs. CONTRIBUTING says how to try each."""

from __future__ import annotations

from collections import Counter
from typing import Any

SUBJECTS = {  # by a word in the reason of a skip
    "CUDA": "GPU",
    "GPU": "GPU",
    "Triton": "interpreted GPU kernels",
    "triton": "interpreted GPU kernels",
    "interpreted kernels": "compiled GPU kernels",
    "chromium": "browser",
    "nft": "packet loss",
    "namespaces": "network namespaces",
    "mount": "full disks",
    "/dev/full": "full disks",
    "fashion-mnist": "Fashion-MNIST",
    "systemd": "systemd",
    "IPv6": "IPv6",
    "pyarrow": "Parquet",
    "promtool": "alert rules",
    "'datasets'": "Hugging Face data sets",
}


def subject(reason: str) -> str:
    """A short name for what a skipped test tries; the reason itself where there is none."""
    return next((name for word, name in SUBJECTS.items() if word in reason), reason)


def line(reasons: list[str]) -> str:
    counts = Counter(subject(reason.removeprefix("Skipped: ")) for reason in reasons)
    return f"not tried here: {', '.join(f'{name} ({n})' for name, n in counts.most_common())}: see CONTRIBUTING"


def pytest_terminal_summary(terminalreporter: Any) -> None:
    reasons = [report.longrepr[2] for report in terminalreporter.stats.get("skipped", ())]
    if reasons:
        terminalreporter.write_line(line(reasons))
