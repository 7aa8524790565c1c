"""The paper's claims as executable checks, and diagnostics for models of one's own.

A claim is a callable in :data:`CLAIMS`: ``CLAIMS["jacobian"]()`` runs it on its own graphs,
``CLAIMS["jacobian"](graphs=[...], seed=3)`` on others, and returns a :class:`Report`. To add one,
write a function that yields its evidence, decorate it with :func:`claim`, and name it here;
``bunn verify`` then runs it and the tests demand a mutation that turns it red.
"""

from __future__ import annotations

from bunn.theory.algorithms import spectral, taylor
from bunn.theory.claim import Check, Claim, Erratum, Report, Table, claim
from bunn.theory.complexity import cost
from bunn.theory.diagnostics import (
    ReceptiveField,
    SmoothingProfile,
    heat_rows,
    hop_distances,
    receptive_field,
    sensitivity,
    smoothing_profile,
)
from bunn.theory.dirichlet import energy, energy_gradient
from bunn.theory.flatness import factorization, newheatdiff, path_independence
from bunn.theory.links import gcn, sheaf
from bunn.theory.networks import lookup_network
from bunn.theory.plots import (
    plot_node_signal,
    plot_receptive_field,
    plot_sensitivity,
    plot_smoothing,
)
from bunn.theory.reach import mpnn_jacobian, mpnn_uniform_approx
from bunn.theory.reflections import householder, reflections
from bunn.theory.sensitivities import jacobian, squashing
from bunn.theory.smoothing import SeparatingBuNN, oversmoothing, signal_energy
from bunn.theory.stationary import consensus, limit
from bunn.theory.universal import (
    UniversalLayer,
    UniversalNetwork,
    universal_layer,
    universal_network,
)
from bunn.theory.universality import traditionalunivapprox, unifapp

#: Every claim by name, in the order of the paper.
CLAIMS: dict[str, Claim] = {
    claim.name: claim
    for claim in (
        energy,
        energy_gradient,
        factorization,
        newheatdiff,
        path_independence,
        gcn,
        sheaf,
        limit,
        consensus,
        signal_energy,
        oversmoothing,
        mpnn_jacobian,
        jacobian,
        squashing,
        mpnn_uniform_approx,
        unifapp,
        traditionalunivapprox,
        taylor,
        spectral,
        cost,
        householder,
    )
}

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
