import pytest

from bunn.data import peptides


@pytest.fixture(autouse=True)
def _published_files(monkeypatch):
    """Small files of a test may be said to be the published ones, for as long as it takes."""
    monkeypatch.setattr(peptides, "ORIGINALS", dict(peptides.ORIGINALS))
