"""The part of the page on speed that is about training steps: layers, models, sizes, times."""

from __future__ import annotations

from typing import Any

from benchmarks import predicted
from benchmarks.gpu_seconds import CELLS
from benchmarks.report import table
from benchmarks.results import FOLDER, load
from bunn.experiments.published import MODEL_TITLES

#: Forms of the table of layers: what a user writes, then the fastest there is of each.
FORMS = (
    *("SAGE, eager", "GAT, eager", "GT, eager", "NSD, eager", "BuNN, eager", "BuNN, captured"),
    *("SAGE, compiled captured", "SAGE, sparse", "SAGE, kernel compiled captured"),
)
#: Rivals as PyG offers them.
RIVALS = ("SAGE", "GAT", "GT")
#: Milliseconds of a step before there were kernels, on the same card with bf16 autocast.
BEFORE = {"minesweeper": 58.0, "tolokers": 86.0}

LAYERS_LOG = """\
Against the targets: a captured BuNN takes at most 0.6 of the time of the GraphSAGE that people
write, in bfloat16 on all five graphs; in TF32 on minesweeper, where GraphSAGE waits for the host,
and on tolokers. On the other three it takes 0.72 to 0.78, and heat alone half of the step: its six
products to and fro gather features of float32, whatever the precision of the dense products, and
GraphSAGE gathers once. With the recurrence of Chebyshev a step took 6 to 14 % longer there. BuNN is
faster than GAT and GT, eager and compiled; captured or with a sparse adjacency these have not been
run yet. The fastest GraphSAGE that PyG and torch offer is at most 1.6 times as fast; one whose mean
is taken by the kernel of this package, up to 2.8 times.

Sync and desync are kernels of their own: making them part of the heat does not win. Between sync
and the heat lies the channel mixing, and a row is gathered by all its neighbours, each of which
would turn it again. Desync as part of the last write would save one pass: steps without any desync
(`benchmarks/gpu_desync.py`) are 1.5 to 2.2 % faster where heat is sparse and 0.5 % where it is
a dense product, which is more than a fused one could save, for programs that would have to
gather both halves of a row at once. In the full models an update comes before desync.

Not good: *eager*. Without a CUDA graph a step of a BuNN takes 12 to 27 ms on any of these graphs,
which is the time of the host: hundreds of launches, on a host that is slow with them, as the 5 to 7
ms of GraphSAGE on minesweeper show. `bunn train` captures steps unasked; in a loop of one's own,
`torch.cuda.graph` does.
"""

PAPER_LOG = """\
Below one is what comes out of the cache instead of memory: features of minesweeper and tolokers fit
there. On tolokers in bf16 blocks of rows gather a third of what is counted. Above one are short
steps, whose kernels have to start and to end, and graphs of a power law, whose rows do not come
from the cache.
"""

BATCHES_LOG = """\
On paper, for 150 nodes in bf16: a dense product is 1.5 GFLOP, 3 us at full speed, and 31 MB of
features, kernels and results, 7 us. At first it took 87: laying features into stacks, filling them
up and bringing them back are several passes over all of them, and in float32, where they were split
in two, many more. Now one kernel multiplies the components where they lie
(`bunn/kernels/grouped.py`), in 14 us, and 15 for mixed sizes, where it was 138. In float32 numbers
are split in registers: three products of TF32 took 81 us, six of bfloat16 take 48, where memory
would take 15. Heat from eigenvectors is two such passes, with the decay in the first: 34 us instead
of 199, 98 instead of 512; forth and back with a learned time to a column, in bf16 94 instead of 897
(`gpu_tried.json`). Columns that are no multiple of 16 are filled up: read one by one, 235 of them
took five to six times as long as 128.
"""

MODELS_LOG = """\
The target was a quarter of the step before, 14.5 and 21.5 ms: met on tolokers, 19.4, and missed on
minesweeper, 16.1. There the dense products take 6.2 ms, near their floor, the sparse ones 2.7,
gathering out of the cache at its speed, and the optimiser 0.8; of the chains' 4.2 ms their traffic
would be 3. The count on paper says 16.3 ms: to get below, operations have to become fewer, not
faster. Compiled code does without these kernels, and is slower than what is captured alone.

What could still be saved there, on paper: with the mean of the neighbours behind the first product
of a block instead of before it, it and the activation would be one pass, 0.4 ms; gradients by the
remaining weights and biases, in float32 at once, would save copies, and weights rounded in one
launch time, 0.6. Together that is not the 1.6 ms that are missing; with chains at the speed of
their traffic as well, which they have not reached in any form that was tried, it would be.

What brought it there: heat factor by factor and angles inside of the kernels of the maps, from 18.6
to 17.6 ms; gradients by the weights of a phi computed together, to 16.1. One by one they have too
few entries to fill the card, and cuBLAS cuts their sums and adds them up again. Tried
(`gpu_tried.json`): on a second stream beside the passes, 17.2 ms instead of 17.5, since products
and passes want the same registers; all eight blocks of a phi as one batch of products, 16.1, at 11
% less memory; both, with batches of four, 16.3. The batch was kept.

Not good: *eager*, where the host is slower than the card: in bf16 129 ms on minesweeper, eight
times what is captured, and 102 on tolokers, five times; on another such machine 77 and 57.
"""

SCALE_LOG = """\
Time and memory grow with the edges from a million nodes on; below, launches take longer than work.
The largest that fit on the card, of those tried: a grid of 30 million nodes, and 20 million with
406 million entries that follow a power law.
"""

SPLITS_LOG = """\
Stacking pays up to a width of 128, and `bunn train --splits all` stacks up to there unasked.
Beyond, a step of one split fills the card, and goes through kernels that a stack cannot use.
"""

TIMES_LOG = """\
The root, up to the time at which float32 does not suffice any more: an operator rounded to eps
moves heat by up to t * eps / 2, and where that exceeds `tol` the recurrence runs in float64, on
twice the bytes. *float64* runs there at all times and grows like the root throughout. *auto* leaves
the recurrence where it takes a dense product or the limit for cheaper, at t = 1 on tolokers and at
t = 100 on minesweeper a little too early; on the grid of 90,000 nodes neither is.
"""


def sections() -> str:
    """Everything that was measured."""
    parts = {
        "gpu_batches": _batches,
        "gpu_layers": _layers,
        "gpu_models": _models,
        "gpu_seconds": _seconds,
        "gpu_splits": _splits,
        "gpu_scale": _scale,
        "gpu_times": _times,
        "gpu_accuracy": _accuracy,
        "gpu_tests": _tests,
    }
    there = [name for name in parts if (FOLDER / f"{name}.json").is_file()]
    found = [on_paper()] if {"gpu_layers", "gpu_models", "gpu_scale"} <= set(there) else []
    found += [parts[name](load(name)) for name in there]
    missing = [name for name in parts if name not in there]
    if missing:
        found.append(f"Not run yet: {', '.join(f'`{name}`' for name in missing)}.\n")
    return "\n".join(found)


def on_paper() -> str:
    """What training steps take, counted, predicted and measured."""
    rows = [
        [
            *(name, precision, f"{count.operations / 1e12:.2f}", f"{count.moved / 1e9:,.1f}"),
            *(f"{count.gathered / 1e9:,.1f}", f"{count.milliseconds:.1f}", f"{measured:.1f}"),
            f"{measured / count.milliseconds:.2f}",
        ]
        for name, precision, count, measured in predicted.rows()
    ]
    header = ["step", "precision", "TFLOP", "moved", "gathered", "predicted", "measured", "ratio"]
    return (
        "## Steps on paper\n\nThe same for training steps, whose tables follow "
        "(`benchmarks/predicted.py`): operations of dense products; GB that are moved where every "
        "operation reads its inputs and writes its results once; GB of neighbours' rows; the "
        "milliseconds that follow at the rates of above, one after the other; and those measured, "
        "captured but for the large graphs.\n\n" + table(header, rows) + f"\n{PAPER_LOG}"
    )


def how(result: dict[str, Any]) -> str:
    """By which command, where and when something was measured."""
    gpu = result["gpu"]
    commits = {row.get("commit", gpu["git_commit"])[:7]: None for row in result["rows"]}
    return (
        f"`{result['command']}` on an {gpu['device']}, torch {gpu['versions']['torch']}, commit "
        f"{', '.join(commits)}"
    )


def _batches(result: dict[str, Any]) -> str:
    methods = list(result["rows"][0]["milliseconds"])
    rows = []
    for row in result["rows"]:
        rows.append([row["batch"], row["dtype"], f"{row['time']:g}"])
        rows[-1] += [f"{row['milliseconds'][name]:.3f}" for name in methods]
        rows[-1] += [f"{row['errors'][name]:.0e}" for name in methods]
    header = ["batch", "type", "t", *methods, *(f"{name}, error" for name in methods)]
    return (
        f"## Batches of small graphs\n\n{how(result)}. {result['graphs']} graphs to a batch, "
        f"{result['channels']} channels: milliseconds, and errors relative to the features. "
        "*dense* and *spectral* are one and two products of the tensor cores with the matrices of "
        "all graphs, where these lie.\n\n" + table(header, rows) + "\n" + BATCHES_LOG
    )


def _layers(result: dict[str, Any]) -> str:
    rows, ratios, kinds, memory = [], [], [], []
    for row in result["rows"]:
        taken, name = row["milliseconds"], [row["graph"], row["precision"]]
        ours = taken["BuNN, captured"]
        fastest = {
            model: min(ms for form, ms in taken.items() if _is_pyg(form, model)) for model in RIVALS
        }
        rows.append(name + [f"{taken[form]:.2f}" if form in taken else "" for form in FORMS])
        ratios.append([*name, f"{ours / taken['SAGE, eager']:.2f}"])
        ratios[-1] += [f"{ours / fastest[model]:.2f}" for model in RIVALS]
        kinds.append(name + [f"{ms:.2f}" for ms in row["kinds"].values()])
        peak = row["peak_bytes"]
        memory.append(
            name + [f"{peak[form] / 1e6:,.0f}" for form in ("SAGE, eager", "BuNN, eager")]
        )
        memory[-1].append(f"{peak['BuNN, eager'] / peak['SAGE, eager']:.2f}")
    return (
        f"## A stack of layers\n\n{how(result)}. Five layers, 512 wide, one bundle of planes, an "
        "MLP for phi, t = 1: forward, backward and Adam, in milliseconds. *captured* is one CUDA "
        "graph, *compiled* goes through `torch.compile`, *sparse* is an adjacency in CSR, *kernel* "
        "our mean of neighbours in PyG's layer.\n\n"
        + table(["graph", "precision", *FORMS], rows)
        + "\nThe time of a captured BuNN over that of others: GraphSAGE as it is written, and the "
        "fastest form that PyG and torch offer of each.\n\n"
        + table(
            ["graph", "precision", "eager SAGE", *(f"fastest {model}" for model in RIVALS)], ratios
        )
        + f"\n{LAYERS_LOG}\nWhere the time of a captured BuNN goes, by the kinds of kernels:\n\n"
        + table(["graph", "precision", *result["rows"][0]["kinds"]], kinds)
        + "\n"
        "### Memory\n\nWhat a step of the same holds at its peak beyond parameters, optimiser and "
        "input, in MB, and the ratio, both eager; the target was 1.3. What a graph keeps is not "
        "in it: where heat is a dense product, two bytes for each pair of nodes in bf16 and four "
        "in TF32, 0.28 and 0.55 GB on tolokers.\n\n"
        + table(["graph", "precision", "SAGE", "BuNN", "ratio"], memory)
    )


def _is_pyg(form: str, model: str) -> bool:
    return form.startswith(f"{model}, ") and "kernel" not in form


def _models(result: dict[str, Any]) -> str:
    nodes = {row["graph"]: row["nodes"] for row in load("gpu_layers")["rows"]}
    rate, rows = load("floors")["rates"]["tensor"], []
    for row in result["rows"]:
        taken, graph = row["milliseconds"], row["graph"]
        operations = 6.0 * row["parameters"] * nodes[graph]
        before = BEFORE[graph] if row["precision"] == "bf16" else None
        rows.append([graph, row["precision"], f"{row['parameters'] / 1e6:.0f}"])
        slower = predicted.SLOWER[predicted.SIZES[row["precision"]]]
        floor = 1e3 * operations * slower / rate
        rows[-1] += [f"{operations / 1e12:.1f}", f"{floor:.1f}"]
        rows[-1] += [f"{taken[form]:.1f}" for form in ("eager", "captured", "compiled")]
        rows[-1] += [f"{before / min(taken.values()):.1f}" if before else ""]
    kinds = [
        [row["graph"], row["precision"], form, *(f"{ms:.1f}" for ms in kinds.values())]
        for row in result["rows"]
        for form, kinds in row.get("kinds", {}).items()
    ]
    header = [
        "graph",
        "precision",
        "",
        *next(iter(result["rows"][0].get("kinds", {}).values()), ()),
    ]
    apart = f"Where the time goes, by the kinds of kernels:\n\n{table(header, kinds)}\n"
    peaks = [
        [
            *(row["graph"], row["precision"]),
            *(f"{row['peak_bytes'][model] / 1e6:,.0f}" for model in ("SAGE", "BuNN")),
            f"{row['peak_bytes']['BuNN'] / row['peak_bytes']['SAGE']:.2f}",
        ]
        for row in result["rows"]
        if "peak_bytes" in row
    ]
    if peaks:
        apart += (
            "\nMB that an eager step holds at its peak, and a GraphSAGE of as many layers in the "
            "frame of the benchmark, those of all phi and one more for each of a BuNN:\n\n"
            + table(["graph", "precision", "SAGE", "BuNN", "ratio"], peaks)
        )
    return (
        f"## The full models\n\n{how(result)}. The models of the heterophilous benchmark as the "
        "authors ran them, 512 wide: on minesweeper 8 layers, each with a phi of 8 SAGE layers; on "
        "tolokers 6 with 7. Millions of parameters, TFLOP of the dense products, the milliseconds "
        "that they take at full speed; a step as it is written, captured, and captured with "
        "compiled blocks; how many times as fast as a plain implementation with cuSPARSE and a "
        "CUDA graph was with bf16 autocast (58 and 86 ms).\n\n"
        + table(
            [
                *("graph", "precision", "parameters", "TFLOP", "floor"),
                *("eager", "captured", "compiled", "times"),
            ],
            rows,
        )
        + (f"\n{apart}" if kinds else "")
        + f"\n{MODELS_LOG}"
    )


def _seconds(result: dict[str, Any]) -> str:
    taken = {(row["dataset"], row["model"], row["preset"]): row for row in result["rows"]}
    graphs = list(dict.fromkeys(dataset for dataset, _, _ in taken))
    rows = []
    for model, preset in dict.fromkeys((model, preset) for _, model, preset in taken):
        cells = [taken.get((graph, model, preset)) for graph in graphs]
        rows.append([MODEL_TITLES[model], preset])
        rows[-1] += ["" if cell is None else f"{cell['seconds']:.1f}" for cell in cells]
    return (
        f"## A split of the heterophilous benchmark\n\n{how(result)}. Seconds of the first split, "
        "from reading the data to its metric, with nothing else on the card; "
        f"{len(result['rows'])} of {len(CELLS)} have been run.\n\n"
        + table(["model", "preset", *graphs], rows)
    )


def _splits(result: dict[str, Any]) -> str:
    rows = []
    for row in result["rows"]:
        taken = row["milliseconds"]
        rows.append([row["precision"], f"{row['width']}"])
        rows[-1] += [f"{taken[form]:.2f}" for form in ("alone", "stacked")]
        rows[-1].append(f"{taken['alone'] / taken['stacked']:.2f}")
    return (
        f"## Several splits at once\n\n{how(result)}. {result['splits']} splits of minesweeper, a "
        "BuNN of five layers: milliseconds of a training step to a split, one after the other and "
        "all stacked in one step.\n\n"
        + table(["precision", "width", "alone", "stacked", "times"], rows)
        + f"\n{SPLITS_LOG}"
    )


def _scale(result: dict[str, Any]) -> str:
    rows = []
    for row in result["rows"]:
        if "error" in row:
            rows.append([row["graph"], f"{row['nodes']:,}", "does not fit", "", "", "", ""])
            continue
        taken, peak, entries = row["milliseconds"], row["peak_bytes"], row["entries"]
        rows.append([row["graph"], f"{row['nodes']:,}", f"{entries:,}", f"{taken:.0f}"])
        rows[-1] += [f"{1e6 * taken / entries:.1f}", f"{peak / 1e9:.1f}", f"{peak / entries:.0f}"]
    return (
        f"## Large graphs\n\n{how(result)}. A full-batch training step of a BuNN of two layers, "
        "64 wide, t = 1, eager, TF32.\n\n"
        + table(["graph", "nodes", "entries", "ms", "ns per entry", "GB", "bytes per entry"], rows)
        + f"\n{SCALE_LOG}"
    )


def _accuracy(result: dict[str, Any]) -> str:
    rows = [
        [
            row["dataset"],
            "with" if row["kernels"] else "without",
            f"{100 * row['mean']:.2f} ± {100 * row['deviation']:.2f}",
            f"{row['seconds']:.0f}",
        ]
        for row in result["rows"]
    ]
    return (
        f"## The same accuracy\n\n{how(result)}. A BuNN of four layers, 128 wide, each with a phi "
        f"of two SAGE layers, {result['epochs']} epochs with bf16 autocast on five splits: the "
        "metric on test data, and the seconds of all splits.\n\n"
        + table(["graph", "kernels", "test", "seconds"], rows)
    )


def _tests(result: dict[str, Any]) -> str:
    total = {
        name: sum(row[name] for row in result["rows"])
        for name in ("tests", "failures", "errors", "skipped")
    }
    return (
        f"## Tests on a card\n\n{how(result)}: of {total['tests']} tests, those of the kernels "
        f"among them, {total['failures']} failed, {total['errors']} had errors and "
        f"{total['skipped']} were skipped.\n"
    )


def _times(result: dict[str, Any]) -> str:
    times = list(result["rows"][0]["milliseconds"]["sparse"])
    rows = [
        [row["graph"], label, *(f"{taken[t]:.3f}" for t in times), f"{row['growth'][label]:.2f}"]
        for row in result["rows"]
        for label, taken in row["milliseconds"].items()
    ]
    return (
        f"## Large times\n\n{how(result)}. Heat alone at tol {result['tol']:g}, "
        f"{result['channels']} channels, in milliseconds by the time t; and the slope from t = 100 "
        "on in doubly logarithmic scale, which is one half where the cost grows like the root.\n\n"
        + table(["graph", "", *(f"t = {float(t):g}" for t in times), "slope"], rows)
        + f"\n{TIMES_LOG}"
    )
