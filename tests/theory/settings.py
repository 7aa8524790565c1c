"""Graphs, times, sizes and seeds for the claims that are not those of ``bunn verify``."""

import math

import networkx as nx

from bunn.theory import CLAIMS
from bunn.theory.graphs import Graph
from tests.graphs import edges_of

SEED = 17


def graph(name: str, source: nx.Graph) -> Graph:
    return Graph(name, *edges_of(source))


WHEEL = graph("wheel", nx.wheel_graph(6))
LOLLIPOP = graph("lollipop", nx.lollipop_graph(4, 3))
PETERSEN = graph("petersen", nx.petersen_graph())
BIPARTITE = graph("bipartite", nx.complete_bipartite_graph(2, 5))
LADDER = graph("ladder", nx.ladder_graph(5))
CATERPILLAR = graph("caterpillar", nx.from_prufer_sequence([0, 0, 1, 1, 2, 5]))
PAIR = graph("pair", nx.path_graph(2))
PREFERENTIAL = graph("preferential", nx.barabasi_albert_graph(11, 2, seed=5))

MIXED = (WHEEL, LOLLIPOP, BIPARTITE, CATERPILLAR, PREFERENTIAL)
CYCLIC = (WHEEL, LADDER, PETERSEN, PREFERENTIAL)

#: What each claim is run with.
SETTINGS = {
    **{name: {"graphs": MIXED, "seed": SEED} for name in CLAIMS},
    "energy": {"graphs": MIXED, "regular": (PETERSEN, PAIR), "seed": SEED},
    "newheatdiff": {"graphs": MIXED, "times": (0.7, 25.0), "seed": SEED},
    "path-independence": {"graphs": CYCLIC, "seed": SEED},
    "limit": {"graphs": (*MIXED, PAIR, PETERSEN)},
    "oversmoothing": {"graphs": (LADDER, WHEEL, LOLLIPOP), "depths": (1, 3, 100), "seed": SEED},
    "jacobian": {"graphs": MIXED, "times": (1.5, math.inf), "seed": SEED},
    "mpnn-jacobian": {"graphs": MIXED, "depth": 2, "seed": SEED},
    "mpnn-uniform-approx": {"sizes": (18, 26), "depth": 3, "time": 4.0, "seed": SEED},
    "unifapp": {"graphs": MIXED, "times": (0.05, 2.0, 30.0), "channels": (3, 1), "seed": SEED},
    "traditionalunivapprox": {"graphs": (PAIR, WHEEL), "units": (2, 64), "seed": SEED},
    "cost": {"times": (2, 7, 500), "tol": 1e-4},
    "householder": {"dims": (2, 6, 7), "seed": SEED},
}
