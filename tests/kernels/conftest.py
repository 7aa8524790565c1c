"""Kernels run on the device where there is one, else through Triton's interpreter."""

import numpy as np
import pytest

pytest.importorskip("triton", reason="needs Triton")

from triton import language as tl
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle


@pytest.fixture(autouse=True)
def _products_of_bfloat16(monkeypatch):
    """The interpreter multiplies the 16 bits of bfloat16 as if they were integers."""
    real = InterpreterBuilder.create_dot

    def wide(handle):
        if handle.dtype.scalar != tl.bfloat16:
            return handle
        return TensorHandle((handle.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    def create_dot(self, a, b, *args):
        return real(self, wide(a), wide(b), *args)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", create_dot)
