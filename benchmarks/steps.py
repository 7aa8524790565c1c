"""The part of the page on speed that is about training steps: layers, models, sizes, times."""

from __future__ import annotations

from typing import Any

from benchmarks import predicted, stacks
from benchmarks.gpu_seconds import CELLS
from benchmarks.report import table
from benchmarks.results import FOLDER, load
from benchmarks.words import how, listed, number, what_errors_are
from bunn.experiments.published import MODEL_TITLES

#: Milliseconds of a step before there were kernels, on the same card with bf16 autocast.
BEFORE = {"minesweeper": 58.0, "tolokers": 86.0}

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
of 199, 98 instead of 512; back and forth with a learned time to a column, in bf16 94 instead of 897
(`gpu_tried.json`). Columns that are no multiple of 16 are filled up: read one by one, 235 of them
took five to six times as long as 128.
"""

MODELS_LOG = """\
## Log of the full models

The target was a quarter of the step before, 14.5 and 21.5 ms: met on both. On minesweeper the dense
products take 6.2 ms, near their floor, means and heat by blocks 1.4, and the optimiser 0.8; of the
chains' 4.1 ms their traffic would be 3. Compiled code does without these kernels, and is slower
than what is captured alone.

What brought it there: heat factor by factor and angles inside of the kernels of the maps, from 18.6
to 17.6 ms; gradients by the weights of a phi computed together, to 16.1; heat by blocks of close
nodes, 0.2 ms of it instead of 0.9, to 15.4. One by one gradients by weights have too few entries to
fill the card, and cuBLAS cuts their sums and adds them up again. Tried (`gpu_tried.json`): on a
second stream beside the passes, 17.2 ms instead of 17.5, since products and passes want the same
registers; all eight blocks of a phi as one batch of products, 16.1, at 11 % less memory; both, with
batches of four, 16.3. The batch was kept.

Then a phi took its means by blocks of close nodes, too. Predicted were 128 of them at 9 us instead
of 14.6, 0.7 ms less; measured were 14.6 ms instead of 15.4.

Then maps with one vector each were read 16 bytes at a time instead of 2, sines and cosines shared
what they need, and angles stayed in 16 bits. Predicted: a pass of 7 us instead of 17, and three
casts less, 0.4 ms in all. Two columns share a hash that decides what is dropped, and GELU takes two
multiplications less: chains are 6 to 12 % fewer instructions by the count of what is compiled, 0.2
to 0.3 ms if these are what they wait for. Measured: maps 0.30 ms instead of 0.54 and the rest 0.94
instead of 1.05, about what was predicted; chains 4.12 instead of 4.22, half of it or less, so that
instructions are not all that they wait for; 14.3 ms instead of 14.6.

Still slow: steps that are not captured, where the host is slower than the card.
"""

SCALE_LOG = """\
Time and memory grow with the edges from a million nodes on; below, launches take longer than work.
The largest that were tried fit on the card: a grid of 30 million nodes, and 30 million with 614
million entries that follow a power law.
"""

SPLITS_LOG = """\
Stacking pays up to a width of 128, and `bunn train --splits all` stacks up to there unasked.
Beyond, a step of one split fills the card, and goes through kernels that a stack cannot use.
"""

TIMES_LOG = """\
The root, up to the time from which on float32 does not suffice for `tol`: an operator rounded to
eps moves heat by up to t * eps / 2. From there on all is float64, on twice the bytes. *float64* is
so at all times and grows like the root throughout. Tried: terms in float32 with operator and sums
in float64. On most graphs they are off by less than half of eps * t^(3/4), but on two stars that a
weak edge joins by 0.05 eps * t, as much as an operator in float32. *auto* leaves the recurrence
where it takes a dense product or the limit for cheaper.
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
        "## Steps: two numbers each\n\nThe same for training steps (`benchmarks/predicted.py`): "
        "operations of dense products; GB that are moved where every "
        "operation reads its inputs and writes its results once; GB of neighbours' rows; the "
        "milliseconds that follow at the rates of above, one after the other; and those measured, "
        "captured but for the large graphs.\n\n" + table(header, rows) + f"\n{PAPER_LOG}"
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
        "*dense* and *spectral* are one and two products of the tensor cores with the matrices of "
        "all graphs, where these lie.\n\n" + table(header, rows) + "\n" + BATCHES_LOG
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
        f"## Tests on a card\n\n{how(result)}. `pytest -m gpu`, the kernels' own tests "
        "among them, a process to a row: how many tests passed, failed, had errors and were "
        "skipped, and with which code the process ended"
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
        f"{result['channels']} channels, in milliseconds by the time t; and the slope from t = 100 "
        "on in doubly logarithmic scale, which is one half where the cost grows like the root.\n\n"
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
