"""Training steps on Peptides-func: a BuNN, GCN, GatedGCN and GPS in one loop, PyG's GCN in its own.

Six layers and about 500,000 parameters each, batches of 200 graphs, forward, backward and AdamW,
interleaved; on a GPU twenty at a time, with steps that are captured where they can be. Ours are
batches of a packed dataset, gathered with all that is known of their graphs; PyG's come out of a
``DataLoader`` over a list of ``Data``, as people write it. *spectral* is heat from all
eigenvectors, as in the paper's table of times; what is computed once, eigenvectors and positional
encodings, is not in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from tempfile import TemporaryDirectory
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCN, global_mean_pool

from benchmarks.results import save
from benchmarks.timing import interleaved, medians, seconds
from bunn.data import GraphDataset, data_root, load_dataset
from bunn.data.encoders import AtomEncoder
from bunn.data.pack import PackedGraphs
from bunn.data.peptides import ORIGINALS, pack
from bunn.data.transforms import DiskCache
from bunn.experiments.lrgb import FUNC
from bunn.experiments.lrgb_runtime import MODELS, WIDTHS, config
from bunn.keeping import lasting
from bunn.training import Config, Encoding, Run
from bunn.training.device import Device
from bunn.training.drive import Driver
from bunn.training.encode import encode
from bunn.training.run import Step

REPEATS, BATCH = 7, 200
#: Seconds after which those who are many times slower than others are not run again.
PATIENCE = 30.0
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
#: Steps that are timed together: on a GPU they overlap.
STEPS = {"cpu": 1, "cuda": 20}


def our_step(
    experiment: Config, dataset: GraphDataset, cache: DiskCache
) -> tuple[Callable[[], None], int, Driver]:
    """Steps of our loop on the next batches, the number of parameters, and who takes them."""
    run = Run(experiment, dataset, 0, 0, Device(DEVICE, "32"), cache=cache)
    driver, batches = Driver([run]), _endless(run)
    driver.make_ready([run])
    run.model.train()

    def step() -> None:
        for _ in range(STEPS[DEVICE]):
            driver.answer([Step(next(batches))])
        _wait()

    return step, sum(parameter.numel() for parameter in run.model.parameters()), driver


def _endless(run: Run) -> Iterator[Any]:
    epoch = 0
    while True:
        yield from run.feed.training(epoch)
        epoch += 1


class PyGModel(nn.Module):
    """PyG's own GCN, between an encoder of atoms and a head of three layers."""

    def __init__(self, width: int, layers: int, outputs: int) -> None:
        super().__init__()
        self.encoder = AtomEncoder(width)
        self.gnn = GCN(width, width, layers, act="gelu", dropout=0.1)
        self.head = nn.Sequential(
            *(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width), nn.GELU()),
            nn.Linear(width, outputs),
        )

    def forward(self, data: Data) -> Tensor:
        x = self.gnn(self.encoder(data.x), data.edge_index)
        out: Tensor = self.head(global_mean_pool(x, data.batch))
        return out


def their_step(dataset: GraphDataset) -> tuple[Callable[[], None], int]:
    """Steps of the loop that people write."""
    graphs = [
        Data(x=data.x, edge_index=data.edge_index, edge_attr=data.edge_attr, y=data.y)
        for data in dataset.split(0).train
    ]
    loader = DataLoader(graphs, batch_size=BATCH, shuffle=True, drop_last=True)
    model = PyGModel(WIDTHS["gcn"], 6, dataset.out_channels).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = (batch for _ in iter(int, 1) for batch in loader)

    def step() -> None:
        for _ in range(STEPS[DEVICE]):
            batch = next(batches).to(DEVICE)
            optimizer.zero_grad()
            binary_cross_entropy_with_logits(model(batch), batch.y).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        _wait()

    return step, sum(parameter.numel() for parameter in model.parameters())


def _wait() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def once(dataset: GraphDataset, cache: DiskCache) -> dict[str, float]:
    """Seconds of what is done once: molecules to graphs, encodings, which go into an empty cache,
    and eigenvectors."""
    split = dataset.split(0)
    whole = cast(PackedGraphs, split.train).pack.union.whole("sym").lap
    steps: dict[str, Callable[[], object]] = {
        "random walks": lambda: encode(split, Encoding(rwse=20), cache),
        "eigenvectors": whole.block_spectrum,
    }
    if all((data_root() / original.file).is_file() for original in ORIGINALS[FUNC]):
        steps = {"molecules": lambda: pack(FUNC, data_root()), **steps}
    return {name: seconds(step) for name, step in steps.items()}


def main() -> None:
    measure("peptides")


def measure(name: str) -> None:
    """Writes ``results/<name>.json``."""
    torch.manual_seed(0)
    dataset = load_dataset(FUNC)
    experiments = {name: config(FUNC, name) for name in MODELS}
    spectral = experiments.pop("bunn")
    auto = replace(spectral, model=replace(spectral.model, method="auto"))
    experiments |= {"bunn": auto, "bunn, spectral": spectral}
    with TemporaryDirectory() as folder:
        cache = DiskCache(folder)
        before = once(dataset, cache)
        print({name: round(value, 1) for name, value in before.items()})
        built = {
            key: our_step(experiment, dataset, cache) for key, experiment in experiments.items()
        }
    steps = {name: step for name, (step, *_) in built.items()}
    steps["gcn, PyG"], theirs = their_step(dataset)
    parameters = {**{name: count for name, (_, count, _) in built.items()}, "gcn, PyG": theirs}
    with lasting():
        samples = interleaved(steps, REPEATS, warmup=3, patience=PATIENCE)
    samples = {key: [taken / STEPS[DEVICE] for taken in found] for key, found in samples.items()}
    median = medians(samples)
    rows = [
        {
            "model": key,
            "parameters": parameters[key],
            "captured": key in built and built[key][2].num_recordings > 0,
            "seconds": median[key],
            "over_gcn": median[key] / median["gcn"],
            "samples": samples[key],
        }
        for key in steps
    ]
    for key in steps:
        print(key, f"{1e3 * median[key]:.1f} ms", f"{median[key] / median['gcn']:.2f}")
    about = {"device": _device(), "batch_size": BATCH, "repeats": REPEATS}
    save(name, rows, once=before, steps=len(dataset.split(0).train) // BATCH + 1, **about)


def _device() -> str:
    return torch.cuda.get_device_name() if DEVICE == "cuda" else "cpu"


if __name__ == "__main__":
    main()
