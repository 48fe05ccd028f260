"""A call of `reproduce`: which experiments, on which data and where, and its runs, shared by several processes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from peermask.compute.device import pick_device
from peermask.errors import ConfigError, nearest
from peermask.paper.campaign import Campaign, read_data
from peermask.paper.cells import Defaults, add_released
from peermask.paper.output_folder import OutputFolder
from peermask.paper.preset import ScaleName, scales, selected
from peermask.plugins import find_plugins, load_plugins
from peermask.run.execution import Execution
from peermask.run.jobs import ShouldStop, Tell, divide_cores, share


@dataclass(frozen=True)
class Request:
    """What a user asks for; every process makes the same campaign of it."""

    names: tuple[str, ...]  # experiments, "all" among them, and TOML files
    scale: str
    seeds: tuple[int, ...] | None  # None: as many as the scale says
    device: str
    data_dir: Path | None
    out: Path | None
    released: Path | None
    imports: tuple[str, ...]
    processes: int

    @cached_property
    def size(self) -> ScaleName:
        if self.scale not in scales():
            raise ConfigError(f"unknown scale {self.scale!r}; {nearest(self.scale, scales())}")
        return "paper" if self.scale == "paper" else "quick"

    def campaign(self, should_stop: ShouldStop, *, tables_only: bool = False) -> Campaign:
        """Make the campaign; its data is read, and its folder made, unless only tables are asked for."""
        plugins = load_plugins(self.imports)
        wanted, size = selected(self.names), self.size
        if self.released is not None:
            add_released(wanted, self.released)
        home, dataset = OutputFolder(self.out or Path(f"reproduce-{size}")), None
        home.check_plugins(plugins)
        found = find_plugins(home.plugins(), str(home.path))
        if tables_only:
            home.look(size)
        else:
            pick_device(self.device)
            dataset = read_data(size, wanted, None if self.data_dir is None else str(self.data_dir))
            home.open(size, dataset, self.seeds[0] if self.seeds else 0, plugins)
        imports = tuple(dict.fromkeys((*found, *(plugin.name for plugin in plugins))))
        defaults = Defaults(size, scales()[size], imports)
        seeds = self.seeds or tuple(range(defaults.scale.seeds))
        first = wanted[: self.names.index("all")] if "all" in self.names else wanted
        execution = Execution(self.device, should_stop=should_stop, final_checkpoint=False)
        return Campaign(defaults, home, dataset, wanted, seeds, divide_cores(execution, self.processes), first)

    def run(self, campaign: Campaign, tell: Tell) -> None:
        """Run a campaign of this request, in other processes, too."""
        with share(self.processes - 1, _run, self):
            campaign.run(tell)


def _run(request: Request, should_stop: ShouldStop) -> None:
    request.campaign(should_stop).run(lambda *_: None)
