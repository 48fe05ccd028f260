"""What the documents show works as shown."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"


def test_the_algorithm_of_the_guide_runs(tmp_path: Path) -> None:
    """In a process of its own: registering is for good."""
    first_block = re.search(r"```python\n(.*?)```", (DOCS / "adding.md").read_text(), re.DOTALL)
    assert first_block
    (tmp_path / "gossip_median.py").write_text(first_block[1])
    script = (
        "import gossip_median, peermask\n"
        "config = peermask.make_config({'agents': 4, 'retention': 0.3, 'rounds': 3, 'model': 'mlp',"
        " 'algorithm': 'gossip-median'})\n"
        "result = peermask.run_experiment(config, 'run')\n"
        "print(result.status, result.sent_bytes > 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["finished", "True"], done.stderr


def test_links_between_documents_lead_somewhere() -> None:
    root = DOCS.parent
    for page in [*root.glob("*.md"), *DOCS.glob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"
