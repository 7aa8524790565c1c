"""The part of the page on speed that is about a stack of layers, BuNN's and others'."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from benchmarks.report import table
from benchmarks.results import load
from benchmarks.words import how, listed, number, span

#: Forms of the table of layers: what a user writes, then the fastest there is of each.
FORMS = (
    *("SAGE, eager", "GAT, eager", "GT, eager", "NSD, eager", "BuNN, eager", "BuNN, captured"),
    *("SAGE, compiled captured", "SAGE, sparse", "SAGE, kernel compiled captured"),
)
#: Five graphs in two precisions.
ROWS = 10
#: Rivals as PyG offers them.
RIVALS = ("SAGE", "GAT", "GT")
#: The share of the time of an eager GraphSAGE that a captured BuNN may take.
TARGET = 0.6
#: Kinds of kernels that heat is made of.
HEAT = ("sparse products", "heat by blocks")

LOG = """\
## Log of five layers

**Heat.** In TF32 its features are float32, whatever the precision of the dense products. By blocks
of close nodes heat is one pass: a step on minesweeper takes 2.1 ms instead of 2.7 in TF32, and 1.2
instead of 1.7 in bf16. On tolokers, where all nodes are close to each other, it is one dense
product each way, most of the step in TF32. On random graphs it is five products each way between
the ends of the spectrum, which gather neighbours' rows, where GraphSAGE gathers once. Predicted for
like-amazon-ratings in TF32: 0.65 of an eager GraphSAGE, with five products instead of six and
0.72; measured: {amazon}, and {questions} on like-questions. Half of these steps is heat.

**Other rivals.** Compiled and captured, GAT is a little faster than a BuNN in TF32 on the three
graphs of the size of roman-empire, amazon-ratings and questions, where heat takes longer than
attention to three to eight neighbours, and slower everywhere else. GraphSAGE with the mean of our
kernel is more than twice as fast on tolokers and, in bf16, on the random graphs: it takes one mean
where heat takes a dense product or five sparse ones.

**The host.** On minesweeper and like-roman-empire an eager GraphSAGE is limited by the host that
launches its kernels, and the ratio moves with that host: in TF32 on like-roman-empire it took 6.2
ms at commit 88a180c and takes {roman_sage} in this run. A captured BuNN took 3.6 ms, 0.59 of that,
and takes {roman}, {roman_share} of that. A quarter of it is heat.

**Sync and desync** are separate kernels: fusing them into the heat does not pay.

- Channel mixing lies between sync and the heat. Besides, a row is gathered by all its neighbours,
  and each would rotate it again.
- Desync in the last write of the heat would save one pass. Steps without any desync
  (`benchmarks/gpu_desync.py`) are {desync} % faster; a fused one would save less, because its
  programs would have to gather both halves of a row at once.
- In the full models an update comes before desync.

**Still slow**: steps that are not captured. Without a CUDA graph a step of a BuNN takes {bunn} ms
on any of these graphs, which is launch overhead: hundreds of kernels, on a host that is slow to
launch them, as the {sage} ms of GraphSAGE on minesweeper show. `bunn train` captures steps by
default; in a loop of your own, [`captured`](layer.md#a-loop-of-your-own-on-a-gpu) does.
"""


def log(result: dict[str, Any]) -> str:
    """What limits a step, with the times of eager ones."""
    taken = [(row["graph"], row["milliseconds"]) for row in result["rows"]]
    in_tf32 = {row["graph"]: row for row in result["rows"] if row["precision"] == "tf32"}
    roman, amazon = in_tf32["like-roman-empire"], in_tf32["like-amazon-ratings"]
    eager = span((ms["BuNN, eager"] for _, ms in taken), ".0f")
    sage = span((ms["SAGE, eager"] for graph, ms in taken if graph == "minesweeper"), ".0f")
    return LOG.format(
        bunn=eager,
        sage=sage,
        amazon=number(over(amazon, ("SAGE, eager",)), ".2f"),
        questions=number(over(in_tf32["like-questions"], ("SAGE, eager",)), ".2f"),
        roman=f"{roman['milliseconds']['BuNN, captured']:.1f}",
        roman_sage=f"{roman['milliseconds']['SAGE, eager']:.1f}",
        roman_share=number(over(roman, ("SAGE, eager",)), ".2f"),
        desync=span((100 * row["saved"] for row in load("gpu_desync")["rows"]), ".1f"),
    )


def section(result: dict[str, Any]) -> str:
    """All of it."""
    rows, ratios, kinds, memory = [], [], [], []
    for row in result["rows"]:
        taken, name = row["milliseconds"], [row["graph"], row["precision"]]
        rows.append(name + [number(taken.get(form), ".2f") for form in FORMS])
        shares = [over(row, ("SAGE, eager",)), *(over(row, forms(row, of)) for of in RIVALS)]
        ratios.append(name + [number(share, ".2f") for share in shares])
        if row["kinds"]:
            kinds.append(name + [f"{ms:.2f}" for ms in row["kinds"].values()])
        peaks = [row["peak_bytes"].get(form) for form in ("SAGE, eager", "BuNN, eager")]
        if None not in peaks:
            memory.append(name + [f"{peak / 1e6:,.0f}" for peak in peaks])
            memory[-1].append(f"{peaks[1] / peaks[0]:.2f}")
    head = next((list(row["kinds"]) for row in result["rows"] if row["kinds"]), [])
    partly = "" if len(rows) == ROWS else f"; {len(rows)} of {ROWS} rows have been run"
    return (
        f"## A stack of layers\n\n{how(result)}{partly}. Five layers, 512 wide, one bundle of "
        "planes, an MLP as phi, t = 1: forward, backward and Adam, in milliseconds. *captured* is "
        "one CUDA graph, *compiled* uses `torch.compile`, *sparse* has the adjacency in CSR, "
        "*kernel* is PyG's layer with our kernel for the mean of neighbours.\n\n"
        + table(["graph", "precision", *FORMS], rows)
        + _failures(result["rows"])
        + "\nThe time of a captured BuNN over that of an eager GraphSAGE, and over that of the "
        "fastest form of each model that PyG and torch offer.\n\n"
        + table(
            ["graph", "precision", "eager SAGE", *(f"fastest {model}" for model in RIVALS)], ratios
        )
        + f"\n{_against_targets(result['rows'])}\n"
        "Where the time of a captured BuNN goes, by kind of kernel. On tolokers in bf16 heat is "
        "one of the dense products:\n\n"
        + table(["graph", "precision", *head], kinds)
        + "\n### Memory\n\n"
        "Peak memory of the same steps, eager, beyond parameters, optimiser and input, in MB, and "
        "the ratio; the target was 1.3. What is kept with the graph is not included: where heat is "
        "a dense product, as on tolokers, two bytes for each pair of nodes in bf16, 0.28 GB, and "
        "four in float32; by blocks of close nodes, the same for each node and those that its "
        "block reaches.\n\n" + table(["graph", "precision", "SAGE", "BuNN", "ratio"], memory)
    )


def forms(row: dict[str, Any], model: str, kernel: bool = False) -> list[str]:
    """Those of a model that have a time: PyG's, or those with our kernel in them."""
    names = (form for form in row["milliseconds"] if form.startswith(f"{model}, "))
    return [form for form in names if ("kernel" in form) == kernel]


def over(row: dict[str, Any], rivals: Iterable[str]) -> float | None:
    """The time of a captured BuNN over that of the fastest of some forms, if both have one."""
    taken = row["milliseconds"]
    ours = taken.get("BuNN, captured")
    theirs = min((taken[form] for form in rivals if form in taken), default=None)
    return None if ours is None or theirs is None else float(ours / theirs)


def _failures(rows: list[dict[str, Any]]) -> str:
    """Which forms have no time, and why; nothing if all have."""
    where: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for form, reason in row.get("failed", {}).items():
            # The first sentence; what follows "CUDA out of memory" are numbers of the allocator.
            key = (form, reason.partition(". ")[0].rstrip(".:"))
            where.setdefault(key, []).append(f"{row['graph']} in {row['precision']}")
    if not where:
        return ""
    found = (f'{form} on {listed(places)} ("{reason}")' for (form, reason), places in where.items())
    return f"\nForms that failed and have no time: {'; '.join(found)}.\n"


def _against_targets(rows: list[dict[str, Any]]) -> str:
    """Where a captured BuNN is as fast as it was to be."""
    pairs = [(row, ratio) for row in rows if (ratio := over(row, ("SAGE, eager",))) is not None]
    met = [ratio for _, ratio in pairs if ratio <= TARGET]
    missed = [(row, ratio) for row, ratio in pairs if ratio > TARGET]
    text = (
        f"Against the targets: a captured BuNN was to take at most {TARGET:g} of the time of an "
        f"eager GraphSAGE: met in {len(met)} of {len(pairs)} rows"
    )
    text += f" ({span(met, '.2f')})." if met else "."
    if missed:
        where = listed(f"{row['graph']} in {row['precision']}" for row, _ in missed)
        shares = [
            100 * sum(row["kinds"][kind] for kind in HEAT) / sum(row["kinds"].values())
            for row, _ in missed
        ]
        text += (
            f" On {where} it takes {span((ratio for _, ratio in missed), '.2f')}; heat is "
            f"{span(shares, '.0f')} % of its time there."
        )
    others = {
        "GAT": ("GAT", False),
        "GT": ("GT", False),
        "GraphSAGE": ("SAGE", False),
        "a GraphSAGE whose mean of neighbours is our kernel": ("SAGE", True),
    }
    spans = []
    for words, (model, kernel) in others.items():
        ratios = [over(row, forms(row, model, kernel)) for row in rows]
        there = [ratio for ratio in ratios if ratio is not None]
        spans += [f"{span(there, '.2f')} for {words}"] if there else []
    text += f" Its time over that of the fastest form: {'; '.join(spans)}." if spans else ""
    tried = {form for row in rows for form in (*row["milliseconds"], *row.get("failed", {}))}
    wanted = (f"{model}, {way}" for model in RIVALS for way in ("sparse", "captured"))
    untried = [form for form in wanted if form not in tried]
    return text + (f" Not run yet: {'; '.join(untried)}.\n" if untried else "\n")
