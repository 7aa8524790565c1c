"""The paper's claims as executable checks, and diagnostics for models of one's own.

A claim is a callable in :data:`CLAIMS`: ``CLAIMS["jacobian"]()`` runs it on its own graphs,
``CLAIMS["jacobian"](graphs=[...], seed=3)`` on others, and returns a :class:`Report`.
"""

from __future__ import annotations

from bunn.theory.approximation import UniversalNetwork, universal_network
from bunn.theory.claim import Check, Claim, Erratum, Report, Table, claim
from bunn.theory.claims import (
    CLAIMS,
    consensus,
    cost,
    energy,
    energy_gradient,
    factorization,
    gcn,
    householder,
    jacobian,
    limit,
    mpnn_jacobian,
    mpnn_uniform_approx,
    newheatdiff,
    oversmoothing,
    path_independence,
    sheaf,
    signal_energy,
    spectral,
    squashing,
    taylor,
    traditionalunivapprox,
    unifapp,
)
from bunn.theory.diagnostics import (
    ReceptiveField,
    SmoothingProfile,
    heat_rows,
    hop_distances,
    receptive_field,
    sensitivity,
    smoothing_profile,
)
from bunn.theory.networks import lookup_network
from bunn.theory.plots import (
    plot_node_signal,
    plot_receptive_field,
    plot_sensitivity,
    plot_smoothing,
)
from bunn.theory.reflections import reflections
from bunn.theory.separating import SeparatingBuNN
from bunn.theory.universal import UniversalLayer, universal_layer

__all__ = [
    "CLAIMS",
    "Check",
    "Claim",
    "Erratum",
    "ReceptiveField",
    "Report",
    "SeparatingBuNN",
    "SmoothingProfile",
    "Table",
    "UniversalLayer",
    "UniversalNetwork",
    "claim",
    "consensus",
    "cost",
    "energy",
    "energy_gradient",
    "factorization",
    "gcn",
    "heat_rows",
    "hop_distances",
    "householder",
    "jacobian",
    "limit",
    "lookup_network",
    "mpnn_jacobian",
    "mpnn_uniform_approx",
    "newheatdiff",
    "oversmoothing",
    "path_independence",
    "plot_node_signal",
    "plot_receptive_field",
    "plot_sensitivity",
    "plot_smoothing",
    "receptive_field",
    "reflections",
    "sensitivity",
    "sheaf",
    "signal_energy",
    "smoothing_profile",
    "spectral",
    "squashing",
    "taylor",
    "traditionalunivapprox",
    "unifapp",
    "universal_layer",
    "universal_network",
]
