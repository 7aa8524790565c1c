"""What all cores do gives what one would."""

import networkx as nx
import pytest
import torch
from torch_geometric.data import Batch, Data

from bunn import Laplacian
from bunn.cores import MANY, by_cores
from bunn.data.transforms import RandomWalkEncoding
from bunn.graph.spectrum import block_spectrum
from tests.graphs import edges_of


@pytest.mark.parametrize("counts", [(1,), (0, 3), (7, 1, 300), ()])
@pytest.mark.parametrize("cores", [1, 2, 5, None])
def test_portions_come_back_in_their_order(counts, cores, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    stacks = [(torch.randn(m, m + 2, m + 2), torch.randn(m)) for m in counts]

    def work(matrices, numbers):
        return matrices.sum((1, 2)) * numbers, matrices @ matrices

    before = torch.get_num_threads()
    torch.set_num_threads(3)  # more than a core has, or the suite
    try:
        found = by_cores(work, stacks)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert len(found) == len(stacks)
    for mine, stack in zip(found, stacks, strict=True):
        for part, expected in zip(mine, work(*stack), strict=True):
            torch.testing.assert_close(part, expected)


def test_errors_come_through():
    def work(matrices):
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        by_cores(work, [(torch.randn(4, 2, 2),)])


@pytest.fixture(scope="module")
def batch():
    """Components of seven sizes, more than one core takes."""
    graphs = []
    for index in range(MANY + 20):
        edge_index, n = edges_of(nx.gnp_random_graph(4 + index % 7, 0.7, seed=index))
        graphs.append(Data(edge_index=edge_index, num_nodes=n, x=torch.ones(n, 1).double()))
    return Batch.from_data_list(graphs)


@pytest.mark.parametrize("lot", [1, 5000, 2**26])
def test_eigenvectors_of_many_components(lot, batch, monkeypatch):
    """One size at a time, some, and all."""
    lap = Laplacian(batch.edge_index, num_nodes=batch.num_nodes).to(torch.float64)
    assert lap.num_components >= MANY
    monkeypatch.setattr("bunn.graph.spectrum.LOT", lot)
    values, vectors = block_spectrum(lap)
    assert [tuple(value.shape) for value in values] == list(lap.blocks.shapes)
    s = lap.blocks.dense(*lap.coordinates())
    for value, vector, block in zip(values, vectors, s, strict=True):
        identity = torch.eye(block.size(1), dtype=torch.float64)
        found = vector @ value.diag_embed() @ vector.mT
        torch.testing.assert_close(found, identity - block, rtol=0, atol=1e-12)
        orthogonal = vector.mT @ vector
        torch.testing.assert_close(orthogonal, identity.expand_as(orthogonal), rtol=0, atol=1e-12)


def test_walks_in_many_components(batch):
    found = RandomWalkEncoding(9)(batch.clone()).rwse
    alone = [RandomWalkEncoding(9)(data).rwse for data in batch.to_data_list()]
    torch.testing.assert_close(found, torch.cat(alone), rtol=0, atol=1e-12)
