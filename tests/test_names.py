"""Names that were probably meant."""

import pytest

from bunn.names import did_you_mean


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("gnc", ", did you mean 'gcn'?"),
        ("GCN", ", did you mean 'gcn'?"),
        ("sages", ", did you mean 'SAGE'?"),
        ("x", ""),
        (3, ""),
    ],
)
def test_the_nearest_name(name, hint):
    assert did_you_mean(name, ["gat", "gcn", "SAGE"]) == hint
