"""Launching a kernel again.

Triton looks at every argument of every launch to find the kernel that was compiled for such ones,
which takes the host several times as long as the launch. What was compiled can be launched by
itself, as Triton's tutorials do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
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
        arguments: All that is no constant; the first that is there is a tensor.
        num_warps: Groups of 32 threads of a program.
        constants: What is known when the kernel is compiled, in the order of its signature.
    """
    index = next(value for value in arguments if value is not None).device.index
    if index is not None and index != torch._C._cuda_getDevice():
        with torch.cuda.device(index):
            launch(kernel, grid, arguments, num_warps, **constants)
        return
    kinds: list[Any] = [id(kernel), index, num_warps, *constants.values()]
    for value in arguments:  # what of it matters to the compiler
        if isinstance(value, Tensor):
            kinds += (value.dtype, value.data_ptr() % 16)
        elif isinstance(value, int):
            kinds.append((value % 16 == 0) + 2 * (value == 1) + 4 * (value >= 2**31))
        else:
            kinds.append(type(value))
    key = tuple(kinds)
    compiled = _COMPILED.get(key)
    if compiled is None:
        names = list(kernel.arg_names)
        assert names[len(arguments) :] == list(constants), f"{names} take {list(constants)} last"
        # The interpreter compiles nothing, and returns nothing.
        _COMPILED[key] = kernel[grid](*arguments, num_warps=num_warps, **constants)
        return
    stream = torch._C._cuda_getCurrentRawStream(index)
    compiled[(*grid, 1, 1)[:3]](*arguments, *constants.values(), stream=stream)


def parts(whole: int, size: int) -> int:
    """How many parts of some size cover a whole. (Triton's own takes a microsecond or two.)"""
    return -(-whole // size)


def power_of_two(number: int) -> int:
    """The next one that is no less."""
    return 1 << max(0, number - 1).bit_length()
