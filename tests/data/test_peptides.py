"""Peptides from the original files: values, the packed file, and what may be wrong with either."""

import gzip
import hashlib
import importlib.util
import os
import pickle
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch_geometric.utils import is_undirected

from bunn.data import DATASETS, MissingDataError, load_dataset, peptides, smiles
from bunn.data.encoders import ATOM_FEATURES, BOND_FEATURES
from bunn.data.peptides import PeptidesOptions, read_splits
from bunn.data.smiles import MissingPackageError
from bunn.data.transforms import DamagedCacheWarning, UnwritableCacheWarning
from tests.data.raw_files import SMILES, real_root, write, write_peptides

pytestmark = pytest.mark.skipif(importlib.util.find_spec("ogb") is None, reason="needs bunn[chem]")
NAMES = ["peptides-func", "peptides-struct"]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BUNN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def root(tmp_path):
    return tmp_path / "root"


def graphs_of(dataset):
    """All graphs, in the order of the table."""
    split = dataset.split(0)
    parts = (split.train, split.val, split.test)
    members = torch.cat([part.members for part in parts]).tolist()
    listed = [data for part in parts for data in part]
    return [listed[members.index(row)] for row in range(len(listed))]


@pytest.mark.parametrize("name", NAMES)
def test_molecules_are_as_ogb_reads_them(name, root):
    from ogb.utils import smiles2graph  # noqa: PLC0415

    write_peptides(root, name)
    dataset = load_dataset(name, root)
    assert dataset.in_channels == len(ATOM_FEATURES)
    assert dataset.edge_channels == len(BOND_FEATURES)
    assert dataset.out_channels == (10 if name == "peptides-func" else 11)
    for text, data in zip(SMILES, graphs_of(dataset), strict=True):
        graph = smiles2graph(text)
        assert data.num_nodes == graph["num_nodes"]
        assert torch.equal(data.x, torch.from_numpy(graph["node_feat"]))
        assert torch.equal(data.edge_index, torch.from_numpy(graph["edge_index"]))
        assert torch.equal(data.edge_attr, torch.from_numpy(graph["edge_feat"]))
        assert is_undirected(data.edge_index, data.edge_attr, data.num_nodes)
        assert dataset.encoder(6)(data.x).shape == (data.num_nodes, 6)
        assert dataset.edge_encoder(6)(data.edge_attr).shape == (data.num_edges, 6)


@pytest.mark.parametrize("name", NAMES)
def test_parts_and_targets_are_those_of_the_files(name, root):
    write_peptides(root, name)
    table, splits = (root / file for file in DATASETS[name].files)
    dataset = load_dataset(name, root)
    parts = pickle.loads(splits.read_bytes())
    for part in ("train", "val", "test"):
        assert getattr(dataset.split(0), part).members.tolist() == parts[part].tolist()
    y = torch.cat([data.y for data in graphs_of(dataset)])
    random = np.random.default_rng(0)
    if name == "peptides-func":
        assert torch.equal(y, torch.from_numpy(random.integers(0, 2, (9, 10))).float())
    else:
        values = torch.from_numpy(random.standard_normal((9, 11)))
        torch.testing.assert_close(y, ((values - values.mean(0)) / values.std(0)).float())
    assert table.is_file()


@pytest.mark.parametrize("portion", [4, 100])
@pytest.mark.parametrize("blank", ["", "C\u2028C"])
def test_no_molecule_is_lost_or_made_up(blank, portion, monkeypatch):
    """Others would have its labels."""
    monkeypatch.setattr(smiles, "PORTION", portion)
    with pytest.raises(ValueError, match=r"is (no molecule|a molecule without atoms)"):
        smiles.featurise([*SMILES[:3], blank, *SMILES[3:]])


def test_many_molecules_take_many_processes(monkeypatch):
    started = []
    run = subprocess.run
    monkeypatch.setattr(
        smiles.subprocess, "run", lambda *a, **k: (started.append(a), run(*a, **k))[1]
    )
    alone = smiles.featurise(SMILES)
    assert not started
    monkeypatch.setattr(smiles, "PORTION", 4)
    done = []
    together = smiles.featurise(SMILES, done.append)
    assert len(started) == 3
    assert done == [4, 4, 1]
    assert alone.keys() == together.keys()
    for name, array in alone.items():
        assert array.dtype == together[name].dtype
        assert np.array_equal(array, together[name])
    with pytest.raises(ValueError, match="'C1CC' is no molecule"):
        smiles.featurise([*SMILES[:6], "C1CC"])


def test_work_is_done_once(root, monkeypatch):
    write_peptides(root, "peptides-func")
    first = load_dataset("peptides-func", root)
    monkeypatch.setattr(peptides, "featurise", None)
    again = load_dataset("peptides-func", root)
    for ours, theirs in zip(graphs_of(first), graphs_of(again), strict=True):
        assert all(torch.equal(ours[key], theirs[key]) for key in ("x", "edge_index", "y"))


@pytest.mark.parametrize("name", NAMES)
def test_the_packed_file_stands_for_the_original_ones(name, root, cache, tmp_path, monkeypatch):
    """On a machine without them, and without rdkit."""
    write_peptides(root, name)
    first = load_dataset(name, root)
    there = tmp_path / "there"
    assert not DATASETS[name].is_present(there)
    (there / "peptides").mkdir(parents=True)
    shutil.copy(cache / "peptides" / f"{name}.npz", there / DATASETS[name].packed)
    assert DATASETS[name].is_present(there)
    for package in smiles.PACKAGES:
        monkeypatch.setitem(sys.modules, package, None)
    again = load_dataset(name, there)
    for ours, theirs in zip(graphs_of(first), graphs_of(again), strict=True):
        assert all(torch.equal(ours[key], theirs[key]) for key in ("x", "edge_index", "y"))


def test_it_is_not_taken_for_the_published_files_if_made_of_others(root, cache, tmp_path):
    write_peptides(root, "peptides-func")
    load_dataset("peptides-func", root)
    packed = tmp_path / "there" / DATASETS["peptides-func"].packed
    packed.parent.mkdir(parents=True)
    shutil.copy(cache / "peptides" / "peptides-func.npz", packed)
    table, splits = peptides.ORIGINALS["peptides-func"]
    peptides.ORIGINALS["peptides-func"] = (replace(table, md5="0" * 32), splits)
    with pytest.raises(ValueError, match="not made of the published files") as caught:
        load_dataset("peptides-func", tmp_path / "there")
    assert str(packed) in str(caught.value)
    assert "copy it anew, or delete it" in str(caught.value)
    load_dataset("peptides-func", tmp_path / "there", PeptidesOptions(verify=False))


def flip(content, place):
    return content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :]


DAMAGE = {
    "empty": lambda content: b"",
    "half": lambda content: content[: len(content) // 2],
    "one byte": lambda content: flip(content, content.index(b"atoms.npy") + 60),
    "foreign": lambda content: b"something else",
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_packed_file_is_made_anew_or_named(damage, root, cache, tmp_path):
    write_peptides(root, "peptides-func")
    first = graphs_of(load_dataset("peptides-func", root))
    file = cache / "peptides" / "peptides-func.npz"
    good = file.read_bytes()
    file.write_bytes(DAMAGE[damage](good))
    with pytest.warns(DamagedCacheWarning, match=r"peptides-func\.npz is damaged"):
        again = graphs_of(load_dataset("peptides-func", root))
    assert all(torch.equal(a.x, b.x) for a, b in zip(first, again, strict=True))
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    graphs_of(load_dataset("peptides-func", root))  # without a warning
    carried = tmp_path / "there" / DATASETS["peptides-func"].packed
    write(carried, DAMAGE[damage](good))
    with pytest.raises(ValueError, match="copy it anew, or delete it") as caught:
        load_dataset("peptides-func", tmp_path / "there")
    assert str(carried) in str(caught.value)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("which", [0, 1])
def test_a_wrong_checksum_is_named(name, which, root, cache):
    write_peptides(root, name)
    file = root / DATASETS[name].files[which]
    file.write_bytes(file.read_bytes() + b" ")
    with pytest.raises(ValueError, match=r"md5 .* instead of .*get anew") as caught:
        load_dataset(name, root)
    assert str(file) in str(caught.value)
    assert not cache.exists()


def test_other_files_of_the_same_form_may_be_asked_for(root):
    write_peptides(root, "peptides-func")
    table, splits = peptides.ORIGINALS["peptides-func"]
    peptides.ORIGINALS["peptides-func"] = (replace(table, md5="0" * 32), splits)
    with pytest.raises(ValueError, match="md5"):
        load_dataset("peptides-func", root)
    assert load_dataset("peptides-func", root, PeptidesOptions(verify=False)).out_channels == 10
    with pytest.raises(ValueError, match="md5"):  # though the cache has them now
        load_dataset("peptides-func", root)


def test_a_table_may_have_been_through_a_spreadsheet(root):
    """Which puts a mark at its beginning, and ends lines its own way."""
    write_peptides(root, "peptides-func")
    file = root / DATASETS["peptides-func"].files[0]
    text = gzip.decompress(file.read_bytes()).decode()
    file.write_bytes(gzip.compress(b"\xef\xbb\xbf" + text.encode()))
    assert load_dataset("peptides-func", root, PeptidesOptions(verify=False)).out_channels == 10


def test_no_place_for_the_packed_file_is_a_warning(root, tmp_path, monkeypatch):
    write_peptides(root, "peptides-func")
    write(tmp_path / "file", b"")
    monkeypatch.setenv("BUNN_CACHE", str(tmp_path / "file" / "below"))
    with pytest.warns(UnwritableCacheWarning, match="molecules are read each time: set BUNN_CACHE"):
        assert load_dataset("peptides-func", root).out_channels == 10


class Hostile:
    """What a pickle must not do to whoever reads it."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_a_hostile_split_is_not_run(root, tmp_path):
    write_peptides(root, "peptides-func")
    trap = str(tmp_path / "trap")
    content = pickle.dumps({"train": Hostile(trap), "val": [1], "test": [2]})
    write(root / DATASETS["peptides-func"].files[1], content)
    with pytest.raises(ValueError, match=r"it names posix\.mkdir"):
        load_dataset("peptides-func", root, PeptidesOptions(verify=False))
    assert not os.path.exists(trap)


@pytest.mark.parametrize("part", [[], [0.7, 1.2], [[0, 1]], ["a"]])
def test_a_part_that_is_no_list_of_rows_is_named(part):
    with pytest.raises(ValueError, match="its part 'val' is no list of rows"):
        read_splits(pickle.dumps({"train": [0], "val": part, "test": [1]}), 5)


@pytest.mark.parametrize(
    "parts",
    [
        {"train": [0, 1], "val": [2], "test": [1]},
        {"train": [0, 1], "val": [2], "test": [9]},
        {"train": [0, 1], "val": [-1], "test": [2]},
    ],
)
def test_parts_that_are_none_are_refused(parts):
    with pytest.raises(ValueError, match="not rows of the 5 of the table, each once"):
        read_splits(pickle.dumps(parts), 5)


def test_a_part_that_is_missing_is_named(root):
    write_peptides(root, "peptides-func")
    write(root / DATASETS["peptides-func"].files[1], pickle.dumps({"train": [0], "val": [1]}))
    with pytest.raises(ValueError, match="KeyError: 'test'"):
        load_dataset("peptides-func", root, PeptidesOptions(verify=False))


def test_a_missing_package_says_what_to_do(root, monkeypatch):
    write_peptides(root, "peptides-func")
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "rdkit" else find(name)
    )
    with pytest.raises(MissingPackageError, match=r"needs rdkit.*pip install 'bunn\[chem\]'") as c:
        load_dataset("peptides-func", root)
    assert f"to {root / DATASETS['peptides-func'].packed}" in str(c.value)


def test_a_molecule_that_is_none_is_named(root):
    write_peptides(root, "peptides-func", (*SMILES[:5], "no molecule"))
    with pytest.raises(ValueError, match="'no molecule' is no molecule") as caught:
        load_dataset("peptides-func", root)
    assert DATASETS["peptides-func"].files[0] in str(caught.value)


def test_missing_files_are_named_with_their_places(root):
    with pytest.raises(MissingDataError) as caught:
        load_dataset("peptides-struct", root)
    for file in DATASETS["peptides-struct"].files:
        assert str(root / file) in str(caught.value)


def test_the_published_checksums():
    """Of the files that are here."""
    root = real_root("peptides-func")
    for original in peptides.ORIGINALS["peptides-func"]:
        assert hashlib.md5((root / original.file).read_bytes()).hexdigest() == original.md5


def test_the_original_files_are_read():
    """Some of the molecules, too; reading all of them takes half a minute on two cores."""
    texts, arrays = peptides.read_table("peptides-func", real_root("peptides-func"))
    assert len(texts) == 15_535
    assert arrays["targets"].shape == (15_535, 10)
    assert set(np.unique(arrays["targets"])) == {0.0, 1.0}
    assert [len(arrays[part]) for part in ("train", "val", "test")] == [10_873, 2_331, 2_331]
    graphs = smiles.featurise(texts[:300])
    assert graphs["num_nodes"][:2].tolist() == [119, 338]
    assert len(graphs["atoms"]) == graphs["num_nodes"].sum()
    assert len(graphs["bonds"]) == len(graphs["bond_features"]) == graphs["num_bonds"].sum()
