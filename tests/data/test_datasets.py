"""The contract of every dataset in the registry, and the registry itself."""

import dataclasses
import os
import pickle
import socket
import sys
from pathlib import Path

import pytest
import torch
from torch_geometric.utils import contains_self_loops, is_undirected

from bunn.data import (
    DATASETS,
    DatasetSpec,
    GraphCollection,
    GraphDataset,
    MissingDataError,
    NoOptions,
    Task,
    data_root,
    load_dataset,
)
from bunn.data.root import cache_root
from tests.data.raw_files import real_root, write, write_dataset

GENERATED = [name for name, spec in DATASETS.items() if spec.source == "generated"]
READ = [name for name in DATASETS if name not in GENERATED]
PARTS = ("train", "val", "test")
HERE = [
    *("minesweeper", "tolokers", "actor", "cornell", "texas", "wisconsin"),
    *("chameleon-filtered", "squirrel-filtered", "cora", "citeseer"),
]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BUNN_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def calls_home(monkeypatch):
    calls = []

    def refuse(self, address):
        calls.append(address)
        raise OSError("no net")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *a, **k: refuse(None, a))
    return calls


def small(name: str, root: Path) -> GraphDataset:
    if name in READ:
        write_dataset(root, name)
    return load_dataset(name, root)


def test_the_registry_has_the_tasks_of_the_paper():
    assert {"barbell", "clique", "tree-neighborsmatch", "minesweeper-board"} == set(GENERATED)
    assert set(HERE) < set(READ)
    assert {"roman-empire", "amazon-ratings", "questions", "pubmed"} < set(READ)
    assert {"peptides-func", "peptides-struct", "pascalvoc-sp"} < set(READ)


@pytest.mark.parametrize("name", DATASETS)
def test_a_spec_is_complete(name):
    spec = DATASETS[name]
    assert spec.name == name
    assert spec.size
    assert spec.licence
    assert spec.source.startswith("https://") or spec.source == "generated"
    assert bool(spec.files) == (name in READ)
    assert (spec.download is not None) == bool(spec.files)
    assert all(not Path(file).is_absolute() for file in spec.files)
    assert spec.reported_part == ("train" if name == "tree-neighborsmatch" else "test")
    options = spec.options()
    assert dataclasses.is_dataclass(options)
    assert spec.options.__dataclass_params__.frozen


@pytest.mark.parametrize("name", DATASETS)
def test_options_are_validated(name):
    wrong = {"int": [0, -1, 1.5, "3", True], "float": [0.0, 1.0, -0.1, float("nan"), "half"]}
    for field in dataclasses.fields(DATASETS[name].options):
        for value in wrong.get(field.type, ["nonsense"]):
            with pytest.raises((ValueError, TypeError), match=rf"^{field.name}=.*;.*;"):
                DATASETS[name].options(**{field.name: value})


@pytest.mark.parametrize("name", READ)
def test_missing_files_are_named_and_never_fetched(name, tmp_path, calls_home):
    spec = DATASETS[name]
    assert not spec.is_present(tmp_path)
    with pytest.raises(MissingDataError) as caught:
        load_dataset(name, tmp_path)
    for file in spec.files:
        assert str(tmp_path / file) in str(caught.value)
    assert spec.source in str(caught.value)
    assert f"load_dataset({name!r}, download=True)" in str(caught.value)
    assert isinstance(caught.value, FileNotFoundError)
    assert not calls_home
    assert not list(tmp_path.rglob("*.*"))


@pytest.mark.parametrize("name", [name for name in READ if len(DATASETS[name].files) > 1])
def test_one_missing_file_of_several_is_enough(name, tmp_path, calls_home):
    write_dataset(tmp_path, name)
    spec = DATASETS[name]
    assert spec.is_present(tmp_path)
    gone = tmp_path / spec.files[-1]
    gone.unlink()
    assert spec.missing(tmp_path) == [gone]
    with pytest.raises(MissingDataError, match=gone.name):
        load_dataset(name, tmp_path)
    assert not calls_home


@pytest.mark.parametrize("name", DATASETS)
def test_a_dataset_is_what_its_task_says(name, tmp_path):
    dataset = small(name, tmp_path)
    spec, task = DATASETS[name], dataset.task
    assert dataset.name == name
    assert task == spec.task
    split = dataset.split(0)
    for part in PARTS:
        graphs = getattr(split, part)
        assert isinstance(graphs, GraphCollection)
        data = graphs[0]
        n = data.num_nodes
        assert data.x.shape == (n, dataset.in_channels)
        assert data.x.is_floating_point() == (dataset.encoder is None)
        assert data.edge_index.dtype == torch.long
        assert is_undirected(data.edge_index, num_nodes=n)
        assert data.edge_index.unique(dim=1).size(1) == data.num_edges
        assert not contains_self_loops(data.edge_index)
        rows = 1 if task.level == "graph" else n
        if task.kind == "multiclass":
            assert data.y.shape == (rows,)
            assert data.y.dtype == torch.long
            assert 0 <= data.y.min() <= data.y.max() < dataset.out_channels
        else:
            assert data.y.shape == ((rows,) if task.kind == "binary" else (rows, data.y.size(-1)))
            assert data.y.dtype == torch.float32
            assert dataset.out_channels == (1 if task.kind == "binary" else data.y.size(-1))
        if dataset.encoder is not None:
            assert dataset.encoder(6)(data.x).shape == (n, 6)


@pytest.mark.parametrize("name", DATASETS)
def test_parts_do_not_overlap_in_any_split(name, tmp_path):
    dataset = small(name, tmp_path)
    for index in range(dataset.num_splits or 2):
        split = dataset.split(index)
        if split.train is split.test:
            assert split.train is split.val
            assert len(split.train) == 1
            data = split.train[0]
            masks = torch.stack([data[f"{part}_mask"] for part in PARTS])
            assert masks.dtype == torch.bool
            assert masks.shape == (3, data.num_nodes)
            assert masks.any(1).all()
            assert masks.sum(0).max() == 1
        else:
            assert len({id(split.train), id(split.val), id(split.test)}) == 3


@pytest.mark.parametrize("name", DATASETS)
def test_splits_out_of_range_are_refused(name, tmp_path):
    dataset = small(name, tmp_path)
    wrong = [-1] if dataset.num_splits is None else [-1, dataset.num_splits]
    for index in wrong:
        with pytest.raises(ValueError, match=rf"index={index}; {name} has no such split"):
            dataset.split(index)


@pytest.mark.parametrize("name", DATASETS)
def test_loading_twice_gives_the_same(name, tmp_path):
    first, second = small(name, tmp_path), load_dataset(name, tmp_path)
    for part in PARTS:
        a, b = getattr(first.split(0), part), getattr(second.split(0), part)
        assert len(a) == len(b)
        for i in (0, len(a) - 1):
            assert a[i].to_dict().keys() == b[i].to_dict().keys()
            assert all(torch.equal(a[i][key], b[i][key]) for key in a[i].to_dict())


@pytest.mark.parametrize("name", GENERATED)
def test_a_seed_decides_a_generated_split(name):
    dataset = pickle.loads(pickle.dumps(load_dataset(name)))
    x = [dataset.split(index).train[0].x for index in (0, 0, 1)]
    y = [dataset.split(index).train[0].y for index in (0, 0, 1)]
    assert torch.equal(x[0], x[1])
    assert torch.equal(y[0], y[1])
    assert not torch.equal(x[0], x[2])
    state = torch.random.get_rng_state()
    dataset.split(3)
    assert torch.equal(state, torch.random.get_rng_state())


@pytest.mark.parametrize("name", GENERATED)
def test_splits_of_a_generated_dataset_share_their_edges(name):
    dataset = load_dataset(name)
    first, second = dataset.split(0), dataset.split(1)
    edges = first.train[0].edge_index
    graphs = (first.train[-1], first.test[0], second.train[0], second.val[-1])
    assert all(data.edge_index is edges for data in graphs)


@pytest.mark.parametrize("name", HERE)
def test_the_original_files_are_read(name):
    root = real_root(name)
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    dataset = load_dataset(name, root)
    data = dataset.split(0).train[0]
    nodes, edges = (int(part.split()[0].replace(",", "")) for part in dataset_size(name))
    assert data.num_nodes == nodes
    assert data.num_edges == 2 * edges
    assert is_undirected(data.edge_index)
    assert not contains_self_loops(data.edge_index)
    assert dataset.num_splits == (1 if name in {"cora", "citeseer"} else 10)
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before


def dataset_size(name):
    return DATASETS[name].size.split(", ")


def test_an_unknown_name_gets_the_nearest():
    with pytest.raises(ValueError, match=r"name='mineswepper'.*did you mean 'minesweeper'\?"):
        load_dataset("mineswepper")
    with pytest.raises(ValueError, match=r"did you mean 'roman-empire'\?"):
        load_dataset("Roman_Empire")


def test_foreign_options_are_refused():
    with pytest.raises(TypeError, match="ClusterOptions"):
        load_dataset("barbell", options=NoOptions())


def test_a_failed_download_says_why_and_where(tmp_path, calls_home):
    for name in ("texas", "minesweeper"):
        with pytest.raises(MissingDataError, match="the download failed") as caught:
            load_dataset(name, tmp_path / "new", download=True)
        assert str(tmp_path / "new" / DATASETS[name].files[0]) in str(caught.value)
        assert not list((tmp_path / "new").iterdir())
    assert calls_home


def test_a_download_brings_the_files_to_their_places(tmp_path, monkeypatch):
    def download(folder):
        write_dataset(folder, "texas")
        write(folder / "heterophilous-small" / "processed.pt", b"not asked for")

    spec = dataclasses.replace(DATASETS["texas"], download=download)
    monkeypatch.setitem(DATASETS, "texas", spec)
    assert load_dataset("texas", tmp_path / "new", download=True).out_channels == 3
    found = {path for path in (tmp_path / "new").rglob("*") if path.is_file()}
    assert found == {tmp_path / "new" / spec.files[0]}


def test_an_interrupted_download_leaves_nothing(tmp_path, monkeypatch):
    def download(folder):
        write(folder / DATASETS["texas"].files[0], b"half")
        raise KeyboardInterrupt

    spec = dataclasses.replace(DATASETS["texas"], download=download)
    monkeypatch.setitem(DATASETS, "texas", spec)
    with pytest.raises(KeyboardInterrupt):
        load_dataset("texas", tmp_path, download=True)
    assert not list(tmp_path.rglob("*.npz"))


def test_the_data_root(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("BUNN_DATA", "")
    assert data_root() == tmp_path / ".cache" / "bunn"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert data_root() == tmp_path / ".cache" / "bunn"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert data_root() == tmp_path / "xdg" / "bunn"
    monkeypatch.setenv("BUNN_DATA", "~/data")
    assert data_root() == tmp_path / "data"
    assert data_root(tmp_path / "given") == tmp_path / "given"
    assert data_root("given") == Path(os.getcwd()) / "given"
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.delenv("BUNN_DATA")
    assert data_root() == tmp_path / "Library" / "Caches" / "bunn"
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    assert data_root() == tmp_path / "local" / "bunn"
    assert cache_root() == tmp_path / "cache"


def test_a_root_that_is_a_file_is_refused(tmp_path, monkeypatch):
    write(tmp_path / "file", b"")
    with pytest.raises(ValueError, match=r"^root=.*; that is no folder;"):
        data_root(tmp_path / "file")
    monkeypatch.setenv("BUNN_DATA", str(tmp_path / "file"))
    with pytest.raises(ValueError, match=r"^\$BUNN_DATA="):
        data_root()


def test_tasks_and_specs_are_validated():
    for wrong in (("edge", "binary", "mae"), ("node", "ternary", "mae"), ("node", "binary", "f2")):
        with pytest.raises(ValueError, match=r"no such (level|kind|metric)"):
            Task(*wrong)
    spec = DATASETS["barbell"]
    with pytest.raises(ValueError, match=r"name='Bar bell'"):
        dataclasses.replace(spec, name="Bar bell")
    with pytest.raises(ValueError, match=r"reported_part='all'"):
        dataclasses.replace(spec, reported_part="all")
    assert isinstance(spec, DatasetSpec)
