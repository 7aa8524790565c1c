"""Compiles the kernels for a GPU, which need not be there: ``python -m tests.kernels.compiled``.

Prints one line of JSON for each, with the name of what was compiled, its PTX, and the bytes of
stack that a thread has, to which registers are spilled.
"""

import json
import re
import subprocess
import tempfile

from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

from bunn.diffusion.patchwise import CHUNK, MORE_ROWS
from bunn.diffusion.patchwise import ROWS as PATCH_ROWS
from bunn.graph.components import ALIGNED, TOGETHER
from bunn.kernels import bits, columns, halves, heads, norms, planes, squares, steps, turns
from bunn.kernels.arguments import BITS
from bunn.kernels.grouped import NARROW, WIDE
from bunn.kernels.patches import (
    ADD_WARPS,
    ADD_WIDTH,
    FEW_ROWS,
    LOWEST,
    MANY_ROWS,
    SPLIT_ROWS,
    SPLIT_WARPS,
    SPLIT_WIDTH,
)

TARGET = GPUTarget("cuda", 90, 32)
TYPES = {
    **dict.fromkeys(("r", "partial", "value", "beta", "gamma", "delta"), "*fp32"),
    "left": "*fp32",
    **dict.fromkeys(("crow", "col", "segments", "chunks", "pieces"), "*i32"),
    **dict.fromkeys(("num_rows", "num_segments", "width", "x_stride", "out_stride"), "i32"),
    **dict.fromkeys(("a", "b", "c", "alpha"), "fp32"),
    **dict.fromkeys(("weight", "scores", "grad"), "*fp32"),
    **dict.fromkeys(("source", "target", "pointer", "other", "place"), "*i64"),
    **dict.fromkeys(("eigenvalues", "times", "sums"), "*fp32"),
    **dict.fromkeys(("tiles", "order"), "*i32"),
    **dict.fromkeys(("nodes", "cut", "rows", "largest"), "*i32"),
    **dict.fromkeys(("before", "after"), "*fp32"),
    "high": "*fp16",
    **dict.fromkeys(("moments", "statistics", "slopes", "bias"), "*fp32"),
    **dict.fromkeys(("running_mean", "running_var"), "*fp32"),
    **dict.fromkeys(("eps", "momentum"), "fp32"),
    **{"count": "*i64", "num_parts": "i32"},
    **dict.fromkeys(("cos", "sin", "grad_cos", "grad_sin"), "*fp32"),
    **dict.fromkeys(("num_maps", "bundles", "turned", "size"), "i32"),
    **dict.fromkeys(("num_edges", "heads", "stride", "query_stride", "key_stride"), "i32"),
}
FEATURES = (
    *("x", "p", "y", "out", "query", "key", "values", "matrices", "found"),
    *("low", "entries", "rest", "grad_x"),
)
#: The flags without which an argument is not there.
OWNERS = {name: name.upper() for name in ("p", "y", "r", "out", "b", "c", "beta", "gamma", "delta")}
OWNERS |= {"partial": "CUT", "segments": "CUT", "place": "PLACE"}
OWNERS |= dict.fromkeys(("low", "rest", "largest"), "SPLIT") | {
    "before": "BEFORE",
    "after": "AFTER",
}
OWNERS |= {"weight": "AFFINE", "bias": "AFFINE"}
OWNERS |= {"running_mean": "TRACKED", "running_var": "TRACKED"}
OWNERS |= {"eigenvalues": "DECAY", "times": "DECAY", "found": "SUMS", "sums": "SUMS"}
FLAGS = (
    *("P", "MINUS", "Y", "R", "OUT", "B", "C", "BETA", "GAMMA", "DELTA"),
    *("PER_COLUMN", "CUT", "PLACE", "TRANSPOSED", "DECAY", "SUMS", "SPLIT", "BEFORE", "AFTER"),
    *("AFFINE", "TRACKED", "ANGLE", "INVERSE", "SINGLE"),
)


def show(
    kernel, on: str, dtype: str, warps: int = 1, out: str | None = None, **constants: int
) -> None:
    """Compiles a kernel for features of a type, with the flags that are listed in ``on``; results
    have theirs, or another type."""
    names, flags = kernel.arg_names, on.split()
    fixed = {flag: flag in flags for flag in FLAGS if flag in names} | constants
    absent = [a for a, flag in OWNERS.items() if a in names and flag in fixed and not fixed[flag]]
    fixed |= dict.fromkeys(absent)
    types = TYPES | dict.fromkeys(FEATURES, f"*{dtype}") | {"out": f"*{out or dtype}"}
    if "PER_COLUMN" in flags:
        types |= dict.fromkeys("abc", "*fp32")
    sizes = ("width", "x_stride", "out_stride", "stride", "query_stride", "key_stride", "num_maps")
    aligned = [name for name in names if name in sizes or types.get(name, "").startswith("*")]
    source = ASTSource(
        kernel,
        {name: "constexpr" if name in fixed else types[name] for name in names},
        {(names.index(name),): value for name, value in fixed.items()},
        {(names.index(a),): [["tt.divisibility", 16]] for a in aligned if a not in fixed},
    )
    found = compile(source, target=TARGET, options={"num_warps": warps}).asm
    name = f"{kernel.__name__} {dtype} {on} {constants}"
    print(json.dumps({"name": name, "ptx": found["ptx"], "stack": stack(found["cubin"])}))


def stack(cubin: bytes) -> int:
    """The bytes of stack of a thread."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return int(re.search(r"STACK:(\d+)", usage)[1])


def main() -> None:
    for dtype, width in (("fp32", 128), ("bf16", 256), ("fp16", 256)):
        tile = {"AT_ONCE": 8, "WIDTH": width}
        for on in (
            *("P MINUS Y R OUT B", "Y BETA", "P MINUS R OUT C GAMMA CUT", "OUT C", "P OUT B C"),
            "P MINUS Y OUT B DELTA PER_COLUMN",
        ):
            for rows in (1, 2):
                show(steps.walk_rows, on, dtype, LONG=256, ROWS=rows, EACH=4, **tile)
        show(steps.walk_rows, "OUT C", dtype, LONG=256, ROWS=2, EACH=3, **tile)
        if dtype != "fp32":
            narrow = {"ROWS": 16, "EACH": 3, "AT_ONCE": 16, "WIDTH": 64}
            show(steps.walk_rows, "OUT C", dtype, LONG=256, **narrow)
        show(steps.add_segments, "P MINUS Y R OUT B C BETA GAMMA DELTA", dtype, **tile)
    tile = {"ROWS": 64, "CHUNK": 32, "WIDTH": 128, "STAGES": 7}
    for dtype in ("bf16", "fp16"):
        for on in ("OUT GAMMA CUT", "P MINUS Y R OUT B CUT", "P OUT B C CUT"):
            show(bits.walk_blocks, on, dtype, 4, **tile)
    for dtype in ("bf16", "fp32"):
        tile = {"AT_ONCE": 16, "WIDTH": 64}
        show(heads.multiply_ends, "", dtype, **tile)
        for on in ("", "PLACE"):
            show(heads.add_neighbours, on, dtype, **tile)
    for dtype, tiling in (("bf16", NARROW), ("fp32", WIDE)):
        tile = {"PRECISION": "bf16x6", "ROWS": TOGETHER, "CHUNK": tiling.chunk}
        tile |= {"WIDTH": tiling.width, "STAGES": tiling.stages, "ALIGNED": ALIGNED}
        for on in ("", "TRANSPOSED DECAY PER_COLUMN", "TRANSPOSED DECAY PER_COLUMN SUMS"):
            show(squares.multiply_squares, on, dtype, tiling.warps, **tile)
    for rows, tiling in ((PATCH_ROWS, FEW_ROWS), (MORE_ROWS, MANY_ROWS)):
        tile = {"LOWEST": LOWEST, "BITS": BITS, "ROWS": rows, "CHUNK": CHUNK}
        tile |= {"WIDTH": tiling.width, "STAGES": tiling.stages}
        for cut in ("", " CUT"):
            show(halves.multiply_patches, "SPLIT AFTER" + cut, "fp16", tiling.warps, "fp32", **tile)
            show(halves.multiply_patches, cut, "bf16", tiling.warps, **tile)
        for dtype in ("fp32", "bf16"):
            show(halves.add_patches, "", dtype, ADD_WARPS, ROWS=rows, WIDTH=ADD_WIDTH)
    tile = {"AT_ONCE": SPLIT_ROWS, "WIDTH": SPLIT_WIDTH}
    show(halves.find_largest, "BEFORE", "fp32", SPLIT_WARPS, **tile)
    bounds = {"LOWEST": LOWEST, "BITS": BITS}
    show(halves.split_halves, "BEFORE", "fp32", SPLIT_WARPS, **bounds, **tile)
    tile = {"ROWS": norms.ROWS, "WIDTH": norms.WIDTH}
    for dtype in ("fp32", "bf16"):
        for kernel in (columns.find_moments, columns.find_slopes):
            show(kernel, "", dtype, norms.WARPS, **tile)
        for kernel in (columns.normalise, columns.normalise_back):
            show(kernel, "AFFINE", dtype, norms.WARPS, **tile)
    tile = {"ROWS": norms.ROWS, "AT_ONCE": norms.AT_ONCE, "WIDTH": norms.SETTLED}
    show(columns.settle, "TRACKED", "fp32", norms.WARPS, **tile)
    tile = {"ROWS": planes.TILE, "WIDTH": 1, "size": 1}
    for dtype in ("fp32", "bf16"):
        show(turns.turn_pairs, "ANGLE INVERSE SINGLE", dtype, planes.WARPS, sin=None, **tile)
        absent = {"sin": None, "grad_sin": None}
        show(turns.turn_pairs_back, "ANGLE SINGLE", dtype, planes.WARPS, **absent, **tile)


if __name__ == "__main__":
    main()
