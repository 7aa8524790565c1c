"""Kernels run on the device where there is one, else through Triton's interpreter."""

import pytest

pytest.importorskip("triton", reason="needs Triton")
