"""Features of graphs from those of their nodes."""

import pytest
import torch

from bunn.nn.pooling import POOLINGS, pool

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("pooling", POOLINGS)
def test_graphs_of_more_nodes_than_16_bits_can_count(pooling, dtype, device):
    sizes = torch.tensor([700, 1, 44])
    batch = torch.arange(3).repeat_interleave(sizes)[torch.randperm(745)].to(device)
    x = torch.rand(745, 4, device=device).to(dtype)
    parts = [x.double()[batch == graph] for graph in range(3)]
    expected = {
        "mean": [part.mean(0) for part in parts],
        "sum": [part.sum(0) for part in parts],
        "max": [part.amax(0) for part in parts],
    }[pooling]
    found = pool(x, pooling, batch, 3)
    assert found.dtype == dtype
    slack = max(torch.finfo(dtype).eps, 1e-5)
    torch.testing.assert_close(found.double(), torch.stack(expected), rtol=slack, atol=0)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_without_a_batch_there_is_one_graph(pooling):
    x = torch.rand(9, 4)
    torch.testing.assert_close(
        pool(x, pooling, None, None), pool(x, pooling, torch.zeros(9, dtype=torch.long), 1)
    )
