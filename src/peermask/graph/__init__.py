"""Graphs: which agent hears which (topology) and how strongly (mixing). Importing registers every topology."""

from peermask.graph.links import Links
from peermask.graph.mixing import Mixing, build_mixing
from peermask.graph.schedule import Base, Schedule, schedules
from peermask.graph.topology import Graph, Topology, build_graph, edges_hash, topologies

__all__ = [
    "Base", "Graph", "Links", "Mixing", "Schedule", "Topology", "build_graph", "build_mixing",
    "edges_hash", "schedules", "topologies",
]  # fmt: skip
