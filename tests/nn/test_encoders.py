"""Encoders of positional encodings, and the models that hold them."""

import pytest
import torch
from torch import nn

import bunn
from bunn.baselines import BASELINES
from bunn.nn import EigenvectorEncoder, PositionalEncoder, RandomWalkEncoder
from bunn.theory import graphs as shapes

GRAPH = shapes.random(10, seed=2)


def test_random_walks_are_normalised_and_mapped():
    encoder = RandomWalkEncoder(4, 6)
    pe = 3 + 2 * torch.randn(50, 4)
    standard = (pe - pe.mean(0)) / (pe.var(0, unbiased=False) + encoder.norm.eps).sqrt()
    torch.testing.assert_close(encoder(pe), standard @ encoder.lin.weight.T + encoder.lin.bias)


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_eigenpairs_are_a_set(layers):
    encoder = EigenvectorEncoder(3, 5, layers)
    vectors, values = torch.randn(8, 3), torch.rand(1, 3).expand(8, 3) + 0.1
    y = encoder(torch.cat((vectors, values), 1))
    assert y.shape == (8, 5)
    linears = [part for part in encoder.network if hasattr(part, "weight")]
    assert len(linears) == layers
    assert all(linear.out_channels == 10 for linear in linears[:-1])
    expected = torch.zeros(8, 5)
    for i in range(3):
        h = torch.stack((vectors[:, i], values[:, i]), 1)
        for linear in linears:
            h = (h @ linear.weight.T + linear.bias).relu()
        expected += h
    torch.testing.assert_close(y, expected)
    order = torch.tensor([2, 0, 1])
    torch.testing.assert_close(encoder(torch.cat((vectors[:, order], values[:, order]), 1)), y)


def test_eigenpairs_that_are_not_there_do_not_count():
    encoder = EigenvectorEncoder(3, 5)
    few = EigenvectorEncoder(1, 5)
    few.load_state_dict(encoder.state_dict())
    vectors, values = torch.randn(4, 1), torch.ones(4, 1)
    absent = torch.zeros(4, 2)
    padded = torch.cat((vectors, absent, values, absent), 1)
    torch.testing.assert_close(encoder(padded), few(torch.cat((vectors, values), 1)))
    assert torch.equal(encoder(torch.zeros(4, 6)), torch.zeros(4, 5))


def encoder_for(width):
    parts = [EigenvectorEncoder(2, 3), RandomWalkEncoder(5, 4)]
    return PositionalEncoder(nn.Linear(3, width - 7), parts)


def test_encodings_stand_beside_features():
    encoder = encoder_for(12).eval()
    x, pe = torch.randn(6, 3), torch.rand(6, 9)
    assert encoder.pe_channels == 9
    parts = (
        encoder.features(x),
        encoder.positions[0](pe[:, :4]),
        encoder.positions[1](pe[:, 4:]),
    )
    assert torch.equal(encoder(x, pe), torch.cat(parts, 1))
    for wrong in (None, pe[:, :8], pe.unsqueeze(0)):
        with pytest.raises(ValueError, match=r"pe is .*; the encoder reads \(num_nodes, 9\)"):
            encoder(x, wrong)


def test_a_bunn_hands_encodings_to_its_encoder_and_not_to_phi():
    model = bunn.BuNN(3, 12, 2, 4, num_bundles=2, encoder=encoder_for(12), pe_channels=9).eval()
    x, pe = torch.randn(10, 3), torch.rand(10, 9)
    y = model(x, GRAPH.edge_index, pe=pe)
    assert y.shape == (10, 4)
    assert all(block.conv.pe_channels == 0 for block in model.blocks)
    assert model.blocks[0].conv.phi.lin_in.in_channels == 12
    assert not torch.equal(y, model(x, GRAPH.edge_index, pe=pe + 1))
    with pytest.raises(ValueError, match="pe is None; the encoder reads"):
        model(x, GRAPH.edge_index)


def test_a_baseline_does_so_too():
    gcn = BASELINES["gcn"]
    encoder = encoder_for(12)
    model = gcn.build(gcn.options(12, 2), 3, 4, encoder=encoder, pe_channels=9).eval()
    assert model.pe_encoder is None
    x, pe = torch.randn(10, 3), torch.rand(10, 9)
    y = model(x, GRAPH.edge_index, pe=pe)
    assert not torch.equal(y, model(x, GRAPH.edge_index, pe=pe + 1))


def test_reset_parameters():
    encoder = encoder_for(12)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.fill_(9.0)
    encoder.reset_parameters()
    assert not any((parameter == 9.0).any() for parameter in encoder.parameters())


@pytest.mark.parametrize("norm", ["batch", "layer"])
def test_map_parameters_may_be_normalised(norm):
    """What the authors' runs on peptides do."""
    model = bunn.BuNN(3, 8, 2, 2, num_bundles=4, phi="sum", phi_norm=norm)
    lap = bunn.Laplacian(GRAPH.edge_index, num_nodes=10)
    phi, x = model.blocks[1].conv.phi, torch.randn(10, 8)
    raw = phi.network(x, lap)
    expected = nn.BatchNorm1d(4)(raw) if norm == "batch" else nn.LayerNorm(4)(raw)
    torch.testing.assert_close(phi(x, lap), expected)
    bundle = bunn.FlatBundle(expected.unsqueeze(-1), "o2")
    torch.testing.assert_close(model.blocks[1].conv.bundle(x, lap).matrices(), bundle.matrices())


def test_a_phi_of_ones_own_normalises_itself():
    with pytest.raises(ValueError, match="phi_norm='batch', but phi was passed"):
        bunn.BuNN(3, 8, 1, phi=nn.Linear, phi_norm="batch")


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("residual", [True, False])
def test_the_nonlinearity_may_follow_the_residual_connection(norm_first, residual):
    keywords = {"norm_first": norm_first, "residual": residual, "act": "tanh"}
    model = bunn.BuNN(3, 8, 1, 2, num_bundles=2, act_residual=True, **keywords)
    block, lap = model.blocks[0], bunn.Laplacian(GRAPH.edge_index, num_nodes=10)
    nn.init.uniform_(block.norm.weight)
    x = torch.randn(10, 8)
    h = block.conv(block.norm(x), lap, phi_x=x) if norm_first else block.norm(block.conv(x, lap))
    torch.testing.assert_close(block(x, lap), torch.tanh(x + h if residual else h))
