"""Who hears whom (topology) and how strongly (mixing). Importing registers every topology."""

from peermask.graph import adjacency_file, drawn, shapes
from peermask.graph.mixing import Mixing, build_mixing
from peermask.graph.topology import Graph, Topology, build_graph, graph_hash, topologies

__all__ = [
    "Graph",
    "Mixing",
    "Topology",
    "adjacency_file",
    "build_graph",
    "build_mixing",
    "drawn",
    "graph_hash",
    "shapes",
    "topologies",
]
