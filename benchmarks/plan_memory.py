"""Memory by `peermask plan` against the peak of a real process, as a ratio.

    python -m benchmarks.plan_memory

The allocator, the number of cores and the version of torch decide how much a process takes, so no test asserts this.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

CASES = (
    ["agents=5", "model=mlp", "algorithm=dsgd", "graph=ring"],
    ["agents=10", "model=cnn", "algorithm=accord"],
    ["agents=8", "model.name=mlp", "model.hidden=[1500,1500]", "algorithm=accord"],
)
LOAD = "import sys, peermask; config = peermask.load_config(sys.argv[1], sys.argv[2:]); "
PLAN = LOAD + "print(max(plan.memory for plan in peermask.plan(config, device='cpu').values()) // 1024)"
# The peak is read inside: what wait4 says of a child includes the parent it was forked from.
RUN = (
    LOAD + "peermask.run_experiment(config, 'run', execution=peermask.Execution(device='cpu')); "
    "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))"
)


def main() -> None:
    print("| config | run, MB | plan, MB | plan / run |\n|---|---|---|---|")
    for case in CASES:
        settings = ["rounds=2", "retention=0.3", *case]
        peak, planned = (_number(code, settings) for code in (RUN, PLAN))
        print(f"| {' '.join(case)} | {peak / 1024:.0f} | {planned / 1024:.0f} | {planned / peak:.2f} |", flush=True)


def _number(code: str, settings: list[str]) -> int:
    """Run code on a config in a process of its own, and read the number that it prints last."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "empty.toml"
        config.write_text("")
        command = [sys.executable, "-c", code, str(config), *settings]
        done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, check=True, text=True)
    return int(done.stdout.split()[-1])


if __name__ == "__main__":
    main()
