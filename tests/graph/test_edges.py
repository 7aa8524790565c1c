"""Every bad graph gets an error that names the argument, what was seen, and the fix."""

import re
import warnings

import pytest
import torch
from torch_geometric import EdgeIndex
from torch_geometric.utils import coalesce, to_undirected

from bunn import Laplacian

PATH = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])

BAD_GRAPHS = {
    "one row": (
        (torch.tensor([[0, 1, 2]]),),
        ValueError,
        "edge_index has shape (1, 3); it must be (2, num_edges)",
    ),
    "transposed": ((torch.zeros(5, 2).long(),), ValueError, "transpose it"),
    "three dimensions": (
        (torch.zeros(2, 3, 1).long(),),
        ValueError,
        "edge_index has shape (2, 3, 1)",
    ),
    "float indices": ((PATH.float(),), TypeError, "edge_index has dtype torch.float32"),
    "bool indices": ((PATH.bool(),), TypeError, "edge_index has dtype torch.bool"),
    "a list": (([[0, 1], [1, 0]],), TypeError, "edge_index is a list"),
    "out of range": (
        (PATH, None, 2),
        ValueError,
        "edge_index names node 2, but num_nodes=2 allows 0 to 1",
    ),
    "negative index": ((PATH - 1,), ValueError, "edge_index names node -1"),
    "directed": (
        (torch.tensor([[0, 1, 1, 4], [1, 0, 2, 7]]),),
        ValueError,
        "edge_index has 2 edges without their reverse (first: 1 -> 2); BuNN needs an undirected "
        "graph: use torch_geometric.utils.to_undirected",
    ),
    "zero nodes": ((torch.zeros(2, 0).long(), None, 0), ValueError, "num_nodes is 0"),
    "unknown size": ((torch.zeros(2, 0).long(),), ValueError, "pass num_nodes"),
    "negative weight": (
        (PATH, torch.tensor([1.0, 1.0, -2.0, -2.0])),
        ValueError,
        "edge_weight has 2 negative, NaN or infinite values (first: -2.0 at edge 2)",
    ),
    "NaN weight": (
        (PATH, torch.tensor([1.0, 1.0, 1.0, float("nan")])),
        ValueError,
        "first: nan at",
    ),
    "infinite weight": (
        (PATH, torch.tensor([float("inf")] * 4)),
        ValueError,
        "first: inf at edge 0",
    ),
    "asymmetric weights": (
        (PATH, torch.tensor([1.0, 2.0, 1.0, 1.0])),
        ValueError,
        "edge_weight is not symmetric: 0 -> 1 weighs 1.0, 1 -> 0 weighs 2.0",
    ),
    "a list of weights": ((PATH, [1.0] * 4), TypeError, "edge_weight is a list"),
    "half a node": ((PATH, None, 2.5), TypeError, "num_nodes=2.5; it must be an integer"),
    "too few weights": ((PATH, torch.ones(3)), ValueError, "edge_weight has shape (3,)"),
    "weight columns": ((PATH, torch.ones(4, 1)), ValueError, "edge_weight has shape (4, 1)"),
    "integer weights": (
        (PATH, torch.ones(4).long()),
        TypeError,
        "edge_weight has dtype torch.int64",
    ),
    "learned weights": (
        (PATH, torch.ones(4, requires_grad=True)),
        ValueError,
        "edge_weight requires a gradient",
    ),
    "not square": ((torch.ones(2, 3).to_sparse_coo(),), ValueError, "it must be square"),
    "two weights": (
        (torch.ones(2, 2).to_sparse_coo(), torch.ones(4)),
        ValueError,
        "pass one of the two",
    ),
    "two sizes": (
        (torch.ones(2, 2).to_sparse_coo(), None, 3),
        ValueError,
        "num_nodes=3, but edge_index is a sparse matrix of 2 rows",
    ),
}


@pytest.mark.parametrize("case", BAD_GRAPHS)
def test_bad_graph(case):
    arguments, error, message = BAD_GRAPHS[case]
    with pytest.raises(error, match=re.escape(message)):
        Laplacian(*arguments)


def test_unknown_normalization():
    with pytest.raises(ValueError, match=r"normalization='nope' is unknown; use one of .*rw"):
        Laplacian(PATH, normalization="nope")


def test_mixed_devices():
    with pytest.raises(ValueError, match="edge_weight is on meta and edge_index on cpu"):
        Laplacian(PATH, torch.ones(4, device="meta"))


def test_duplicates_are_merged_as_pyg_merges_them():
    edge_index = torch.cat((PATH, PATH[:, :2]), dim=1)
    assert torch.equal(Laplacian(edge_index).edge_index, coalesce(edge_index))
    assert torch.equal(Laplacian(edge_index).degree, torch.tensor([1.0, 2.0, 1.0]))
    weighted = Laplacian(edge_index, torch.ones(6))
    _, expected = coalesce(edge_index, torch.ones(6), reduce="sum")
    assert torch.equal(weighted.edge_weight, expected)
    assert torch.equal(weighted.degree, torch.tensor([2.0, 3.0, 1.0]))


def test_self_loops_are_kept_as_given():
    edge_index = torch.cat((PATH, torch.tensor([[0], [0]])), dim=1)
    lap = Laplacian(edge_index)
    assert lap.degree.tolist() == [2.0, 2.0, 1.0]
    assert lap.dense()[0].tolist() == [0.5, -0.5, 0.0]


def test_edges_of_weight_zero_are_no_edges():
    lap = Laplacian(PATH, torch.tensor([1.0, 1.0, 0.0, 0.0]))
    assert lap.edge_index.tolist() == [[0, 1], [1, 0]]
    assert lap.components.tolist() == [0, 0, 1]


def test_order_of_edges_does_not_matter():
    order = torch.tensor([2, 0, 3, 1])
    weight = torch.tensor([0.5, 0.5, 3.0, 3.0])
    a, b = Laplacian(PATH, weight), Laplacian(PATH[:, order], weight[order])
    assert torch.equal(a.dense(), b.dense())


def test_weights_may_differ_by_rounding_and_become_exactly_symmetric():
    weight = torch.tensor([1.0, 1.0 + 1e-7, 0.1, 0.1])
    dense = Laplacian(PATH, weight, normalization="sym").to(torch.float64).dense()
    assert torch.equal(dense, dense.T)


@pytest.mark.parametrize("layout", ["coo", "csr", "csc"])
def test_sparse_tensors(layout):
    dense = torch.tensor([[0.0, 2.0, 0.0], [2.0, 1.0, 0.5], [0.0, 0.5, 0.0]])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch on the state of its sparse tensors
        sparse = getattr(dense, f"to_sparse_{layout}")()
    edge_index = dense.nonzero().T
    expected = Laplacian(edge_index, dense[edge_index[0], edge_index[1]])
    assert torch.equal(Laplacian(sparse).dense(), expected.dense())


def test_sparse_tensor_of_torch_sparse():
    torch_sparse = pytest.importorskip("torch_sparse")
    adjacency = torch_sparse.SparseTensor.from_edge_index(PATH, sparse_sizes=(3, 3))
    assert torch.equal(Laplacian(adjacency).dense(), Laplacian(PATH).dense())


def test_edge_index_of_pyg():
    edges = EdgeIndex(PATH, sparse_size=(3, 3), is_undirected=True, sort_order="row")
    assert torch.equal(Laplacian(edges).dense(), Laplacian(PATH).dense())
    assert torch.equal(Laplacian(PATH.int()).dense(), Laplacian(PATH).dense())


def test_to_undirected_is_the_fix():
    directed = torch.tensor([[0, 1, 4], [1, 2, 7]])
    assert Laplacian(to_undirected(directed)).num_nodes == 8
