"""At home in PyTorch Geometric: every place where a PyG user would put a layer or a model."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric.data import Batch, Data
from torch_geometric.explain import Explainer, GNNExplainer
from torch_geometric.loader import DataLoader
from torch_geometric.nn import Sequential, global_mean_pool, summary
from torch_geometric.nn.models.basic_gnn import BasicGNN
from torch_geometric.transforms import ToUndirected
from torch_geometric.utils import erdos_renyi_graph, to_undirected

from bunn import BuNN, BuNNConv, Laplacian
from tests.graphs import graphs


def random_data(n: int, seed: int, channels: int = 5) -> Data:
    torch.manual_seed(seed)
    edge_index = to_undirected(erdos_renyi_graph(n, 0.3))
    return Data(
        x=torch.randn(n, channels), edge_index=edge_index, num_nodes=n, y=torch.tensor([1.0])
    )


def test_sequential():
    model = Sequential(
        "x, edge_index, batch",
        [
            (BuNNConv(5, 16, num_bundles=2), "x, edge_index -> x"),
            torch.nn.GELU(),
            (BuNNConv(16, 8, num_bundles=4, time=10.0), "x, edge_index -> x"),
            (global_mean_pool, "x, batch -> x"),
            torch.nn.Linear(8, 1),
        ],
    )
    batch = Batch.from_data_list([random_data(6, 0), random_data(9, 1)])
    y = model(batch.x, batch.edge_index, batch.batch)
    assert y.shape == (2, 1)
    y.sum().backward()
    assert all(p.grad is not None for p in model.parameters())


class BasicBuNN(BasicGNN):
    supports_edge_weight = True
    supports_edge_attr = False
    supports_norm_batch = False

    def init_conv(self, in_channels, out_channels, **kwargs):
        return BuNNConv(in_channels, out_channels, **kwargs)


@pytest.mark.parametrize("jk", [None, "cat"])
def test_conv_of_a_basic_gnn(jk):
    model = BasicBuNN(5, 8, 3, 2, num_bundles=2, time=2.0, jk=jk, norm="layer_norm", dropout=0.1)
    data = random_data(12, 0)
    weight = torch.ones(data.edge_index.size(1))
    y = model(data.x, data.edge_index, edge_weight=weight)
    assert y.shape == (12, 2)
    y.sum().backward()
    assert "BuNNConv(5, 8" in repr(model.convs[0])
    model.reset_parameters()


@given(
    parts=st.lists(graphs(max_nodes=7), min_size=1, max_size=4),
    time=st.sampled_from([0.0, 1.0, 30.0, float("inf")]),
    learn=st.booleans(),
)
def test_a_batch_gives_what_its_graphs_give_one_by_one(parts, time, learn):
    learn = learn and 0 < time < float("inf")
    model = BuNN(3, 8, 2, 4, num_bundles=2, time=time, learn_time=learn, phi="sum").double()
    data = [
        Data(
            x=torch.randn(n, 3, dtype=torch.float64),
            edge_index=edge_index,
            weight=torch.ones(edge_index.size(1)).double() if weight is None else weight,
        )
        for edge_index, weight, n in parts
    ]
    (batch,) = DataLoader(data, batch_size=len(data))
    together = model(batch.x, batch.edge_index, batch.weight)
    alone = torch.cat([model(graph.x, graph.edge_index, graph.weight) for graph in data])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-10)


def test_data_loader_trains():
    data = [random_data(n, n) for n in range(4, 12)]
    model = BuNN(5, 8, 2, 1, num_bundles=2, pooling="mean")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(15):
        total = 0.0
        for batch in DataLoader(data, batch_size=3):
            optimizer.zero_grad()
            out = model(batch.x, batch.edge_index, batch=batch.batch)
            loss = (out.squeeze(1) - batch.y).square().mean()
            loss.backward()
            optimizer.step()
            total += loss.item()
        losses.append(total)
    assert losses[-1] < 0.2 * losses[0]


def test_undirected_data():
    directed = Data(x=torch.randn(3, 5), edge_index=torch.tensor([[0, 1], [1, 2]]))
    model = BuNN(5, 8, 1, 2)
    with pytest.raises(ValueError, match=r"use torch_geometric\.utils\.to_undirected"):
        model(directed.x, directed.edge_index)
    data = ToUndirected()(directed)
    assert model(data.x, data.edge_index).shape == (3, 2)


def test_explainer():
    data = random_data(12, 0)
    model = BuNN(5, 8, 2, 3, num_bundles=2).eval()
    explainer = Explainer(
        model,
        algorithm=GNNExplainer(epochs=5),
        explanation_type="model",
        node_mask_type="attributes",
        edge_mask_type=None,
        model_config={
            "mode": "multiclass_classification",
            "task_level": "node",
            "return_type": "raw",
        },
    )
    explanation = explainer(data.x, data.edge_index, index=4)
    assert explanation.node_mask.shape == data.x.shape
    assert explanation.node_mask.abs().sum() > 0


def test_summary():
    data = random_data(12, 0)
    table = summary(BuNN(5, 8, 2, 3, num_bundles=2), data.x, data.edge_index)
    assert "BuNN" in table
    conv = summary(BuNNConv(5, 8), data.x, data.edge_index)
    assert "[12, 8]" in conv


def test_state_dict_round_trip(tmp_path):
    data = random_data(12, 0)
    model = BuNN(5, 8, 2, 3, num_bundles=2, learn_time=True).eval()
    torch.save(model.state_dict(), tmp_path / "model.pt")
    other = BuNN(5, 8, 2, 3, num_bundles=2, learn_time=True).eval()
    other.load_state_dict(torch.load(tmp_path / "model.pt"))
    expected = model(data.x, data.edge_index)
    torch.testing.assert_close(other(data.x, data.edge_index), expected)
    torch.save(model, tmp_path / "whole.pt")
    whole = torch.load(tmp_path / "whole.pt", weights_only=False)
    torch.testing.assert_close(whole(data.x, data.edge_index), expected)


def test_a_laplacian_can_be_saved_and_reused(tmp_path):
    data = random_data(12, 0)
    lap = Laplacian(data.edge_index, num_nodes=12)
    torch.save(lap, tmp_path / "lap.pt")
    again = torch.load(tmp_path / "lap.pt", weights_only=False)
    model = BuNN(5, 8, 2, 3, num_bundles=2).eval()
    torch.testing.assert_close(model(data.x, again), model(data.x, data.edge_index))
