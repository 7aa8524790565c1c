"""Names that were probably meant."""

import pytest

from bunn.names import did_you_mean


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("gnc", ", did you mean 'gcn'?"),
        ("GCN", ", did you mean 'gcn'?"),
        ("sages", ", did you mean 'SAGE'?"),
        ("layers", ", did you mean 'num_layers' or 'phi_layers'?"),
        ("x", ""),
        (3, ""),
    ],
)
def test_the_nearest_name(name, hint):
    names = ["gat", "gcn", "SAGE", "num_layers", "phi_layers", "num_bundles"]
    assert did_you_mean(name, names) == hint
