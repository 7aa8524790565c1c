"""The part of the page on speed that is about training steps: layers, models, sizes, times."""

from __future__ import annotations

from typing import Any

from benchmarks import predicted, stacks
from benchmarks.gpu_seconds import CELLS, DATASETS
from benchmarks.report import table
from benchmarks.results import FOLDER, load
from benchmarks.words import how, listed, number, what_errors_are
from bunn.experiments import heterophilous
from bunn.experiments.published import MODEL_TITLES
from bunn.experiments.results import read_results

#: Where the results of experiments are.
RESULTS = FOLDER.parent.parent / "results"
#: Milliseconds of a step before there were kernels, on the same card with bf16 autocast.
BEFORE = {"minesweeper": 58.0, "tolokers": 86.0}

PAPER_LOG = """\
Ratios below one: data comes from the cache instead of memory, where the features of minesweeper and
tolokers fit. On tolokers in bf16, blocks of rows also gather only a third of what is counted. On
like-amazon-ratings and like-questions in TF32, heat takes five products between the ends of the
spectrum and not the six that are counted, and there and on grids neighbours' rows come in faster
than the 5 TB/s assumed. Ratios above one: short steps, in which starting and ending kernels takes
time; the dense heat of tolokers in TF32, which takes 1.25 times what was predicted; and power-law
graphs, whose rows miss the cache.
"""

BATCHES_LOG = """\
- **On paper**, for 150 nodes in bf16: a dense product is 1.5 GFLOP, 3 us at full speed, and 31 MB
  of features, kernels and results, 7 us.
- **Before**, it took 87 us: stacking the features, padding them and copying them back are several
  passes over all of them, and many more in float32, where they were split in two.
- **In place**: now one kernel multiplies the components where they lie
  (`bunn/kernels/grouped.py`), in 14 us, and in 15 instead of 138 for mixed sizes.
- **In float32**, numbers are split in registers: three TF32 products took 81 us, six bfloat16
  products take 48; memory traffic would take 15.
- **Heat from eigenvectors** is two such passes, with the decay in the first: 34 us instead of 199
  in bf16, and 98 instead of 512 in float32. Forward and backward with a learned time per column
  take 94 us instead of 897 in bf16 (`gpu_tried.json`).
- **Padding**: columns are padded to a multiple of 16. Read one by one, 235 of them took five to six
  times as long as 128.
"""

MODELS_LOG = """\
## Log of the full models

The target was a quarter of the time of a step before there were kernels, 14.5 and 21.5 ms: met on
both graphs. On minesweeper in bf16, dense products take 6.2 ms, which is 580 TFLOP/s, means and
heat by blocks 1.4, and the optimiser 0.8; chains take 4.1 ms, of which their memory traffic
accounts for 3. Compiled code does not use these kernels and is slower than capturing alone.

What led there on minesweeper, by the time of a step:

- **18.6 to 17.6 ms**: heat factor by factor, and angles inside the kernels of the maps.
- **To 16.1**: the weight gradients of a phi are computed together. One by one they have too few
  entries to fill the GPU, and cuBLAS splits their sums and adds them up again. Tried
  (`gpu_tried.json`): a second stream beside the passes, 17.2 ms instead of 17.5, since products and
  passes compete for registers; all eight blocks of a phi as one batch of products, 16.1, at 11 %
  less memory; both, with batches of four, 16.3. The batch was kept.
- **To 15.4**: heat by blocks of close nodes, which takes 0.2 ms instead of 0.9.
- **To 14.6**: the means of a phi by blocks of close nodes, too. Predicted: 128 of them at 9 us
  instead of 14.6, 0.7 ms less.
- **To 14.3**: maps and chains.
    - Maps with one vector each are read 16 bytes at a time instead of 2, sine and cosine are
      computed together, and angles stay in 16 bits. Predicted: a pass of 7 us instead of 17, and
      three casts less, 0.4 ms in all. Measured: maps 0.30 ms instead of 0.54 and the rest 0.94
      instead of 1.05, about what was predicted.
    - In chains two columns share a dropout hash, and GELU takes two multiplications less: 6 to 12 %
      fewer instructions in the compiled code, 0.2 to 0.3 ms if chains are bound by them. Measured:
      4.12 ms instead of 4.22, half of that or less, so instructions are not the only limit.

Still slow: steps that are not captured, where the host is slower than the GPU.
"""

SCALE_LOG = """\
From a million nodes on, time and memory grow with the number of edges; below, kernel launches take
longer than the work. The largest graphs tried fit on the GPU: a grid of 30 million nodes, and a
power-law graph of 30 million nodes with 614 million entries.
"""

SPLITS_LOG = """\
Stacking pays up to a width of 128, and `bunn train --splits all` stacks up to there by default.
Beyond, a step of one split fills the GPU and uses kernels that a stack cannot use.
"""

TIMES_LOG = """\
The cost grows like the root of t until float32 no longer suffices for `tol`: an operator rounded to
eps moves heat by up to t * eps / 2. From there on everything is float64, with twice the bytes. The
rows *float64* are so at all times and grow like the root throughout. Tried: terms in float32, with
operator and sums in float64. On most graphs errors stay below half of eps * t^(3/4), but on two
stars joined by a weak edge they reach 0.05 eps * t, as much as with an operator in float32. *auto*
leaves the recurrence where it estimates a dense product or the limit to be cheaper.
"""
#: How pytest ends where it finds no tests.
NO_TESTS = 5
#: By how much *auto* may differ from the recurrence in time and still be taken for it.
ALIKE = 0.05


def sections() -> str:
    """Everything that was measured."""
    parts = {
        "gpu_batches": _batches,
        "gpu_layers": stacks.section,
        "gpu_models": _models,
        "gpu_seconds": _seconds,
        "gpu_splits": _splits,
        "gpu_scale": _scale,
        "gpu_times": _times,
        "gpu_accuracy": _accuracy,
        "gpu_tests": _tests,
    }
    there = [name for name in parts if (FOLDER / f"{name}.json").is_file()]
    found = [parts[name](load(name)) for name in there]
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
        "## Steps: predicted and measured\n\nThe same for training steps "
        "(`benchmarks/predicted.py`). *TFLOP* are the operations of dense products; *moved* the GB "
        "of memory traffic if every operation reads its inputs and writes its results once; "
        "*gathered* the GB of neighbours' rows. *predicted* is the sum of the three times at the "
        "rates above, in milliseconds; *measured* steps are captured, except on the large "
        "graphs.\n\n" + table(header, rows) + f"\n{PAPER_LOG}"
    )


def _batches(result: dict[str, Any]) -> str:
    methods = list(result["rows"][0]["milliseconds"])
    rows = []
    for row in result["rows"]:
        rows.append([row["batch"], row["dtype"], f"{row['time']:g}"])
        rows[-1] += [f"{row['milliseconds'][name]:.3f}" for name in methods]
        rows[-1] += [number(row["errors"].get(name), ".1e") for name in methods]
    header = ["batch", "type", "t", *methods, *(f"{name}, error" for name in methods)]
    return (
        f"## Batches of small graphs\n\n{how(result)}. {result['graphs']} graphs to a batch, "
        f"{result['channels']} channels: milliseconds, and errors{what_errors_are(result)}. "
        "*dense* and *spectral* are one and two tensor-core products with the matrices of all "
        "graphs, in place.\n\n" + table(header, rows) + "\n" + BATCHES_LOG
    )


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
    apart = (
        "Where the time goes, by kind of kernel; sparse products and heat by blocks include the "
        f"means of phi:\n\n{table(header, kinds)}\n"
    )
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
            "\nPeak memory of an eager step in MB, beside that of a GraphSAGE in the frame of the "
            "benchmark, with as many layers as all phi together and one more for each layer of the "
            "BuNN:\n\n" + table(["graph", "precision", "SAGE", "BuNN", "ratio"], peaks)
        )
    return (
        f"## The full models\n\n{how(result)}. The models of the heterophilous benchmark as the "
        "authors ran them, 512 wide: on minesweeper 8 layers, each with a phi of 8 SAGE layers; on "
        "tolokers 6 with 7. *parameters* are millions; *TFLOP* and *floor* are the operations of "
        "the dense products and their milliseconds at full speed. A step is *eager*, *captured*, "
        "or captured with *compiled* blocks. *times* is the speed relative to a plain "
        "implementation with cuSPARSE, bf16 autocast and a CUDA graph (58 and 86 ms).\n\n"
        + table(
            [
                *("graph", "precision", "parameters", "TFLOP", "floor"),
                *("eager", "captured", "compiled", "times"),
            ],
            rows,
        )
        + (f"\n{apart}" if kinds else "")
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
        "from reading the data to its metric, with nothing else on the GPU; "
        f"{len(result['rows'])} of {len(CELLS)} have been run, before heat by blocks.\n\n"
        + table(["model", "preset", *graphs], rows)
        + _seconds_together()
    )


def _seconds_together() -> str:
    """The same of all splits in the table of that benchmark, which shared their GPU."""
    found: dict[tuple[str, str], dict[str, list[float]]] = {}
    for result in read_results(RESULTS):
        here = result.experiment == heterophilous.EXPERIMENT and result.dataset in DATASETS
        if here and "H200" in result.device:
            cells = found.setdefault((result.model, result.preset), {})
            cells[result.dataset] = result.extra.get("seconds", [result.seconds])
    rows = []
    for (model, preset), cells in sorted(found.items()):
        rows.append([MODEL_TITLES[model], preset])
        for graph in DATASETS:
            taken = cells.get(graph, [])
            rows[-1] += [f"{min(taken):.0f}" if taken else "", f"{max(taken):.0f}" if taken else ""]
    heads = [f"{graph}, {end}" for graph in DATASETS for end in ("least", "most")]
    total = sum(sum(taken) for cells in found.values() for taken in cells.values())
    return (
        "\nSeconds of a split in the table of that benchmark, the least and the most of all splits "
        "that have been run on an H200. They shared it with two to a dozen other processes, and "
        f"older ones ran on older kernels. All together are {total / 60:.0f} minutes, if splits "
        "that ran side by side are counted one by one.\n\n"
        + table(["model", "preset", *heads], rows)
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
        "BuNN of five layers: milliseconds of a training step per split, one split after the other "
        "and all stacked in one step.\n\n"
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
        ]
        for row in result["rows"]
    ]
    return (
        f"## The same accuracy\n\n{how(result)}. A BuNN of four layers, 128 wide, each with a phi "
        f"of two SAGE layers, {result['epochs']} epochs with bf16 autocast on five splits: the "
        "test metric.\n\n" + table(["graph", "kernels", "test"], rows)
    )


def _tests(result: dict[str, Any]) -> str:
    rows = []
    for row in result["rows"]:
        if row["exit_code"] == NO_TESTS:
            continue
        counts = [row.get(name) for name in ("tests", "failures", "errors", "skipped")]
        passed = None if None in counts else counts[0] - sum(counts[1:])
        rows.append([f"`{row['of']}`", *(number(count, "d") for count in (passed, *counts[1:]))])
        rows[-1] += [str(row["exit_code"]), number(row.get("seconds"), ".0f")]
    died = any("tests" not in row for row in result["rows"])
    return (
        f"## Tests on a GPU\n\n{how(result)}. `pytest -m gpu`, including the tests of the "
        "kernels, one process per row: the number of tests by outcome, and the exit code"
        + ("; one without counts died before it could write them down" if died else "")
        + ".\n\n"
        + table(["tests", "passed", "failed", "errors", "skipped", "exit code", "seconds"], rows)
    )


def _times(result: dict[str, Any]) -> str:
    times = list(result["rows"][0]["milliseconds"]["sparse"])
    rows = [
        [row["graph"], label, *(f"{taken[t]:.3f}" for t in times), f"{row['growth'][label]:.2f}"]
        for row in result["rows"]
        for label, taken in row["milliseconds"].items()
    ]
    errors = [
        [row["graph"], label, *(number(found.get(t), ".1e") for t in times)]
        for row in result["rows"]
        for label, found in row.get("errors", {}).items()
    ]
    head = ["graph", "", *(f"t = {float(t):g}" for t in times)]
    return (
        f"## Large times\n\n{how(result)}. Heat alone at tol {result['tol']:g}, "
        f"{result['channels']} channels: milliseconds by the time t, and the log-log slope from "
        "t = 100 on, which is one half where the cost grows like the root of t.\n\n"
        + table([*head, "slope"], rows)
        + (f"\nErrors{what_errors_are(result)}:\n\n{table(head, errors)}" if errors else "")
        + f"\n{TIMES_LOG}{_choices(result['rows'])}"
    )


def _choices(rows: list[dict[str, Any]]) -> str:
    """Where *auto* would have done better to stay with the recurrence, and where it did stay."""
    early, stays = [], []
    for row in rows:
        auto, sparse = row["milliseconds"]["auto"], row["milliseconds"]["sparse"]
        early += [
            f"t = {float(t):g} on {row['graph']} ({auto[t]:.3f} ms for {sparse[t]:.3f})"
            for t in auto
            if auto[t] > (1 + ALIKE) * sparse[t]
        ]
        if all(abs(auto[t] / sparse[t] - 1) <= ALIKE for t in auto):
            stays.append(f"{row['graph']}, of {row['nodes']:,} nodes")
    words = [f"It does so too early at {listed(early)}.\n"] if early else []
    words += [f"On {listed(stays)}, it stays with the recurrence.\n"] if stays else []
    return "".join(words)
