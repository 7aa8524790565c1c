"""Trainings that are killed, interrupted, cut short of space and given damaged files."""

import random
import shutil
import signal
import time
from pathlib import Path

import pytest

from tests.commands import run, wait_until
from tests.runs import evaluations, files, outcome, train

#: Whose numbers depend on random streams (dropout, signs) and on all of the past (a plateau).
SETTINGS = (
    *("model.dropout=0.2", "encoding.lap_pe=2", "schedule.patience=3"),
    *("model.phi_channels=128", "training.checkpoint_seconds=0"),
)
EPOCHS = 12
SHORT = train(*SETTINGS, f"training.epochs={EPOCHS}", output="run")
KILLS = 10

#: Python that sends its own process a signal right before a file gets its name.
AT = """
import os, signal
names = []
def watch(event, arguments):
    if event in ("os.rename", "os.link"):
        names.append(os.path.basename(os.fspath(arguments[1])))
        if {}: os.kill(os.getpid(), signal.{})
sys.addaudithook(watch)
"""


@pytest.fixture(scope="module")
def expected(warm, tmp_path_factory):
    """What a training comes to that nobody interrupts."""
    folder = tmp_path_factory.mktemp("expected")
    finished = warm.run(*SHORT, cwd=folder)
    assert finished.returncode == 0, finished.stderr
    return outcome(folder / "run")


@pytest.fixture(scope="module")
def interrupted(warm, tmp_path_factory):
    """A training that got Ctrl-C after some epochs: its folder and what it said."""
    cwd = tmp_path_factory.mktemp("interrupted")
    command = begin(warm, cwd, "names[-1] == 'last.json' and names.count('last.json') == 4")
    busy = message(warm.run(*SHORT, "--resume", cwd=cwd), 1)
    assert "run is in use by another process; wait for it, or choose another folder" in busy
    command.signal(signal.SIGINT)
    command.signal(signal.SIGCONT)
    return cwd / "run", command.finish()


def begin(warm, cwd, moment):
    """A training that has stopped itself at some moment, and waits to be continued."""
    command = warm.start(*SHORT, "--resume", cwd=cwd, before=AT.format(moment, "SIGSTOP"))
    command.wait_for_stop()
    return command


@pytest.fixture
def cwd(interrupted, tmp_path):
    """A folder with a copy of that training."""
    shutil.copytree(interrupted[0], tmp_path / "run")
    return tmp_path


def message(result, code):
    assert result.returncode == code, result.stderr
    assert "Traceback" not in result.stderr
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("bunn: ")]
    return line


def resume(warm, cwd):
    """Goes on to the end."""
    finished = warm.run(*SHORT, "--resume", cwd=cwd)
    assert finished.returncode == 0, finished.stderr
    return outcome(cwd / "run")


def checkpoints(folder: Path) -> dict[str, bytes]:
    return files(folder / "checkpoints")


def test_ctrl_c_saves_and_says_so(interrupted):
    folder, finished = interrupted
    said = message(finished, 130)
    assert "interrupted after epoch" in said
    assert "everything is saved in run (--resume goes on" in said
    assert 4 <= evaluations(folder) < EPOCHS
    assert not (folder / "result.json").exists()


def test_ctrl_c_changes_no_number(cwd, warm, expected):
    assert resume(warm, cwd) == expected


def test_sigterm_is_ctrl_c(cwd, warm, expected):
    command = begin(warm, cwd, "names[-1] == 'last.json' and names.count('last.json') == 2")
    command.signal(signal.SIGTERM)
    command.signal(signal.SIGCONT)
    assert "interrupted after epoch" in message(command.finish(), 130)
    assert resume(warm, cwd) == expected


def test_the_second_ctrl_c_stops_at_once(warm, tmp_path):
    endless = train("data.num_train=1000000", output="run")  # an epoch that takes half an hour
    command = warm.start(*endless, cwd=tmp_path)
    wait_until(lambda: list(tmp_path.glob("run/split*/metrics.jsonl")) or command.poll())

    for _ in range(2):
        command.signal(signal.SIGINT)
        time.sleep(1.0)
    assert "stopped at once" in message(command.finish(), 130)
    assert evaluations(tmp_path / "run") == 0


@pytest.mark.slow
def test_ten_kills_at_random_moments_change_no_byte(warm, tmp_path):
    """Two seeds; the processes before the last die at a random line of metrics, some time on."""
    epochs, often = 50, "training.checkpoint_seconds=0.1"
    arguments = train(
        *SETTINGS, "data.num_train=12", f"training.epochs={epochs}", often, output="run"
    )
    arguments += ["--seeds", "0-1"]
    (tmp_path / "whole").mkdir()
    finished = warm.run(*arguments, cwd=tmp_path / "whole")
    assert finished.returncode == 0, finished.stderr

    moments = random.Random(0)
    lines = sorted(moments.sample(range(1, epochs), KILLS))  # of two times as many
    for line in lines:
        command = warm.start(*arguments, "--resume", cwd=tmp_path)
        wait_until(lambda line=line: evaluations(tmp_path / "run") >= line, every=0.002)
        time.sleep(moments.uniform(0, 0.1))
        command.signal(signal.SIGKILL)
        assert command.finish().returncode == -signal.SIGKILL, "it ended before it was killed"
    finished = run(*arguments, "--resume", cwd=tmp_path, **warm.environment)
    assert finished.returncode == 0, finished.stderr
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole" / "run")


@pytest.mark.slow
def test_a_kill_before_any_file_is_in_place_changes_no_byte(warm, tmp_path, expected):
    last = f"any(name.startswith('epoch-{EPOCHS:06}') for name in names)"
    for moment in (
        "names[-1] == 'config.json'",
        "names[-1] == 'environment.json'",
        "names[-1] == 'metrics.jsonl'",
        "names[-1].startswith('epoch-')",
        "names[-1] == 'last.json'",
        "names.count('best.safetensors') == 2",
        "names.count('previous.json') == 3",
        f"names[-1] == 'last.json' and {last}",
        f"names[-1] == 'last.safetensors' and {last}",
        "names[-1] == 'best.safetensors'",  # after all epochs
        "names[-1] == 'result.json'",
    ):
        killed = warm.run(*SHORT, "--resume", cwd=tmp_path, before=AT.format(moment, "SIGKILL"))
        assert killed.returncode == -signal.SIGKILL, (moment, killed.stderr)
    assert resume(warm, tmp_path) == expected
    assert not list((tmp_path / "run").rglob("*.part"))
    assert not list((tmp_path / "run" / "checkpoints").rglob("*.tmp"))


#: A disk on which no file gets beyond some size.
FULL = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({0}, {0}))"


def test_a_full_disk_leaves_the_last_checkpoint(cwd, warm, expected):
    before = checkpoints(cwd / "run")
    largest = max(len(content) for content in before.values())
    full = FULL.format(largest - 1)
    said = message(warm.run(*SHORT, "--resume", cwd=cwd, before=full), 1)
    assert "could not be written" in said
    assert "run/checkpoints" in said
    assert "--resume" in said
    assert checkpoints(cwd / "run") == before
    assert resume(warm, cwd) == expected


#: A disk that has no room for some file.
NO_ROOM = """
def watch(event, arguments):
    if event == "open" and {0!r} in str(arguments[0]) and arguments[1] != "r":
        raise OSError(28, "No space left on device", arguments[0])
sys.addaudithook(watch)
"""


def test_a_full_disk_from_the_start(warm, tmp_path):
    arguments = train("training.epochs=40", output="run")
    metrics = "run/split0-seed0/metrics.jsonl"
    for file, full in (
        ("run", NO_ROOM.format("config.json")),
        ("run", NO_ROOM.format("environment.json")),
        (metrics, NO_ROOM.format("metrics.jsonl")),
        (metrics, FULL.format(4000)),  # after some epochs
        ("run/result.json", NO_ROOM.format("result.json")),
    ):
        said = message(warm.run(*arguments, "--resume", cwd=tmp_path, before=full), 1)
        assert f"{file} cannot be written" in said
        assert "make room" in said or "--output" in said
    finished = warm.run(*arguments, "--resume", cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr
    assert evaluations(tmp_path / "run") == 40


def test_damaged_checkpoints_are_told_apart_from_whole_ones(cwd, warm, expected):
    folder = cwd / "run" / "checkpoints" / "split0-seed0"
    (latest,) = [
        path for path in folder.iterdir() if path.name in (folder / "last.json").read_text()
    ]
    victims = (
        folder / "last.json",
        latest / "values.json",
        latest / "split0-seed0.last.safetensors",
    )
    for victim in victims:
        content = victim.read_bytes()
        victim.unlink()  # it may be the same file as last.safetensors
        victim.write_bytes(content[: len(content) // 2])
        before = files(cwd / "run")
        said = message(warm.run(*SHORT, "--resume", cwd=cwd), 1)
        assert str(victim.relative_to(cwd)) in said
        assert "damaged" in said
        assert files(cwd / "run") == before
        if victim != victims[-1]:
            victim.write_bytes(content)
    assert f"remove {folder.relative_to(cwd) / 'last.json'}" in said
    (folder / "last.json").unlink()  # as it says
    assert resume(warm, cwd) == expected


REPRODUCE = ("reproduce", "synthetic", "--quick", "--models", "mlp", "--jobs", "2")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds processes in /proc")
def test_an_interrupted_reproduction_goes_on_and_leaves_no_process(warm, tmp_path):
    runs = tmp_path / "runs" / "synthetic"
    folders = [runs / "barbell-mlp-quick", runs / "clique-mlp-quick"]

    def begin(done):
        """Starts, and waits until both trainings are further than they were."""
        command = warm.start(*REPRODUCE, cwd=tmp_path)

        def further():
            assert command.poll() is None, command.finish().stderr
            return all(map(lambda folder, lines: evaluations(folder) > lines, folders, done))

        wait_until(further)
        workers = children(command.pid)
        assert len(workers) >= 2
        return command, workers

    command, workers = begin([0, 0])
    command.signal(signal.SIGINT)
    assert "run the same command again" in message(command.finish(), 130)
    wait_until(lambda: not any(alive(worker) for worker in workers))
    metrics = [next(folder.glob("*/metrics.jsonl")) for folder in folders]
    lines = [path.read_bytes() for path in metrics]

    command, workers = begin([text.count(b"\n") for text in lines])
    command.signal(signal.SIGKILL)  # no chance to tell anybody
    assert command.finish().returncode == -signal.SIGKILL
    wait_until(lambda: not any(alive(worker) for worker in workers))
    for path, text in zip(metrics, lines, strict=True):
        assert path.read_bytes().startswith(text)


@pytest.mark.slow
def test_an_error_in_another_process_arrives_as_it_is(warm, tmp_path):
    taken = Path("runs") / "synthetic" / "clique-mlp-quick"
    (tmp_path / taken.parent).mkdir(parents=True)
    (tmp_path / taken).write_text("not a folder")
    assert str(taken) in message(warm.run(*REPRODUCE, cwd=tmp_path), 1)
    assert not list(tmp_path.rglob("result.json"))  # the other one was not waited for


def children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for path in found for child in path.read_text().split()]


def alive(pid: int) -> bool:
    """Whether a process runs; not if all it waits for is that somebody notes its end."""
    try:
        return ") Z" not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
