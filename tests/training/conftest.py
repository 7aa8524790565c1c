import pytest


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Encodings are kept in a folder of the test, never in that of the user."""
    monkeypatch.setenv("BUNN_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
