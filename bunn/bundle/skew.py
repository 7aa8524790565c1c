r"""Maps from skew-symmetric matrices: the Cayley transform and the exponential, both onto SO(d).

.. math::
    \mathrm{cayley}(A) = (I - A)^{-1} (I + A), \qquad \exp(A) = \sum_k A^k / k!, \qquad A^\top = -A,

the parameters being the entries of :math:`A` above the diagonal, row by row. Cayley reaches every
rotation without an angle of exactly :math:`\pi`, the exponential every rotation.
"""

from __future__ import annotations

import torch
from torch import Tensor


class MatrixMap:
    """Any orthogonal matrices ``(n, b, d, d)``, applied as such."""

    any_precision = False

    def __init__(self, matrices: Tensor) -> None:
        self.matrices = matrices

    def sync(self, x: Tensor) -> Tensor:
        return self.matrices.to(x.dtype) @ x

    def desync(self, x: Tensor) -> Tensor:
        return self.matrices.mT.to(x.dtype) @ x


def cayley(params: Tensor, d: int) -> MatrixMap:
    """The Cayley transform of ``params: (n, b, d (d - 1) / 2)``."""
    skew = _skew(params, d)
    identity = torch.eye(d, dtype=skew.dtype, device=skew.device)
    # I - A is always invertible: nothing to check, and no need to wait for the device.
    rotation, _ = torch.linalg.solve_ex(identity - skew, identity + skew)
    return MatrixMap(_polish(rotation))


def exponential(params: Tensor, d: int) -> MatrixMap:
    """The matrix exponential of ``params: (n, b, d (d - 1) / 2)``."""
    return MatrixMap(_polish(torch.linalg.matrix_exp(_skew(params, d))))


def _skew(params: Tensor, d: int) -> Tensor:
    """``A``, scaled down where its entries exceed what the precision can resolve."""
    count, device = params.size(-1), params.device
    if count:
        largest = torch.finfo(params.dtype).eps ** -0.5
        params = params * (largest / params.detach().abs().amax(-1, keepdim=True).clamp(largest))
    # Every entry of A is a parameter, its negative, or zero: one gather from the three.
    row, col = torch.triu_indices(d, d, offset=1, device=device)
    source = torch.full((d, d), 2 * count, device=device)
    source[row, col] = torch.arange(count, device=device)
    source[col, row] = torch.arange(count, 2 * count, device=device)
    return torch.cat((params, -params, params.new_zeros(*params.shape[:-1], 1)), -1)[..., source]


def _polish(q: Tensor) -> Tensor:
    """Two Newton steps towards the nearest orthogonal matrix; each squares the error."""
    for _ in range(2):
        q = 1.5 * q - 0.5 * q @ (q.mT @ q)
    return q
