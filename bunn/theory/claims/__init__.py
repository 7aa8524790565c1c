"""The claims of the paper, a section to a file.

To add one, write a function that yields its evidence, decorate it with
:func:`bunn.theory.claim.claim`, and name it in :data:`CLAIMS`: ``bunn verify`` then runs it, and
the tests demand a mutation of the library that turns it red.
"""

from __future__ import annotations

from bunn.theory.claim import Claim
from bunn.theory.claims.algorithms import spectral, taylor
from bunn.theory.claims.complexity import cost
from bunn.theory.claims.dirichlet import energy, energy_gradient
from bunn.theory.claims.flatness import factorization, newheatdiff, path_independence
from bunn.theory.claims.links import gcn, sheaf
from bunn.theory.claims.orthogonal import householder
from bunn.theory.claims.reach import mpnn_jacobian, mpnn_uniform_approx
from bunn.theory.claims.sensitivities import jacobian, squashing
from bunn.theory.claims.signal import signal_energy
from bunn.theory.claims.smoothing import oversmoothing
from bunn.theory.claims.stationary import consensus, limit
from bunn.theory.claims.universality import traditionalunivapprox, unifapp

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
    "consensus",
    "cost",
    "energy",
    "energy_gradient",
    "factorization",
    "gcn",
    "householder",
    "jacobian",
    "limit",
    "mpnn_jacobian",
    "mpnn_uniform_approx",
    "newheatdiff",
    "oversmoothing",
    "path_independence",
    "sheaf",
    "signal_energy",
    "spectral",
    "squashing",
    "taylor",
    "traditionalunivapprox",
    "unifapp",
]
