"""Diagnostics for models of one's own: over-squashing, over-smoothing, range, and where heat goes.

:func:`sensitivity`, :func:`smoothing_profile` and :func:`receptive_field` read any model that is
called as ``model(x, edge_index, **inputs)``, in evaluation mode, and leave it as it was. Plots of
what they return are in :mod:`bunn.theory.plots`.
"""

from __future__ import annotations

from bunn.theory.diagnostics.heat import heat_rows
from bunn.theory.diagnostics.reach import ReceptiveField, hop_distances, receptive_field
from bunn.theory.diagnostics.sensitivities import sensitivity
from bunn.theory.diagnostics.smoothing import SmoothingProfile, smoothing_profile

__all__ = [
    "ReceptiveField",
    "SmoothingProfile",
    "heat_rows",
    "hop_distances",
    "receptive_field",
    "sensitivity",
    "smoothing_profile",
]
