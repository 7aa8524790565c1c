import importlib.util
import os
import warnings
from collections.abc import Iterator

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # of numpy and scipy, read when they are imported

import pytest
import torch
from hypothesis import HealthCheck, settings

from tests.commands import Warm

if not torch.cuda.is_available():  # kernels go through Triton's interpreter, from its import on
    os.environ["TRITON_INTERPRET"] = "1"

with warnings.catch_warnings():  # PyG scripts some of itself on import, which torch has deprecated
    warnings.simplefilter("ignore", DeprecationWarning)
    import torch_geometric.nn  # noqa: F401

settings.register_profile(
    "bunn", deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("ci", settings.get_profile("bunn"), derandomize=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "bunn"))

#: Tests of the search are left out where Optuna is not installed.
SEARCHES = ["experiments/test_spaces.py", "experiments/test_tuning.py", "test_tune.py"]
collect_ignore = [] if importlib.util.find_spec("optuna") else SEARCHES

#: Warnings of torch about its own internals; every other warning is an error.
TORCH_INTERNALS = (
    "ignore:.*torch.jit.*:DeprecationWarning",  # forward-mode derivatives
    "ignore:.*should not be instantiated.*:DeprecationWarning",  # compiling an autograd.Function
)
#: Kernels add up sums that nobody wrote, and nobody will read: what the interpreter finds there
#: may be anything.
INTERPRETER = ("ignore:(invalid value|overflow) encountered in (add|reduce):RuntimeWarning",)


def pytest_configure() -> None:
    torch.set_num_threads(1)  # the suite runs one process per core


@pytest.fixture(autouse=True)
def _same_numbers_every_time() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warm]:
    """Where commands are forked; they find neither the data nor the cache of the user."""
    cache, data = (str(tmp_path_factory.mktemp(name)) for name in ("cache", "data"))
    with Warm(BUNN_CACHE=cache, BUNN_DATA=data) as warm:
        yield warm


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for warning in (*TORCH_INTERNALS, *INTERPRETER):
            item.add_marker(pytest.mark.filterwarnings(warning))
        if getattr(getattr(item, "module", None), "DEVICE", "cpu") == "cuda":
            item.add_marker(pytest.mark.gpu)  # what else goes through Triton's interpreter
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
