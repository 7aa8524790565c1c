"""The pictures of the experiments."""

import math

import pytest
import torch

from bunn.experiments.pictures import CLUSTERS, bundle_figure
from bunn.experiments.plots import depth_figure, strokes_for
from bunn.theory.drawing import save
from tests.experiments.samples import sample, trees


def result(dataset: str, layers: int):
    angles = torch.linspace(-4, 4, 20).expand(layers, 20).tolist()
    bundle = {"angles": angles, "cluster": [0] * 10 + [1] * 10, "x": list(range(-10, 10))}
    return sample(dataset=dataset, extra={"bundle": bundle})


def test_a_hand_for_every_node_and_an_angle_for_every_layer(tmp_path):
    figure = bundle_figure([result("barbell", 3), result("clique", 1)])
    hands, angles = figure.axes[0], figure.axes[1]
    assert len(figure.axes) == 4
    quiver = hands.collections[-1]
    assert len(quiver.U) == 20
    assert torch.tensor(quiver.U**2 + quiver.V**2).allclose(torch.ones(20, dtype=torch.float64))
    drawn = [points for points in angles.collections if len(points.get_offsets()) == 20]
    assert len(drawn) == 3
    degrees = torch.as_tensor(drawn[0].get_offsets()[:, 1].data)
    assert degrees.abs().max() <= 180
    assert len({tuple(colour) for colour in drawn[0].get_facecolors()}) == len(CLUSTERS)
    save(figure, tmp_path / "bundle.png")
    assert (tmp_path / "bundle.png").stat().st_size > 10_000


@pytest.mark.parametrize("dataset", ["barbell", "clique"])
def test_nodes_do_not_lie_on_each_other(dataset):
    figure = bundle_figure([result(dataset, 1)])
    points = torch.as_tensor(figure.axes[0].collections[1].get_offsets().data)
    distance = torch.cdist(points, points) + torch.eye(20)
    assert distance.min() > 0.2


def test_a_line_is_open_where_nothing_was_measured():
    results = [*trees("gcn", {5: 0.2, 2: 1.0, 3: 0.9}), *trees("bunn", {2: 1.0})]
    strokes = strokes_for(["ggnn", "gat", "gin", "gcn", "bunn"])
    (ax,) = depth_figure(results, strokes, named=True).axes
    lines = {line.get_label(): line for line in ax.lines}
    assert list(lines["GCN"].get_xdata()) == [2, 3, 4, 5]
    assert list(lines["GCN"].get_ydata()) == pytest.approx([1.0, 0.9, math.nan, 0.2], nan_ok=True)
    assert list(lines["BuNN"].get_ydata()) == [1.0]
