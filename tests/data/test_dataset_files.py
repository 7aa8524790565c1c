"""Reading raw files: values, the mirror for folders that must not change, and damage."""

import errno
import os
import pickle

import numpy as np
import pytest
import torch
from torch_geometric.datasets import HeterophilousGraphDataset

from bunn.data import DATASETS, load_dataset
from bunn.data import heterophilous as heterophilous_module
from bunn.data.heterophilous import read_npz
from tests.data.raw_files import write, write_dataset, write_npz

READ = [name for name, spec in DATASETS.items() if spec.files]
THROUGH_PYG = ["roman-empire", "cora", "pascalvoc-sp"]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BUNN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def root(tmp_path):
    return tmp_path / "root"


@pytest.fixture
def builds(monkeypatch):
    """How often PyG processed the heterophilous files."""
    calls = []
    process = HeterophilousGraphDataset.process
    monkeypatch.setattr(
        HeterophilousGraphDataset, "process", lambda self: (calls.append(self), process(self))
    )
    return calls


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", ["minesweeper", "roman-empire", "actor"])
def test_values_are_those_of_the_file(name, root):
    write_dataset(root, name)
    arrays = np.load(root / DATASETS[name].files[0])
    dataset = load_dataset(name, root)
    for index in (0, 9):
        data = dataset.split(index).train[0]
        assert torch.equal(data.x, torch.from_numpy(arrays["node_features"]))
        assert torch.equal(data.y, torch.from_numpy(arrays["node_labels"]).to(data.y.dtype))
        for part in ("train", "val", "test"):
            mask = torch.from_numpy(arrays[f"{part}_masks"][index])
            assert torch.equal(data[f"{part}_mask"], mask)
    pairs = {frozenset(edge) for edge in arrays["edges"].tolist()}
    assert {frozenset(edge) for edge in data.edge_index.T.tolist()} == pairs
    assert dataset.split(0).train[0].edge_index is dataset.split(1).train[0].edge_index


def test_our_reader_agrees_with_pyg(root):
    write_dataset(root, "roman-empire")
    ours = read_npz(root / DATASETS["roman-empire"].files[0])
    theirs = HeterophilousGraphDataset(str(root), "roman-empire")[0]
    assert ours.to_dict().keys() == theirs.to_dict().keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs.to_dict())


def test_planetoid_has_its_public_split(root):
    write_dataset(root, "cora")
    data = load_dataset("cora", root).split(0).train[0]
    sizes = [int(data[f"{part}_mask"].sum()) for part in ("train", "val", "test")]
    assert sizes == [6, 500, 4]
    assert data.edge_index.size(1) == 2 * 514
    assert torch.equal(data.y, torch.arange(514) % 3)


def test_pascal_keeps_its_parts(root):
    write_dataset(root, "pascalvoc-sp")
    dataset = load_dataset("pascalvoc-sp", root)
    split = dataset.split(0)
    assert [len(split.train), len(split.val), len(split.test)] == [2, 3, 4]
    assert (dataset.in_channels, dataset.out_channels, dataset.edge_channels) == (14, 21, 2)
    batch = split.test.collate(torch.tensor([3, 0]))
    assert batch.batch_size == 2
    assert torch.equal(batch.batch, torch.tensor([0] * 6 + [1] * 3))
    assert batch.y.shape == (9,)


@pytest.mark.parametrize("name", READ)
def test_the_data_root_is_only_read(name, root):
    write_dataset(root, name)
    before = contents(root)
    load_dataset(name, root)
    assert contents(root) == before


def test_work_is_done_once(root, builds):
    write_dataset(root, "minesweeper")
    load_dataset("minesweeper", root)
    load_dataset("minesweeper", root)
    assert len(builds) == 1


def test_changed_files_are_read_anew(root, builds):
    write_dataset(root, "minesweeper")
    load_dataset("minesweeper", root)
    file = root / DATASETS["minesweeper"].files[0]
    write_npz(file, num_nodes=50, classes=2)
    assert load_dataset("minesweeper", root).split(0).train[0].num_nodes == 50
    status = file.stat()
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    load_dataset("minesweeper", root)
    assert len(builds) == 3


def flip(content):
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 0xFF]) + content[middle + 1 :]


DAMAGE = {
    "empty": lambda content: b"",
    "half": lambda content: content[: len(content) // 2],
    "no end": lambda content: content[:-10],
    "one byte": flip,
    "foreign": lambda content: pickle.dumps("something else"),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", THROUGH_PYG)
def test_a_damaged_cache_is_rebuilt(name, damage, root, cache):
    write_dataset(root, name)
    good = load_dataset(name, root).split(0).test[0]
    kept = contents(cache)
    assert kept
    for path, content in kept.items():
        path.write_bytes(DAMAGE[damage](content))
    again = load_dataset(name, root).split(0).test[0]
    assert all(torch.equal(good[key], again[key]) for key in good.to_dict())
    assert all(path.stat().st_size == len(content) for path, content in kept.items())
    assert {path.suffix for path in contents(cache)} == {".pt"}


def test_a_sound_file_with_foreign_content_is_rebuilt(root, cache, builds):
    write_dataset(root, "minesweeper")
    load_dataset("minesweeper", root)
    (path,) = contents(cache)
    torch.save({"weights": torch.ones(3)}, path)
    assert load_dataset("minesweeper", root).in_channels == 5
    assert len(builds) == 2


def test_two_processes_at_once(root, cache, monkeypatch):
    """The other one starts and ends while this one is at work."""
    write_dataset(root, "minesweeper")
    build, others = heterophilous_module._build, []

    def build_beside_another(name, folder):
        if not others:
            others.append(None)
            others.append(load_dataset(name, root))
        return build(name, folder)

    monkeypatch.setattr(heterophilous_module, "_build", build_beside_another)
    ours, other = load_dataset("minesweeper", root), others[1]
    assert torch.equal(ours.split(0).train[0].x, other.split(0).train[0].x)
    assert [path.name for path in contents(cache)] == ["data.pt"]
    assert not list(cache.rglob("building-*"))


def test_no_place_for_a_cache_is_no_error(root, tmp_path, monkeypatch, builds):
    write_dataset(root, "minesweeper")
    write(tmp_path / "file", b"")
    monkeypatch.setenv("BUNN_CACHE", str(tmp_path / "file" / "below"))
    for _ in range(2):
        assert load_dataset("minesweeper", root).in_channels == 5
    assert len(builds) == 2


def noticed(name, damage):
    """Pickles have no checksums."""
    return damage != "one byte" or DATASETS[name].files[0].endswith(".npz")


@pytest.mark.parametrize(
    ("name", "damage"),
    [(name, damage) for name in READ for damage in DAMAGE if noticed(name, damage)],
)
def test_a_damaged_original_is_named(name, damage, root, cache):
    write_dataset(root, name)
    file = root / DATASETS[name].files[0]
    file.write_bytes(DAMAGE[damage](file.read_bytes()))
    with pytest.raises(ValueError, match="damaged") as caught:
        load_dataset(name, root)
    assert str(file) in str(caught.value)
    assert "get anew" in str(caught.value)
    assert not contents(cache)


def test_arrays_that_do_not_fit_are_named(root):
    file = root / DATASETS["texas"].files[0]
    write_npz(file, node_labels=np.zeros(7, dtype=np.int64))
    with pytest.raises(ValueError, match=r"texas\.npz; cannot be read .*not for the 30 nodes"):
        load_dataset("texas", root)


def test_a_full_disk_is_not_blamed_on_the_file(root, monkeypatch):
    write_dataset(root, "minesweeper")

    def full(name, folder):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(heterophilous_module, "_build", full)
    with pytest.raises(OSError, match="No space left"):
        load_dataset("minesweeper", root)
