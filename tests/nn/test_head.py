"""The head of a model."""

import pytest
import torch
from torch import nn

from bunn import BuNN
from bunn.baselines import BASELINES
from bunn.nn.head import build_head


@pytest.mark.parametrize("num_layers", [1, 3])
def test_each_layer_drops_what_it_reads(num_layers):
    head = build_head(6, 2, num_layers, "gelu", 0.5)
    kinds = [type(part).__name__ for part in head]
    assert kinds == ["Dropout", "Linear", "GELU"] * (num_layers - 1) + ["Dropout", "Linear"]
    assert head(torch.randn(4, 6)).shape == (4, 2)
    x = torch.randn(4, 6)
    assert not torch.equal(head(x), head(x))
    head.eval()
    assert torch.equal(head(x), head(x))


def test_without_dropout_the_layers_have_the_places_that_they_had():
    head = build_head(6, 2, 2, "relu")
    assert [*head.state_dict()] == ["0.weight", "0.bias", "2.weight", "2.bias"]


def test_models_have_it():
    model = BuNN(3, 8, 2, 5, head_layers=2, head_dropout=0.2)
    assert [part.p for part in model.head if isinstance(part, nn.Dropout)] == [0.2, 0.2]
    gcn = BASELINES["gcn"]
    options = gcn.options(hidden_channels=8, head_layers=2, head_dropout=0.3, head_act="gelu")
    model = gcn.build(options, 3, 5)
    assert [part.p for part in model.head if isinstance(part, nn.Dropout)] == [0.3, 0.3]
    assert any(isinstance(part, nn.GELU) for part in model.head)
    with pytest.raises(ValueError, match="head_dropout=1; it must be a number >= 0 and < 1"):
        gcn.options(head_dropout=1)
    with pytest.raises(ValueError, match="head_act"):
        gcn.options(head_act="nothing")
