"""Whether every package that an agent needs has a wheel for 64-bit ARM: a Raspberry Pi should not compile anything.

    python -m benchmarks.wheels [--python 3.12 3.13] [--machine aarch64]

Asks the package index for each package, pinned as in constraints.txt, by `pip install --dry-run`; nothing is installed.
The packages are those that this environment has of `peermask[node]`, which must be installed here.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
GLIBC = (17, 24, 26, 27, 28)  # 2.x; Debian 12 has 2.36, Debian 11 has 2.31


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", nargs="+", default=["3.12", "3.13"])
    parser.add_argument("--machine", default="aarch64")
    options = parser.parse_args()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = sorted(needed([*project["dependencies"], *project["optional-dependencies"]["node"]], set()))
    pins = dict(pinned(line) for line in (ROOT / "constraints.txt").read_text().split())
    lacking = 0
    print("package  version  " + "  ".join(f"wheel for {version}" for version in options.python))
    for name in wanted:
        pin = pins.get(name) or distribution(name).version  # setuptools, which torch needs, is not pinned
        wheels = [found(f"{name}=={pin}", version, options.machine) for version in options.python]
        lacking += sum(not wheel.endswith(".whl") for wheel in wheels)
        print(f"{name}  {pin}  {'  '.join(tags(wheel) for wheel in wheels)}", flush=True)
    print(f"{len(wanted)} packages, {lacking} wheels lacking for {options.machine}")
    sys.exit(1 if lacking else 0)


def pinned(line: str) -> tuple[str, str]:
    name, _, version = line.partition("==")
    return canonicalize_name(name), version


def needed(requirements: list[str], known: set[str]) -> Iterator[str]:
    """All packages that these requirements install, on Linux and without extras."""
    for requirement in map(Requirement, requirements):
        name = canonicalize_name(requirement.name)
        if name in known or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        known.add(name)
        yield name
        try:
            yield from needed(distribution(name).requires or [], known)
        except PackageNotFoundError:
            sys.exit(f"{name} is not installed here: pip install 'peermask[node]'")


def found(requirement: str, version: str, machine: str) -> str:
    """The file name of the wheel, or why there is none."""
    platforms = [f"manylinux2014_{machine}", *(f"manylinux_2_{minor}_{machine}" for minor in GLIBC)]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--dry-run"]
        command += ["--ignore-installed", "--no-deps", "--only-binary=:all:", "--python-version", version]
        command += ["--implementation", "cp", "--target", folder, "--report", str(report)]
        for platform in platforms:
            command += ["--platform", platform]
        done = subprocess.run([*command, requirement], capture_output=True, text=True, timeout=300)
        if done.returncode:
            return (done.stderr.strip().splitlines() or ["pip failed"])[-1][:80]
        url: str = json.loads(report.read_text())["install"][0]["download_info"]["url"]
        return url.rpartition("/")[2]


def tags(wheel: str) -> str:
    """`cp312-manylinux_2_28_aarch64`, or the reason."""
    return "-".join(wheel.removesuffix(".whl").split("-")[-3::2]) if wheel.endswith(".whl") else wheel


if __name__ == "__main__":
    main()
