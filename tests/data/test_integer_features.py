"""Encoders of integer features."""

import pytest
import torch

from bunn.data.encoders import ATOM_FEATURES, AtomEncoder, BondEncoder, CategoricalEncoder


def features(encoder: CategoricalEncoder, n: int) -> torch.Tensor:
    sizes = encoder.bounds.diff().tolist()
    return torch.stack([torch.randint(size, (n,)) for size in sizes], 1)


@pytest.mark.parametrize("n", [0, 1, 50])
@pytest.mark.parametrize("kind", [AtomEncoder, BondEncoder])
def test_all_columns_at_once_are_one_after_the_other(kind, n):
    encoder = kind(6).double()
    x, weight = features(encoder, n), torch.randn(n, 6, dtype=torch.float64)
    found = []
    for way in (encoder, encoder.at_once):
        y = way(x)
        grads = torch.autograd.grad((y * weight).sum(), list(encoder.parameters()))
        found.append((y, *grads))
    for one_by_one, at_once in zip(*found, strict=True):
        torch.testing.assert_close(at_once, one_by_one)


def test_it_differentiates_twice():
    encoder = CategoricalEncoder((3, 4), 2).double()
    x = features(encoder, 5)
    names = [name for name, _ in encoder.named_parameters()]

    def loss(*weights: torch.Tensor) -> torch.Tensor:
        y = torch.func.functional_call(encoder, dict(zip(names, weights, strict=True)), x)
        return y.square().sum()

    encoder.forward = encoder.at_once
    assert torch.autograd.gradgradcheck(loss, tuple(encoder.parameters()))


@pytest.mark.parametrize("value", [-1, ATOM_FEATURES[1]])
def test_a_value_that_has_no_embedding_is_not_that_of_another_column(value):
    encoder = AtomEncoder(4)
    x = features(encoder, 3)
    x[1, 1] = value
    for way in (encoder, encoder.at_once):
        with pytest.raises((IndexError, RuntimeError)):
            way(x)


@pytest.mark.gpu
def test_on_a_gpu():
    encoder = AtomEncoder(32)
    x = features(encoder, 4000)
    expected = encoder(x)
    expected.square().sum().backward()
    grads = [parameter.grad.clone() for parameter in encoder.parameters()]
    encoder.zero_grad()
    y = encoder.to("cuda")(x.to("cuda"))
    torch.testing.assert_close(y.cpu(), expected)
    y.square().sum().backward()
    for parameter, grad in zip(encoder.parameters(), grads, strict=True):
        torch.testing.assert_close(parameter.grad.cpu(), grad, rtol=1e-3, atol=1e-2)


def test_nothing_more_is_saved():
    assert list(BondEncoder(4).state_dict()) == [f"embeddings.{i}.weight" for i in range(3)]


def test_embeddings_start_as_those_of_ogb():
    """Glorot and Bengio: uniform, up to the root of six over what goes in and out."""
    encoder = AtomEncoder(256)
    for table, size in zip(encoder.embeddings, ATOM_FEATURES, strict=True):
        bound = (6 / (size + 256)) ** 0.5
        assert 0.9 * bound < float(table.weight.detach().abs().max()) <= bound
