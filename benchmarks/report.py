"""The docs page, from the result files alone: ``python -m benchmarks.report``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.results import FOLDER, load
from benchmarks.words import listed

PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"

INTRODUCTION = """\
# Benchmarks

Ratios measured in one run, with the contenders interleaved, as medians of several runs. Forward
and backward pass, float32, CPU. This page is written by `make bench` from
`benchmarks/results/*.json`. Set `BUNN_DATA` to the folder of the data sets to measure the real
graphs; otherwise random graphs of the same sizes are measured.
"""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table, numbers to the right."""
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def page() -> str:
    """The whole page."""
    parts = [INTRODUCTION, _machines(), _diffusion(load("diffusion"))]
    parts += [_layer(load("layer")), _memory(load("memory")), _scaling(load("scaling"))]
    names = ("peptides", "gpu_peptides")
    parts += [_peptides(load(name)) for name in names if (FOLDER / f"{name}.json").is_file()]
    return "\n".join(parts)


#: What the sections about a CPU are called in the list of machines.
SECTIONS = {
    "diffusion": "Heat",
    "layer": "one layer",
    "memory": "memory",
    "scaling": "scaling",
    "peptides": "batches",
}


def _machines() -> str:
    """What each section ran on."""
    by_machine: dict[str, list[str]] = {}
    for name, section in SECTIONS.items():
        result = load(name)
        env = result["environment"]
        machine = (
            f"{env['cpu']}, {env['threads']} threads, Python {env['python']}, torch "
            f"{env['torch']}, torch_geometric {env['torch_geometric']}, scipy {env['scipy']}"
        )
        by_machine.setdefault(f"{result['date']}: {machine}", []).append(section)
    lines = (f"- {listed(sections)}, {machine}.\n" for machine, sections in by_machine.items())
    return "".join(lines)


def _diffusion(result: dict[str, Any]) -> str:
    rows, dense = [], []
    for row in result["rows"]:
        speedup, error, time = row["speedup"], row["error"], row["seconds"]["bunn"]
        start = [row["graph"], f"{row['time']:g}", str(row["degree"]), f"{time * 1e3:.1f} ms"]
        if "matrix_exp" in speedup:
            ratios = (f"{speedup[name]:.0f}" for name in ("matrix_exp", "matrix_exp64"))
            dense.append([*start, *ratios])
            continue
        products = row["taylor_steps"] * row["taylor_degree"]
        rows.append(
            [
                *start,
                f"{speedup['expm_multiply']:.0f}",
                f"{speedup['taylor']:.1f}",
                str(products),
                f"{error['bunn']:.0e}",
                f"{error['expm_multiply']:.0e}",
                f"{error['taylor']:.0e}",
            ]
        )
    head = ["graph", "t", "degree", "`diffuse`"]
    return (
        "## Heat\n\n"
        f"`diffuse` at tol 1e-6 on {result['columns']} columns, and the times of scipy's "
        "`expm_multiply` and of a Taylor expansion to the same tolerance, divided by ours. The "
        "expansion takes as many steps as it needs: one fails by cancellation. Errors are measured "
        "against float64.\n\n"
        + table(
            [
                *head,
                "`expm_multiply` ÷ ours",
                "Taylor ÷ ours",
                "Taylor products",
                "our error",
                "`expm_multiply`'s",
                "Taylor's",
            ],
            rows,
        )
        + "\nAgainst a dense `torch.linalg.matrix_exp`, on a part of the graph of 2,000 nodes. In "
        "float32 its squarings fill up with denormal numbers, so float64 is shown as well. What "
        "takes longer than 20 s in all is not repeated.\n\n"
        + table([*head, "`matrix_exp` ÷ ours", "in float64 ÷ ours"], dense)
    )


def _layer(result: dict[str, Any]) -> str:
    names = list(result["rows"][0]["seconds"])
    rows = [
        [
            row["graph"],
            *(f"{row['seconds'][n] * 1e3:.0f} ms ({row['over_sage'][n]:.2f})" for n in names),
        ]
        for row in result["rows"]
    ]
    built = ", ".join(f"{r['build_seconds'] * 1e3:.0f} ms for {r['graph']}" for r in result["rows"])
    return (
        "## One layer\n\n"
        f"A training step of one layer of {result['channels']} channels, median of "
        f"{result['repeats']}; in brackets, its ratio to `SAGEConv` with `edge_index`. `BuNNConv` "
        "is at t=1 with its two-layer perceptron as phi, with one bundle, as in the paper's table "
        "of run times, and with 256, as in its best models. It builds the graph once, in the "
        f"warm-up ({built}), and shares it with all layers.\n\n"
        + table(["graph", *(f"`{name}`" for name in names)], rows)
    )


def _memory(result: dict[str, Any]) -> str:
    rows = [
        [
            row["graph"],
            *(f"{value / 2**20:.0f} MiB" for value in row["bytes"].values()),
            f"{row['ratio']:.3f}",
        ]
        for row in result["rows"]
    ]
    return (
        "## Memory\n\n"
        f"Peak memory of a training step of {result['layers']} layers of {result['channels']} "
        "channels. Nothing of the recurrence is stored, so the degree does not matter.\n\n"
        + table(["graph", "degree 8", "degree 64", "ratio"], rows)
    )


def _scaling(result: dict[str, Any]) -> str:
    rows = [
        [f"{row['entries']:,}", f"{row['nodes']:,}", f"{row['seconds'] * 1e3:.2f} ms"]
        for row in result["rows"]
    ]
    return (
        "## Scaling\n\n"
        f"`diffuse` at t=1 on {result['columns']} columns of random graphs with ten neighbours per "
        f"node. Slope of the log-log fit: **{result['slope']:.2f}**.\n\n"
        + table(["entries", "nodes", "time"], rows)
    )


def _peptides(result: dict[str, Any]) -> str:
    on_cpu = result["device"] == "cpu"
    rows = [
        [
            f"`{row['model']}`",
            f"{row['parameters']:,}",
            f"{row['seconds'] * 1e3:.{0 if on_cpu else 1}f} ms",
            f"{row['over_gcn']:.2f}",
        ]
        for row in result["rows"]
    ]
    env = result["environment"]
    where = f"cpu with {env['threads']} threads" if on_cpu else f"an {result['device']}"
    return (
        f"## Batches of small graphs{'' if on_cpu else ' on a GPU'}\n\n"
        f"A training step on Peptides-func, batches of {result['batch_size']} graphs, six layers, "
        f"median of {result['repeats']}, on {where}. All but the last run in the same loop, with "
        "batches gathered from a packed dataset; `gcn, PyG` is PyG's own model, without positional "
        "encodings, in a loop over a `DataLoader`. `bunn` chooses the method of heat; "
        "`bunn, spectral` takes all eigenvectors, as in the paper's table of times, where it takes "
        "2.27 times as long as a GCN.\n\n"
        + table(["model", "parameters", "step", "over `gcn`"], rows)
        + f"\nAn epoch has {result['steps']} steps. Seconds of what is done once for all graphs: "
        + "; ".join(f"{name} {value:.0f}" for name, value in result["once"].items())
        + ".\n"
    )


def main() -> None:
    PAGE.write_text(page())
    print(f"wrote {PAGE.parent.name}/{PAGE.name}")


if __name__ == "__main__":
    main()
