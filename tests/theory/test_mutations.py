"""Every claim turns red when the code under it is broken: one mutation per claim, or more."""

import dataclasses
import math

import pytest
import torch

import bunn.bundle
import bunn.bundle.rotation
import bunn.bundle.skew
import bunn.diffusion
import bunn.diffusion.polynomial
import bunn.diffusion.spectral
import bunn.theory.claims.complexity
import bunn.theory.claims.reach
import bunn.theory.claims.universality
import bunn.theory.diagnostics
import bunn.theory.universal
from bunn.bundle import FlatBundle
from bunn.bundle.householder import HouseholderMap
from bunn.bundle.rotation import PlaneMaps
from bunn.bundle.skew import MatrixMap
from bunn.diffusion import Time, chebyshev_degree
from bunn.laplacian import Laplacian
from bunn.nn import BuNNConv, MLPPhi
from bunn.sharing import forget_graphs
from bunn.theory import CLAIMS
from tests.theory.settings import SETTINGS

MAPS = (PlaneMaps, HouseholderMap, MatrixMap)


def desync_without_transpose(patch):
    for maps in MAPS:
        patch.setattr(maps, "desync", maps.sync)


def no_desync(patch):
    patch.setattr(FlatBundle, "desync", lambda self, x: x)


def no_sync(patch):
    patch.setattr(FlatBundle, "sync", lambda self, x: x)


def weight_transposed(patch):
    def mix(self, h, local):
        weight = self.network.weight
        if weight.size(0) != weight.size(1):
            return self.network(h)
        return torch.nn.functional.linear(h, weight.T, self.network.bias)

    original = BuNNConv._mix
    patch.setattr(
        BuNNConv,
        "_mix",
        lambda self, h, local: (
            mix(self, h, local) if self.network is not None else original(self, h, local)
        ),
    )


def bias_dropped(patch):
    original = BuNNConv._mix
    patch.setattr(
        BuNNConv,
        "_mix",
        lambda self, h, local: original(self, h, local) - original(self, 0 * h, local),
    )


def bias_in_the_other_frame(patch):
    original = BuNNConv._mix

    def mix(self, h, local):
        shift = original(self, torch.zeros_like(h), local)
        moved = shift if local is None else local.sync(shift.contiguous())
        return original(self, h, local) - shift + moved

    patch.setattr(BuNNConv, "_mix", mix)


def degrees_dropped(patch):
    """The limit is the plain mean of a component."""

    def mean(x, lap):
        return x.mean(0, keepdim=True).expand(x.shape).contiguous()

    patch.setattr(bunn.diffusion, "component_mean", mean)
    patch.setattr(bunn.diffusion, "_limit", lambda x, lap, time, options: mean(x, lap))
    patch.setitem(bunn.diffusion.METHODS, "limit", lambda x, lap, time, options: mean(x, lap))


def degrees_dropped_from_the_energy(patch):
    original = FlatBundle.energy
    patch.setattr(
        FlatBundle,
        "energy",
        lambda self, x, lap: original(self, x / lap.degree.sqrt().unsqueeze(1), lap),
    )


def edges_counted_twice(patch):
    original = FlatBundle.energy
    patch.setattr(FlatBundle, "energy", lambda self, x, lap: 2 * original(self, x, lap))


def energy_without_maps(patch):
    def energy(self, x, lap):
        u, v = lap.edge_index
        return 0.5 * (x[u] - x[v]).square().sum()

    patch.setattr(FlatBundle, "energy", energy)


def change_recurrences(patch, change):
    """Every recurrence gets the time and degree that ``change`` makes of those it is given."""
    recurrences = bunn.diffusion.polynomial.RECURRENCES
    for name, recurrence in list(recurrences.items()):
        patch.setitem(
            recurrences,
            name,
            lambda z, s, time, degree, run=recurrence: run(z, s, *change(time, degree)),
        )


def heat_too_hot(patch):
    """Half a percent more time than was asked for."""
    change_recurrences(patch, lambda time, degree: (1.005 * time, degree))


def one_product_too_few(patch):
    change_recurrences(patch, lambda time, degree: (time, max(0, degree - 1)))


def far_nodes_forgotten(patch):
    """Heat that is cut off after a few steps, whatever the method."""
    change_recurrences(patch, lambda time, degree: (time, min(degree, 10)))


def spectral_without_degrees(patch):
    """The eigenvectors as printed, for the random-walk Laplacian too."""
    original = bunn.diffusion.spectral.spectral

    def spectral(x, lap, time, options):
        symmetric = Laplacian(lap.edge_index, num_nodes=lap.num_nodes, normalization="sym")
        return original(x, symmetric.to(lap.dtype), time, options)

    patch.setitem(bunn.diffusion.METHODS, "spectral", spectral)


def laplacian_of_the_other_kind(patch):
    """The random-walk Laplacian normalised by the neighbour's degree."""
    original = Laplacian.__matmul__

    def matmul(self, x):
        scale = self.degree.view(-1, *[1] * (x.dim() - 1))
        return original(self, x / scale) * scale

    patch.setattr(Laplacian, "__matmul__", matmul)


def reflections_too_short(patch):
    def reflect(x, directions):
        for direction in directions:
            u = direction.to(x.dtype).unsqueeze(-1)
            x = torch.addcmul(x, u, u.mT @ x, value=-1.999)
        return x

    patch.setattr(HouseholderMap, "_reflect", staticmethod(reflect))


def never_reflected(patch):
    """The second half of the bundles of ``"o2"`` rotates as well."""
    build = lambda params, d: PlaneMaps(params.squeeze(-1), params.size(1))  # noqa: E731
    patch.setitem(bunn.bundle.MAPS, "o2", dataclasses.replace(bunn.bundle.MAPS["o2"], build=build))


def skew_matrices_negated(patch):
    original = bunn.bundle.skew._skew
    patch.setattr(bunn.bundle.skew, "_skew", lambda params, d: -original(params, d))


def one_map_for_all(patch):
    """Every node has the map of node 0."""
    original = FlatBundle.__init__

    def init(self, params, maps="o2", bundle_dim=2):
        original(self, params[:1].expand_as(params), maps, bundle_dim)

    patch.setattr(FlatBundle, "__init__", init)


def late_is_taken_for_never(patch):
    """Heat at t > 20 is heat at infinity."""
    original = bunn.diffusion.saturate

    def saturate(time, lap, tol):
        late = not isinstance(time.value, torch.Tensor) and time.value > 20
        return Time(math.inf, math.inf, math.inf) if late else original(time, lap, tol)

    patch.setattr(bunn.diffusion, "saturate", saturate)


def degree_of_a_thousand_tolerances(patch):
    """A Chebyshev expansion that is cut too early, and whose degree says the same."""
    hasty = lambda time, tol: chebyshev_degree(time, 1000 * tol)  # noqa: E731
    patch.setattr(bunn.theory.claims.complexity, "chebyshev_degree", hasty)
    patch.setitem(bunn.diffusion.polynomial.DEGREES, "chebyshev", hasty)


def universal_time_ignored(patch):
    """The layer of the theorem has infinite time, whatever was asked for."""
    original = bunn.theory.universal.universal_layer
    patch.setattr(
        bunn.theory.claims.universality,
        "universal_layer",
        lambda *args, time=math.inf: original(*args, time=math.inf),
    )


def gradient_by_angles_reversed(patch):
    original = bunn.bundle.rotation._PlaneMap.backward

    def backward(ctx, grad):
        grad_x, grad_cos, grad_sin, none = original(ctx, grad)
        return grad_x, grad_cos, None if grad_sin is None else -grad_sin, none

    patch.setattr(bunn.bundle.rotation._PlaneMap, "backward", staticmethod(backward))


def reflections_in_reverse(patch):
    sync, desync = HouseholderMap.sync, HouseholderMap.desync
    patch.setattr(HouseholderMap, "sync", desync)
    patch.setattr(HouseholderMap, "desync", sync)


def phi_a_little_off(patch):
    original = MLPPhi.forward
    patch.setattr(
        MLPPhi, "forward", lambda self, x, edge_index=None: original(self, x, edge_index) + 1e-3
    )


def leaking_sensitivity(patch):
    """A Jacobian that is not zero where it should be."""
    original = bunn.theory.diagnostics.sensitivity
    patch.setattr(
        bunn.theory.claims.reach,
        "sensitivity",
        lambda *args, **inputs: original(*args, **inputs) + 1e-3,
    )


def memory_grows_with_the_degree(patch):
    original = bunn.diffusion.polynomial_heat

    def heat(x, lap, time, recurrence, options):
        y = original(x, lap, time, recurrence, options)
        for _ in range(options.degree or 0):
            y = y * (1 + 0 * y)
        return y

    patch.setattr(bunn.diffusion, "polynomial_heat", heat)


#: What is broken, and the claims that must notice.
MUTATIONS = {
    desync_without_transpose: (
        "factorization",
        "newheatdiff",
        "path-independence",
        "consensus",
        "sheaf",
        "jacobian",
        "squashing",
        "unifapp",
        "taylor",
        "oversmoothing",
    ),
    no_desync: ("signal-energy", "oversmoothing", "newheatdiff", "unifapp"),
    no_sync: ("factorization", "consensus", "jacobian", "sheaf"),
    weight_transposed: ("jacobian", "gcn", "taylor", "unifapp", "squashing", "oversmoothing"),
    bias_dropped: ("traditionalunivapprox", "taylor", "gcn", "oversmoothing"),
    bias_in_the_other_frame: ("taylor",),
    degrees_dropped: ("limit", "consensus", "jacobian", "signal-energy", "mpnn-uniform-approx"),
    degrees_dropped_from_the_energy: ("energy", "energy-gradient"),
    edges_counted_twice: ("energy", "energy-gradient"),
    energy_without_maps: ("energy", "energy-gradient"),
    heat_too_hot: ("newheatdiff", "jacobian", "limit", "taylor", "squashing", "gcn", "sheaf"),
    one_product_too_few: ("cost", "gcn", "sheaf", "taylor"),
    far_nodes_forgotten: ("mpnn-uniform-approx", "limit", "cost"),
    spectral_without_degrees: ("spectral",),
    laplacian_of_the_other_kind: ("factorization",),
    reflections_too_short: ("householder", "factorization", "newheatdiff"),
    reflections_in_reverse: ("householder", "factorization"),
    never_reflected: ("factorization", "jacobian", "taylor"),
    skew_matrices_negated: ("factorization", "jacobian"),
    one_map_for_all: ("factorization", "newheatdiff", "consensus", "jacobian", "energy", "sheaf"),
    late_is_taken_for_never: ("newheatdiff",),
    degree_of_a_thousand_tolerances: ("cost",),
    universal_time_ignored: ("unifapp",),
    gradient_by_angles_reversed: ("jacobian",),
    phi_a_little_off: ("unifapp", "traditionalunivapprox", "squashing"),
    leaking_sensitivity: ("mpnn-jacobian", "mpnn-uniform-approx"),
    memory_grows_with_the_degree: ("cost",),
}


@pytest.mark.parametrize(
    ("mutation", "name"),
    [(mutation, name) for mutation, names in MUTATIONS.items() for name in names],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_claim_notices(mutation, name, monkeypatch):
    forget_graphs()  # and with them the heat kernels that earlier tests have formed
    mutation(monkeypatch)
    report = CLAIMS[name](**SETTINGS[name])
    assert report.verdict == "fails"
    forget_graphs()


def test_every_claim_has_a_mutation():
    assert set().union(*MUTATIONS.values()) == set(CLAIMS)
