"""The real command line, run as a user runs it."""

import json

import pytest
import torch

import bunn
from bunn.theory import CLAIMS, Report
from bunn.theory.report import summary_lines
from tests.commands import run


def test_verify_prints_one_line_per_claim(tmp_path):
    result = run("verify", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    for name, claim in CLAIMS.items():
        (line,) = [line for line in lines if line.startswith(f"{name} ")]
        assert claim.statement[:30] in line
        assert line.rstrip().endswith(("holds", "corrected"))
    assert f"{len(CLAIMS)} claims" in lines[-1]
    assert "0 fail" in lines[-1]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("width", [60, 80, 100, 150, 250])
def test_the_summary_fits_and_never_loses_a_verdict(width):
    reports = [CLAIMS[name]() for name in ("limit", "gcn", "householder")]
    reports.append(Report("broken", "nowhere", "a statement", error="RuntimeError: " + "x" * 500))
    lines = [line.plain for line in summary_lines(reports, width)]
    assert all(len(line.rstrip()) <= width for line in lines)
    text = "\n".join(lines)
    for report in reports:
        (line,) = [line for line in lines if line.startswith(f"{report.name} ")]
        assert line.rstrip().endswith(report.verdict)
        assert report.headline is None or f"{report.headline.value:.2g} ≤" in line
        assert report.statement[:9] in text


def test_a_terminal_without_greek(warm, tmp_path):
    code = "sys.stdout.reconfigure(encoding='ascii')"
    for arguments in (("--no-plot",), ("--json",)):
        result = warm.run("verify", "--claim", "gcn", *arguments, cwd=tmp_path, before=code)
        assert result.returncode == 0, result.stderr


def test_verify_json(warm, tmp_path):
    result = warm.run("verify", "--json", "--claim", "limit", "--claim", "cost", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    data = json.loads(result.stdout)
    assert data["passed"] is True
    assert data["version"] == bunn.__version__
    assert [claim["name"] for claim in data["claims"]] == ["limit", "cost"]
    limit, cost = data["claims"]
    assert limit["verdict"] == "holds"
    assert limit["residual"] == limit["checks"][0]["value"]
    assert cost["verdict"] == "corrected"
    assert all(check["passed"] for check in cost["errata"][0]["verification"])
    assert not list(tmp_path.iterdir())


def test_verify_one_claim_with_details_and_a_plot(warm, tmp_path):
    result = warm.run("verify", "--claim", "oversmoothing", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    for part in ("Proposition 4.2", "Erratum:", "printed:", "counterexample:", "corrected:", "128"):
        assert part in result.stdout
    assert (tmp_path / "bunn-oversmoothing.png").read_bytes().startswith(b"\x89PNG")
    assert "bunn-oversmoothing.png" in result.stdout

    elsewhere = tmp_path / "plot.svg"
    result = warm.run("verify", "--claim", "cost", "--plot", str(elsewhere), cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "<svg" in elsewhere.read_text()

    result = warm.run("verify", "--claim", "cost", "--no-plot", cwd=tmp_path)
    assert result.returncode == 0
    assert not (tmp_path / "bunn-cost.png").exists()


def test_a_broken_layer_exits_with_one(warm, tmp_path):
    broken = "import bunn.bundle.rotation as r; r.PlaneMaps.desync = r.PlaneMaps.sync"
    result = warm.run(
        "verify", "--claim", "consensus", "--claim", "limit", cwd=tmp_path, before=broken
    )
    assert result.returncode == 1
    assert "verdict: fails" in result.stdout
    assert "verdict: holds" in result.stdout

    result = warm.run("verify", "--json", "--claim", "consensus", cwd=tmp_path, before=broken)
    assert result.returncode == 1
    assert json.loads(result.stdout)["passed"] is False


def test_an_exception_in_a_claim_is_reported_and_the_rest_runs(warm, tmp_path):
    broken = "import bunn.bundle as b; b.FlatBundle.energy = None"
    result = warm.run(
        "verify", "--claim", "energy", "--claim", "limit", cwd=tmp_path, before=broken
    )
    assert result.returncode == 1
    assert "ended by TypeError" in result.stdout
    assert "Traceback" in result.stdout  # where it came from, as part of the details
    assert "verdict: holds" in result.stdout
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--claim", "jacobean"), "did you mean 'jacobian'?"),
        (("--plot", "x.png"), "--plot needs one --claim that has a plot"),
        (("--claim", "limit", "--plot", "x.png"), "--plot needs one --claim that has a plot"),
        (("--claim", "cost", "--plot", "x.doc"), "use .png, .svg or .pdf"),
        (("--seed", "three"), "Invalid value for '--seed'"),
        (("--seed", "99999999999999999999"), "Invalid value for '--seed'"),
        (("--claim", "cost", "--plot", "x.png", "--no-plot"), "exclude each other"),
    ],
)
def test_bad_arguments_are_explained(arguments, message, warm, tmp_path):
    result = warm.run("verify", *arguments, cwd=tmp_path)
    assert result.returncode == 2
    words = result.stderr.replace("│", " ").split()
    assert message in " ".join(words)
    assert "Traceback" not in result.stderr


def test_a_plot_that_cannot_be_written(warm, tmp_path):
    result = warm.run("verify", "--claim", "cost", "--plot", "missing/plot.png", cwd=tmp_path)
    assert result.returncode == 2
    assert "no plot was written to missing/plot.png" in result.stderr


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_a_missing_extra_is_named(missing, tmp_path):
    result = run("verify", cwd=tmp_path, before=f"sys.modules[{missing!r}] = None")
    assert result.returncode == 1
    assert "pip install 'bunn[train]'" in result.stderr
    assert "Traceback" not in result.stderr


def test_claims_run_without_matplotlib(tmp_path):
    result = run(
        "verify", "--claim", "cost", cwd=tmp_path, before="sys.modules['matplotlib'] = None"
    )
    assert result.returncode == 0, result.stderr
    assert "pip install 'bunn[train]'" in result.stderr


def test_version_and_help(warm, tmp_path):
    assert warm.run("--version", cwd=tmp_path).stdout.strip() == bunn.__version__
    assert "verify" in warm.run("--help", cwd=tmp_path).stdout
    assert "--claim" in warm.run("verify", "--help", cwd=tmp_path).stdout


def test_the_installed_command_is_this_one():
    (script,) = bunn_scripts()
    assert script.value == "bunn.__main__:main"


def bunn_scripts():
    from importlib.metadata import entry_points  # noqa: PLC0415

    return entry_points(group="console_scripts", name="bunn")


def test_bench_lists_what_there_is(warm, tmp_path):
    result = warm.run("bench", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    listed = [line.split()[0] for line in result.stdout.splitlines()]
    assert {"diffusion", "floors", "gpu_diffusion", "gpu_layers"} <= set(listed)
    assert all(len(line.split()) > 3 for line in result.stdout.splitlines())


def test_bench_with_a_wrong_name(warm, tmp_path):
    result = warm.run("bench", "difusion", cwd=tmp_path)
    assert result.returncode == 2
    assert "did you mean 'diffusion'" in " ".join(result.stderr.split())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_bench_without_a_gpu(warm, tmp_path):
    result = warm.run("bench", "gpu", cwd=tmp_path)
    assert result.returncode == 1
    assert "no CUDA device is here" in result.stderr


def test_bench_without_a_clone(warm, tmp_path):
    before = "import bunn.cli, pathlib; sys.modules['bunn.cli.bench'].CLONE = pathlib.Path('.')"
    result = warm.run("bench", cwd=tmp_path, before=before)
    assert result.returncode == 1
    assert "run from a clone of the repository" in result.stderr
