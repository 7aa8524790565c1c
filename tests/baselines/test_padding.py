"""The nodes of a batch as a table."""

import torch

from bunn.baselines.padding import Padding, numbered


def test_padding_spreads_and_collects():
    padding = Padding.of(torch.tensor([2, 0, 0, 2, 2]))
    x = torch.randn(5, 3)
    table = padding.spread(x)
    assert torch.equal(padding.filled, torch.tensor([[1, 1, 0], [1, 0, 0], [1, 1, 1]]).bool())
    assert torch.equal(table[2], x[[0, 3, 4]])
    assert torch.equal(table[0], torch.stack((x[1], x[2], torch.zeros(3))))
    assert torch.equal(padding.collect(table), x)


def test_nodes_are_numbered_within_their_graphs():
    position, count = numbered(torch.tensor([2, 0, 0, 2, 2]))
    assert position.tolist() == [0, 0, 1, 1, 2]
    assert count.tolist() == [2, 0, 3]
