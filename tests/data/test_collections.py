"""Collections of graphs: the same members one by one and in batches, on every device."""

import copy
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric.data import Batch, Data

from bunn import BuNN
from bunn.data import GraphList, Split, TreeOptions, load_dataset
from bunn.data.stack import REMEMBERED

TREE = load_dataset("tree-neighborsmatch", options=TreeOptions(depth=3)).split(0)
BARBELL = load_dataset("barbell").split(0)
STACKS = {"tree": TREE.train, "barbell": BARBELL.train}


def lists():
    graphs = []
    for n in range(1, 6):
        chain = torch.stack((torch.arange(n - 1), torch.arange(1, n)))
        edges = torch.cat((chain, chain.flip(0)), 1)
        graphs.append(Data(x=torch.randn(n, 2), edge_index=edges, y=torch.randn(1, 3)))
    return GraphList(graphs)


@pytest.mark.parametrize("name", STACKS)
@given(st.data())
def test_a_batch_of_a_stack_is_the_batch_of_its_members(name, data):
    graphs = STACKS[name]
    chosen = data.draw(st.lists(st.integers(0, len(graphs) - 1), min_size=1, max_size=5))
    batch = graphs.collate(torch.tensor(chosen))
    reference = Batch.from_data_list([graphs[i] for i in chosen])
    for key in ("x", "y", "edge_index", "batch", *graphs.graph.attributes):
        assert torch.equal(batch[key], reference[key]), key
    assert batch.batch_size == reference.batch_size == len(chosen)
    assert batch.num_nodes == reference.num_nodes


@given(st.lists(st.integers(0, 4), min_size=1, max_size=5))
def test_a_batch_of_a_list_is_that_of_pyg(chosen):
    graphs = lists()
    batch = graphs.collate(torch.tensor(chosen))
    reference = Batch.from_data_list([graphs[i] for i in chosen])
    for key in ("x", "y", "edge_index", "batch"):
        assert torch.equal(batch[key], reference[key])
    assert batch.batch_size == len(chosen)


def test_a_batch_of_one_keeps_the_edges_and_leaves_the_graph_alone():
    graphs = lists()
    batch = graphs.collate(torch.tensor([2]))
    assert batch.edge_index is graphs[2].edge_index
    assert "batch" not in graphs[2]
    stack = BARBELL.train
    assert stack.collate(torch.tensor([2])).edge_index is stack[5].edge_index


@pytest.mark.parametrize("split", [TREE, BARBELL], ids=["tree", "barbell"])
def test_batches_of_a_size_have_one_edge_index(split):
    first = split.train.collate(torch.tensor([1, 2, 3]))
    other = split.test.collate(torch.tensor([0, 4, 0]))
    smaller = split.train.collate(torch.tensor([1, 2]))
    assert first.edge_index is other.edge_index
    assert first.edge_index is not smaller.edge_index
    assert first.edge_index.is_contiguous()
    for size in range(5, 5 + REMEMBERED):
        split.train.collate(torch.arange(size))
    assert len(split.train.graph._copies) == REMEMBERED


@pytest.mark.parametrize("graphs", [lists(), TREE.val, BARBELL.val], ids=repr)
def test_a_collection_is_a_sequence(graphs):
    n = len(graphs)
    assert torch.equal(graphs[-1].x, graphs[n - 1].x)
    assert torch.equal(graphs[torch.tensor(1)].x, graphs[1].x)
    assert len(list(graphs)) == n
    part = graphs[1:4]
    assert len(part) == 3
    assert torch.equal(part[0].x, graphs[1].x)
    for wrong in (n, -n - 1):
        with pytest.raises(IndexError, match=f"{n} graphs"):
            graphs[wrong]
    for indices in (torch.tensor([], dtype=torch.long), torch.tensor(1), torch.tensor([1.0])):
        with pytest.raises(ValueError, match=r"^indices has shape"):
            graphs.collate(indices)
    for copied in (copy.deepcopy(graphs), pickle.loads(pickle.dumps(graphs))):
        assert torch.equal(copied[2].x, graphs[2].x)


def test_plain_lists_become_collections_and_stay_one():
    graphs = list(lists())
    split = Split(graphs, graphs, graphs)
    assert split.train is split.val is split.test
    assert isinstance(split.train, GraphList)
    split = Split(graphs[:2], graphs[2:3], graphs[3:])
    assert [len(split.train), len(split.val), len(split.test)] == [2, 1, 2]


@pytest.mark.parametrize("device", ["meta", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_moving(device):
    board = load_dataset("minesweeper-board").split(0)
    moved = board.to(device)
    assert moved.train is moved.test
    assert board.train[0].x.device.type == "cpu"
    for split in (TREE, BARBELL):
        there = split.to(device)
        indices = torch.tensor([2, 0, 1])
        batch = there.train.collate(indices.to(device))
        assert {value.device.type for _, value in batch if torch.is_tensor(value)} == {device}
        assert there.test.collate(indices.to(device)).edge_index is batch.edge_index
        assert split.to(device).val.graph is there.train.graph
        assert split.train.collate(indices).x.device.type == "cpu"
        if device == "cuda":
            here = split.train.collate(indices)
            values = {key: value for key, value in here if torch.is_tensor(value)}
            assert values.keys() > {"x", "y", "edge_index", "batch"}
            assert all(torch.equal(value, batch[key].cpu()) for key, value in values.items())
            back = there.to("cpu")
            assert back.train.graph is split.train.graph
            assert torch.equal(back.train[1].x, split.train[1].x)


def test_a_model_reads_batches():
    dataset = load_dataset("tree-neighborsmatch", options=TreeOptions(depth=2))
    data = dataset.split(0).train.collate(torch.tensor([3, 1]))
    model = BuNN(dataset.in_channels, 8, 1, dataset.out_channels, encoder=dataset.encoder(8))
    out = model(data.x, data.edge_index, batch=data.batch, batch_size=data.batch_size)
    assert out.shape == (14, 4)
    loss = torch.nn.functional.cross_entropy(out[data.mask], data.y[data.mask])
    loss.backward()
    assert all(p.grad.abs().sum() > 0 for p in model.encoder.parameters())


def test_encoders_refuse_what_they_cannot_read():
    encoder = load_dataset("tree-neighborsmatch").encoder(4)
    for x in (torch.ones(3, 2), torch.ones(3, 3, dtype=torch.long)):
        with pytest.raises(ValueError, match=r"the encoder reads integers \(num_rows, 2\)"):
            encoder(x)
