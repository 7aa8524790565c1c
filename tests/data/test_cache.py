import errno
import io
import multiprocessing
import os
import signal
import sys
import time
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from bunn.data.transforms import (
    CacheWarning,
    DamagedCacheWarning,
    DiskCache,
    UnwritableCacheWarning,
    cache_root,
)
from bunn.data.transforms import cache as cache_module

INPUTS = {"edges": torch.arange(6).view(2, 3), "k": 3, "tol": 0.5, "kind": "rw", "none": None}


def result() -> dict[str, torch.Tensor]:
    return {"vectors": torch.arange(12.0).view(4, 3), "values": torch.tensor([1, 2, 3])}


def never() -> dict[str, torch.Tensor]:
    raise AssertionError("it was computed a second time")


def same(found, expected) -> bool:
    return found.keys() == expected.keys() and all(
        found[key].dtype == expected[key].dtype and torch.equal(found[key], expected[key])
        for key in expected
    )


@pytest.fixture
def cache(tmp_path):
    return DiskCache(tmp_path)


def test_computes_once(cache):
    first = cache.load_or_compute("it", INPUTS, result)
    again = DiskCache(str(cache.folder)).load_or_compute(
        "it", dict(reversed(INPUTS.items())), never
    )
    assert same(first, result())
    assert same(again, result())


@pytest.mark.parametrize(
    "change",
    [
        {"edges": torch.arange(6).view(3, 2)},
        {"edges": torch.arange(6).view(2, 3).int()},
        {"edges": torch.arange(1, 7).view(2, 3)},
        {"edges": None},
        {"k": 4},
        {"k": 3.0},
        {"k": "3"},
        {"tol": 0.5 + 1e-15},
        {"kind": "sym"},
        {"more": None},
    ],
    ids=str,
)
def test_another_input_is_another_result(cache, change):
    assert cache.path("it", {**INPUTS, **change}) != cache.path("it", INPUTS)


def test_the_name_and_the_format_count(cache, monkeypatch):
    path = cache.path("it", INPUTS)
    assert cache.path("that", INPUTS).name != path.name
    monkeypatch.setattr(cache_module, "FORMAT", 2)
    assert cache.path("it", INPUTS) != path


def test_the_layout_in_memory_does_not_count(cache):
    edges = INPUTS["edges"]
    assert cache.path("it", {**INPUTS, "edges": edges.T.contiguous().T}) == cache.path("it", INPUTS)


def test_an_input_can_be_of_any_dtype(cache):
    shapes = [(), (0,), (0, 3), (2, 3)]
    dtypes = [torch.bfloat16, torch.bool, torch.float16, torch.complex64, torch.int8]
    paths = {cache.path("it", {"x": torch.zeros(s).to(d)}) for s in shapes for d in dtypes}
    assert len(paths) == len(shapes) * len(dtypes)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    array=st.sampled_from(["f2", "f4", "f8", "i8", "i4", "u1", "?", "c8"]).flatmap(
        lambda dtype: arrays(dtype, array_shapes(min_dims=0, min_side=0, max_side=4))
    )
)
def test_returns_every_tensor_as_it_was(cache, array):
    tensor = torch.from_numpy(np.array(array))
    inputs = {"like": tensor}
    computed = cache.load_or_compute("tensor", inputs, lambda: {"it": tensor})["it"]
    loaded = cache.load_or_compute("tensor", inputs, never)["it"]
    for found in (computed, loaded):
        assert found.dtype == tensor.dtype
        assert found.shape == tensor.shape
        torch.testing.assert_close(found, tensor, rtol=0, atol=0, equal_nan=True)


def test_what_is_loaded_can_be_written_to_and_has_no_gradient(cache):
    weight = torch.ones(3, requires_grad=True)
    computed = cache.load_or_compute("it", INPUTS, lambda: {"x": weight * 2})["x"]
    loaded = cache.load_or_compute("it", INPUTS, never)["x"]
    assert not computed.requires_grad
    loaded += 1
    assert torch.equal(cache.load_or_compute("it", INPUTS, never)["x"], torch.full((3,), 2.0))


@pytest.mark.parametrize("name", ["", "../it", "a/b", "It", ".hidden"])
def test_names_stay_in_the_folder(cache, name):
    with pytest.raises(ValueError, match="name="):
        cache.load_or_compute(name, INPUTS, result)


def test_refuses_what_it_cannot_keep(cache):
    with pytest.raises(TypeError, match=r"inputs\['k'\] is a list"):
        cache.load_or_compute("it", {"k": [1]}, result)
    with pytest.raises(TypeError, match="bfloat16"):
        cache.load_or_compute("it", INPUTS, lambda: {"x": torch.ones(2, dtype=torch.bfloat16)})
    for name in cache_module.RESERVED:
        with pytest.raises(ValueError, match="taken"):
            cache.load_or_compute("it", INPUTS, lambda name=name: {name: torch.ones(2)})


def test_an_error_of_the_computation_leaves_nothing(cache):
    with pytest.raises(ZeroDivisionError):
        cache.load_or_compute("it", INPUTS, lambda: {"x": torch.tensor(1 // 0)})
    assert list(Path(cache.folder).rglob("*")) == []


def other_arrays(content: bytes) -> bytes:
    """A sound archive with the right digest and one array of another name."""
    with np.load(io.BytesIO(content)) as archive:
        found = dict(archive)
    found["vector"] = found.pop("vectors")
    buffer = io.BytesIO()
    np.savez(buffer, **found)
    return buffer.getvalue()


def without_digest(content: bytes) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, vectors=np.ones(3), values=np.ones(3))
    return buffer.getvalue()


def pickled(content: bytes) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, digest=np.array([{"an": "object"}], dtype=object))
    return buffer.getvalue()


def a_single_array(content: bytes) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.ones(3))
    return buffer.getvalue()


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[:10],
        lambda content: content[: len(content) // 2],
        lambda content: content[:-1],
        lambda content: b"garbage" * 100,
        lambda content: content.replace(b"\x00\x00\x80\x3f", b"\x00\x00\x81\x3f", 1),
        other_arrays,
        without_digest,
        pickled,
        a_single_array,
    ],
    ids=["empty", "start", "half", "cut", "garbage", "entry", "name", "digest", "pickle", "npy"],
)
def test_a_damaged_file_is_replaced(cache, damage):
    cache.load_or_compute("it", INPUTS, result)
    path = cache.path("it", INPUTS)
    damaged = damage(path.read_bytes())
    assert damaged != path.read_bytes()
    path.write_bytes(damaged)
    with pytest.warns(DamagedCacheWarning, match="computed anew"):
        rebuilt = cache.load_or_compute("it", INPUTS, result)
    assert same(rebuilt, result())
    assert same(cache.load_or_compute("it", INPUTS, never), result())
    assert list(path.parent.iterdir()) == [path]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_flipped_bit_never_changes_a_result(cache, place, bit):
    """It is noticed, or it is in a part of the file that says nothing, such as a date."""
    path = cache.path("it", INPUTS)
    if not path.exists():
        cache.load_or_compute("it", INPUTS, result)
    content = bytearray(path.read_bytes())
    content[int(place * len(content))] ^= 1 << bit
    path.write_bytes(content)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        found = cache.load_or_compute("it", INPUTS, result)
    assert same(found, result())
    if not any(issubclass(warning.category, DamagedCacheWarning) for warning in seen):
        path.unlink()


def test_a_file_in_the_wrong_place_is_damaged(cache):
    cache.load_or_compute("it", INPUTS, result)
    other = {**INPUTS, "k": 4}
    cache.path("it", INPUTS).rename(cache.path("it", other))
    with pytest.warns(DamagedCacheWarning, match="digest"):
        found = cache.load_or_compute("it", other, lambda: {"x": torch.zeros(1)})
    assert found.keys() == {"x"}


def test_files_are_archives_without_pickles(cache):
    cache.load_or_compute("it", INPUTS, result)
    path = cache.path("it", INPUTS)
    assert zipfile.ZipFile(path).testzip() is None
    with np.load(path, allow_pickle=False) as archive:
        assert set(archive.files) == {"vectors", "values", "digest"}


@pytest.mark.skipif(os.name == "nt", reason="folders have no mode")
def test_a_folder_that_cannot_be_written_to(tmp_path, monkeypatch):
    folder = tmp_path / "it"
    folder.mkdir()
    folder.chmod(0o500)
    if os.access(folder, os.W_OK):  # a superuser writes anywhere

        def refused(**kwargs):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

        monkeypatch.setattr(cache_module.tempfile, "mkstemp", refused)
    cache = DiskCache(tmp_path)
    with pytest.warns(UnwritableCacheWarning, match="Permission denied.*BUNN_CACHE"):
        assert same(cache.load_or_compute("it", INPUTS, result), result())
    folder.chmod(0o700)
    assert list(folder.iterdir()) == []


def test_a_file_where_the_folder_should_be(tmp_path):
    (tmp_path / "cache").write_text("a file")
    cache = DiskCache(tmp_path / "cache")
    with pytest.warns(UnwritableCacheWarning, match="nothing can be kept"):
        assert same(cache.load_or_compute("it", INPUTS, result), result())


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_full_disk(cache, monkeypatch, step):
    def full(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if step == "fsync":
        monkeypatch.setattr(os, "fsync", full)
    else:
        monkeypatch.setattr(Path, "replace", full)
    with pytest.warns(UnwritableCacheWarning, match="No space left"):
        assert same(cache.load_or_compute("it", INPUTS, result), result())
    assert list(cache.path("it", INPUTS).parent.iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_disk_that_is_full_from_the_first_byte(cache, monkeypatch):
    def full(**kwargs):
        path = Path(kwargs["dir"]) / ".full.tmp"
        path.symlink_to("/dev/full")
        return os.open(path, os.O_WRONLY), str(path)

    monkeypatch.setattr(cache_module.tempfile, "mkstemp", full)
    with pytest.warns(UnwritableCacheWarning, match="No space left"):
        assert same(cache.load_or_compute("it", INPUTS, result), result())
    assert list(cache.path("it", INPUTS).parent.iterdir()) == []


def test_an_interrupted_write_leaves_nothing(cache, monkeypatch):
    def interrupted(descriptor):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cache.load_or_compute("it", INPUTS, result)
    assert list(cache.path("it", INPUTS).parent.iterdir()) == []


def test_sweeps_what_killed_processes_left(cache):
    folder = cache.path("it", INPUTS).parent
    folder.mkdir()
    old, new = folder / ".old.tmp", folder / ".new.tmp"
    for temporary in (old, new):
        temporary.write_bytes(b"half a file")
    long_ago = time.time() - 2 * cache_module.ABANDONED
    os.utime(old, (long_ago, long_ago))
    cache.load_or_compute("it", INPUTS, result)
    assert sorted(folder.iterdir()) == sorted([new, cache.path("it", INPUTS)])


def test_where_files_go(monkeypatch, tmp_path):
    monkeypatch.setenv("BUNN_CACHE", str(tmp_path / "chosen"))
    assert cache_root() == tmp_path / "chosen"
    assert DiskCache().folder == tmp_path / "chosen"
    monkeypatch.delenv("BUNN_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    assert cache_root() == tmp_path / ".cache" / "bunn" / "computed"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_root() == tmp_path / "xdg" / "bunn" / "computed"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert cache_root() == tmp_path / "Library" / "Caches" / "bunn" / "computed"


ROUNDS = 25


def large_result() -> dict[str, torch.Tensor]:
    return {name: torch.arange(20_000.0) + i for i, name in enumerate("abcd")}


def work(folder: str, writes: bool, start, failures) -> None:
    """What each process does: rewrite the one entry again and again, or read it all the while."""
    torch.set_num_threads(1)
    cache = DiskCache(folder)
    path = cache.path("it", INPUTS)
    start.wait(timeout=60)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", CacheWarning)
            for _ in range(ROUNDS):
                if writes:
                    path.unlink(missing_ok=True)
                assert same(cache.load_or_compute("it", INPUTS, large_result), large_result())
    except Exception as error:
        failures.put(repr(error))
        raise


@pytest.fixture(scope="module")
def processes():
    """Processes of their own, which need not all import torch anew."""
    context = multiprocessing.get_context("forkserver" if os.name != "nt" else "spawn")
    context.set_forkserver_preload(["bunn.data.transforms.cache"])
    return context


def test_processes_share_a_folder(processes, tmp_path):
    """Two that write the same entry and one that reads it: nobody ever sees half a file."""
    start, failures = processes.Barrier(3), processes.SimpleQueue()
    workers = [
        processes.Process(target=work, args=(str(tmp_path), writes, start, failures))
        for writes in (True, True, False)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(timeout=120)
    assert failures.empty(), failures.get()
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    path = DiskCache(tmp_path).path("it", INPUTS)
    assert list(path.parent.iterdir()) == [path]


def be_killed(folder: str) -> None:
    os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)
    DiskCache(folder).load_or_compute("it", INPUTS, large_result)


@pytest.mark.skipif(os.name == "nt", reason="needs a signal that kills")
def test_a_process_killed_while_writing_leaves_a_sound_cache(processes, tmp_path):
    """Killed at its fsync: no entry, and the next process computes without complaint."""
    worker = processes.Process(target=be_killed, args=(str(tmp_path),))
    worker.start()
    worker.join(timeout=120)
    assert worker.exitcode == -signal.SIGKILL
    (left,) = (tmp_path / "it").iterdir()
    assert left.name.endswith(".tmp")
    cache = DiskCache(tmp_path)
    assert same(cache.load_or_compute("it", INPUTS, large_result), large_result())
    assert same(cache.load_or_compute("it", INPUTS, never), large_result())
