r"""Products of Householder reflections: O(d) for any d.

.. math::
    O = H_1 H_2 \cdots H_k, \qquad H_i = I - 2 \frac{v_i v_i^\top}{\|v_i\|^2}.

A product of k reflections has determinant :math:`(-1)^k`, so k = d reaches one of the two halves of
O(d) only: the first half of the bundles uses d reflections, the rest d - 1, and both occur.
"""

from __future__ import annotations

import torch
from torch import Tensor


class HouseholderMap:
    """The product, applied reflection by reflection.

    Args:
        vectors: ``(n, b, d, d)``, of which ``vectors[..., i, :]`` is the ``i``-th ``v``. A vector
            too short to have a direction counts as the ``i``-th unit vector, so that the
            determinant never changes.
    """

    any_precision = False

    def __init__(self, vectors: Tensor) -> None:
        num_bundles, d = vectors.shape[1], vectors.shape[-1]
        longest = vectors.detach().abs().amax(-1, keepdim=True)
        usable = longest > torch.finfo(vectors.dtype).tiny ** 0.5
        # Scaled to a largest entry of one: no square overflows, and the direction stays the same.
        scaled = vectors / torch.where(usable, longest, 1.0)
        fallback = torch.eye(d, dtype=vectors.dtype, device=vectors.device)
        unit = torch.nn.functional.normalize(torch.where(usable, scaled, fallback), dim=-1)
        if num_bundles > 1:  # the last reflection of the second half: along nothing, the identity
            full = torch.arange(num_bundles, device=vectors.device) < (num_bundles + 1) // 2
            first = torch.arange(d, device=vectors.device) < d - 1
            unit = unit * (full[:, None] | first[None, :]).unsqueeze(-1)
        self.directions = unit.unbind(-2)

    def sync(self, x: Tensor) -> Tensor:
        return self._reflect(x, self.directions[::-1])

    def desync(self, x: Tensor) -> Tensor:
        return self._reflect(x, self.directions)

    @staticmethod
    def _reflect(x: Tensor, directions: tuple[Tensor, ...]) -> Tensor:
        for direction in directions:
            u = direction.to(x.dtype).unsqueeze(-1)
            x = torch.addcmul(x, u, u.mT @ x, value=-2)
        return x
