"""The mathematics that the figures show, and that they can be drawn."""

import pytest
import torch
from matplotlib.figure import Figure
from torch import Tensor

from bunn import Laplacian
from bunn.theory import figures, reference, scenes
from bunn.theory.drawing import save


@pytest.fixture
def lap() -> Laplacian:
    return Laplacian(scenes.SQUARE.edge_index).to(torch.float64)


def close(actual: Tensor, expected: Tensor, atol: float = 1e-12) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=atol)


ACTIONS = [scenes.graph_action, scenes.flat_action, scenes.twisted_action]


@pytest.mark.parametrize("action", ACTIONS)
def test_average_and_limit_are_those_of_the_dense_laplacian(action):
    action = action()
    x = action.signal.flatten()
    close(action.average.flatten(), x - action.laplacian @ x)
    heat = torch.linalg.matrix_exp(-scenes.LATE * action.laplacian)
    close(action.limit.flatten(), heat @ x, atol=1e-10)
    close(action.laplacian @ action.limit.flatten(), torch.zeros_like(x))


@pytest.mark.parametrize(("action", "nullity"), list(zip(ACTIONS, (1, 2, 0), strict=True)))
def test_the_null_space_is_that_of_agreement(action, nullity):
    action = action()
    assert action.nullity == nullity
    assert action.energy(action.signal) > 1
    assert action.energy(action.limit) == pytest.approx(0, abs=1e-12)


def test_scalars_become_constant():
    limit = scenes.graph_action().limit
    close(limit, limit[:1].expand_as(limit))
    assert limit.abs().min() > 0.1


def test_the_flat_bundle_reaches_consensus_in_the_global_frame(lap):
    action, bundle = scenes.flat_action(), scenes.square_bundle()
    synced = bundle.sync(action.limit)
    mean = (lap.degree[:, None] * bundle.sync(action.signal)).sum(0) / lap.degree.sum()
    close(synced, mean.expand_as(synced))
    assert mean.norm() > 0.3
    assert torch.pdist(action.limit).min() > 0.1  # and yet no two nodes have the same features


def test_energy_is_that_of_the_bundle(lap):
    action = scenes.flat_action()
    energy = scenes.square_bundle().energy(action.signal, lap)
    assert action.energy(action.signal) == pytest.approx(float(energy), rel=1e-12)


def test_the_twisted_connection_loses_everything():
    action = scenes.twisted_action()
    close(action.limit, torch.zeros_like(action.limit))
    spectrum = torch.linalg.eigvals(action.laplacian)
    assert spectrum.real.min() > 0.05
    assert spectrum.imag.abs().max() < 1e-10


def test_only_the_twist_keeps_the_connection_from_being_flat(lap):
    flat = scenes.connection(0.0)
    close(reference.bundle_laplacian(scenes.SQUARE, flat), scenes.square_bundle().laplacian(lap)[0])
    assert scenes.turn(flat) == pytest.approx(0, abs=1e-10)
    assert scenes.turn(scenes.connection(scenes.TWIST)) == pytest.approx(120)
    twisted = scenes.connection(scenes.TWIST)
    changed = (twisted - flat).abs().amax((1, 2)) > 1e-12
    edges = scenes.SQUARE.edge_index.T.tolist()
    assert [edge for edge, moved in zip(edges, changed, strict=True) if moved] == [[0, 1], [1, 0]]
    back = [edges.index([v, u]) for u, v in edges]
    close(twisted[back], twisted.mT)


def test_transports_and_frames_are_orthogonal():
    identity = torch.eye(2, dtype=torch.float64)
    for maps in (
        scenes.square_bundle().matrices()[:, 0],
        scenes.connection(scenes.TWIST),
        scenes.message_diffusion_steps().frame,
    ):
        close(maps.mT @ maps, identity.expand_as(maps))


def test_the_steps_compose_to_the_layer():
    steps = scenes.message_diffusion_steps()
    conv = scenes.kite_layer()
    assert torch.equal(steps.late, conv(steps.features, scenes.KITE.edge_index))
    assert torch.equal(steps.output, steps.late.relu())


def test_each_step_is_its_equation():
    steps, conv = scenes.message_diffusion_steps(), scenes.kite_layer()
    n, frame = scenes.KITE.num_nodes, steps.frame
    weight = conv.get_parameter("network.weight")
    update = frame.mT @ weight @ frame @ steps.features.unsqueeze(-1)
    close(steps.updated, update.squeeze(-1))
    laplacian = torch.eye(n, dtype=torch.float64) - (
        scenes.KITE.adjacency / scenes.KITE.degree[:, None]
    )
    for time, field in zip(scenes.TIMES, (steps.early, steps.late), strict=True):
        kernel = torch.linalg.matrix_exp(-time * laplacian)
        heat = torch.einsum("vu,vki,ukj,uj->vi", kernel, frame, frame, steps.updated)
        close(field, heat, atol=1e-11)


def test_longer_diffusion_synchronises_more():
    steps = scenes.message_diffusion_steps()

    def spread(field: Tensor) -> float:
        synced = (steps.frame @ field.unsqueeze(-1)).squeeze(-1)
        return float(torch.pdist(synced).max())

    spreads = [spread(field) for field in (steps.updated, steps.early, steps.late)]
    assert spreads[0] > 1.2 * spreads[1] > 10 * spreads[2]


def test_every_arrow_fits_its_dial():
    fields = [field for action in ACTIONS[1:] for field in action()[1:]]
    fields += scenes.message_diffusion_steps()[1:]
    assert max(float(field.norm(dim=1).max()) for field in fields) <= 1 + 1e-12


@pytest.mark.parametrize("draw", [figures.laplacians_figure, figures.message_diffusion_figure])
def test_figures_are_drawn_the_same_each_time(draw, tmp_path):
    written = []
    for name in ("first.svg", "second.svg"):
        figure = draw()
        assert isinstance(figure, Figure)
        save(figure, str(tmp_path / name))
        written.append((tmp_path / name).read_bytes())
    assert len(written[0]) > 10_000
    assert written[0] == written[1]
