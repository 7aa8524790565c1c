"""Launching a kernel again.

Triton looks at every argument of every launch to find the kernel that was compiled for such ones,
which takes the host several times as long as the launch. What was compiled can be launched by
itself, as Triton's tutorials do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

#: Kernels by what they were compiled for.
_COMPILED: dict[tuple[Any, ...], Any] = {}


def launch(
    kernel: Any, grid: tuple[int, ...], arguments: Sequence[Any], num_warps: int, **constants: Any
) -> None:
    """``kernel[grid](*arguments, **constants)``.

    Args:
        kernel: A function under ``triton.jit``, whose constants come last.
        grid: How many programs.
        arguments: All that is no constant.
        num_warps: Groups of 32 threads of a program.
        constants: What is known when the kernel is compiled, in the order of its signature.
    """
    device = next(value for value in arguments if isinstance(value, Tensor)).device
    key = (kernel, device, num_warps, *map(_kind, arguments), *constants.values())
    compiled = _COMPILED.get(key)
    if compiled is None:
        names = list(kernel.arg_names)
        assert names[len(arguments) :] == list(constants), f"{names} take {list(constants)} last"
        # The interpreter compiles nothing, and returns nothing.
        _COMPILED[key] = kernel[grid](*arguments, num_warps=num_warps, **constants)
        return
    compiled[(*grid, 1, 1)[:3]](*arguments, *constants.values())


def _kind(value: Any) -> Any:
    """What of an argument matters to the compiler."""
    if isinstance(value, Tensor):
        return value.dtype, value.data_ptr() % 16 == 0
    if isinstance(value, int):
        return value == 1, value % 16 == 0, value < 2**31
    return None if value is None else float
