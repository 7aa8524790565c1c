r"""One basis for every eigenspace, whichever solver found it.

An eigenvector is known up to its sign, and a :math:`d`-fold eigenvalue determines a space but none
of its bases: what a solver returns hangs on rounding. The basis here depends on the space alone.
Let :math:`P` project on it. Take the node :math:`p` with the largest :math:`P_{pp}` (the node that
lies closest to the space, the first among equals) and the vector :math:`P e_p / |P e_p|`, whose
largest entry is the positive one at :math:`p`; take it out of the space; repeat. In one dimension
this is the rule that the largest entry is positive.
"""

from __future__ import annotations

import torch
from torch import Tensor

#: Eigenvalues this close, relatively and absolutely, are one eigenvalue.
RELATIVE, ABSOLUTE = 1e-8, 1e-12
#: Squares this close, relatively, are a tie, which the lower index wins.
TIE = 1e-6


def eigenspaces(values: Tensor) -> Tensor:
    """The eigenspace, counted from zero, of each of the ascending eigenvalues ``(m,)``."""
    apart = values[1:] - values[:-1] > RELATIVE * values[1:] + ABSOLUTE
    return torch.cat((apart.new_zeros(1), apart)).long().cumsum(0)[: values.numel()]


def settled_eigenvectors(values: Tensor, vectors: Tensor, count: int) -> Tensor:
    """The first ``count <= m`` eigenvectors ``(s, count)``, orthonormal, in the basis above.

    Args:
        values: ``(m,)`` eigenvalues in ascending order.
        vectors: ``(s, m)`` orthonormal eigenvectors.
        count: How many; an eigenspace that ends after them is used in full.
    """
    multiplicities = torch.bincount(eigenspaces(values)).tolist()
    columns, start = [vectors[:, :0]], 0
    for space in vectors.split(multiplicities, dim=1):
        wanted = min(space.size(1), count - start)
        if wanted <= 0:
            break
        columns.append(space if space.size(1) == 1 else _basis(space, wanted))
        start += wanted
    return with_settled_signs(torch.cat(columns, dim=1))


def with_settled_signs(vectors: Tensor) -> Tensor:
    """``vectors: (s, k)``, each with the sign that makes its largest entry positive."""
    return vectors * vectors.gather(0, _first_largest(vectors.square()).unsqueeze(0)).sign()


def _first_largest(sizes: Tensor) -> Tensor:
    """The place ``(k,)`` of the largest in each column of ``sizes: (s, k)``, ties apart."""
    return (sizes >= (1 - TIE) * sizes.amax(dim=0)).byte().argmax(dim=0)


def _basis(space: Tensor, count: int) -> Tensor:
    """The first ``count`` vectors of the basis of a space spanned by ``space: (s, d)``."""
    left = space.clone()  # row v is P e_v, in the coordinates of the space
    directions = []
    for _ in range(count):
        pivot = _first_largest(left.square().sum(dim=1, keepdim=True))[0]
        direction = left[pivot] / left[pivot].norm()
        directions.append(direction)
        left -= torch.outer(left @ direction, direction)
    return space @ torch.stack(directions, dim=1)
