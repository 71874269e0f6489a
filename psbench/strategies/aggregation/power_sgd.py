"""PowerSGD: sends low-rank factors instead of the gradients of large tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import NamedTuple

from psbench.core import Action, Apply, ClusterView, Push, Pushed, State, Step, Vector, parameter
from psbench.core.aggregation import Exchanging
from psbench.core.arithmetic import Shapes, apart, end_to_end
from psbench.seeds import Streams
from psbench.strategies.aggregation.mean import Mean, sample_shares

SOURCE = "Vogels et al. 2019 (PowerSGD), Alg. 1; torch's powerSGD_hook"
#: a column of which less is left than this, when those before it are taken out of it, was made of them
_DEPENDENT = 1e-6


class _Matrix(NamedTuple):
    """A compressed tensor as a matrix: its start in the vector, its sizes, its rank."""

    number: int
    start: int
    rows: int
    columns: int
    rank: int

    def of(self, vector: Vector) -> Vector:
        """Return the matrix's entries in a vector of the model's length, (rows, columns)."""
        return vector[self.start : self.start + self.rows * self.columns].view(self.rows, self.columns)

    def factor(self, vector: Vector) -> Vector:
        """Return the position of Q in a vector of the model's length, (columns, rank)."""
        return vector[self.start : self.start + self.columns * self.rank].view(self.columns, self.rank)


class PowerSGD(Mean):
    """Exchange gradients of matrices as products of rank r, found by one step of the power method.

    A tensor is a matrix M of n rows (its first size) and m columns (the others together). With M_i the
    gradient of worker i and what its last one lost, weighted by its share p_i of the samples:

        P = sum_i p_i M_i Q; P <- orthogonal(P); Q <- sum_i p_i M_i^T P; out = P Q^T; e_i = M_i - out

    The next update begins with this Q, orthogonalised. Tensors for which that does not pay travel whole, with
    all P in one sum; all Q are the second. 4 r (n + m) bytes a matrix in the place of 4 n m.

    Parameters
    ----------
    rank : int, columns, >= 1
        r, at most n and m.
    min_compression_rate : float, > 0
        A tensor is compressed if (n + m) r times this is less than n m.
    error_feedback, warm_start : bool
        Whether e_i is part of the next M_i, and Q of the next update; else each is 0, and drawn.
    epsilon : float, > 0
        Added to the norm of a column; torch has 0, with which a column of zeros makes NaN.

    Notes
    -----
    Reduces to: `all_reduce` before `start_iter`, or if no tensor is compressed; to rounding at full rank,
    where e_i is the difference of a worker's gradient from the mean and not 0. sum_i p_i e_i + out is what
    was to be sent in any case, but each e_i random-walks where workers' data differ.
    A worker that is lost takes its e_i along. A switch to another composition adds it to the first pushes.
    torch has a third sum for the tensors that travel whole, keeps residuals for them too (here 0), and
    orthogonalises more than two columns by QR. Our reading: columns are taken out of the next ones twice, a
    column that is made of those before is 0, and one of Q that is 0 is drawn again, as it would stay 0.
    torch's default of `start_iter` is 1,000, its advice a tenth of all steps.

    Examples
    --------
    >>> part = PowerSGD(rank=2, start_iter=10)
    >>> list(part.sums([(20, 30), (20,)], version=9)), part.sums([(20, 30), (20,)], version=10)
    ([], [60, 60])
    """

    name = "power_sgd"
    source = SOURCE
    conserves_sums = True

    rank: int = parameter(1, "columns of the matrices that are sent", unit="columns", source=SOURCE, ge=1)
    # torch: 1,000; a laptop's runs have 500 to 2,000 updates
    start_iter: int = parameter(
        100, "updates with full gradients before compression starts", unit="updates", source=SOURCE, ge=0
    )
    min_compression_rate: float = parameter(
        2.0, "smallest compression ratio at which a tensor is compressed", source=SOURCE, gt=0
    )
    error_feedback: bool = parameter(True, "add the error of one push to the next", source=SOURCE)
    warm_start: bool = parameter(True, "start from the last update's factor", source=SOURCE)
    epsilon: float = parameter(1e-8, "added to the norm of a column", source="our reading", gt=0)
    first_draw: int = parameter(0, "seed of the first random factor", source=SOURCE, ge=0)

    def on_commit(self, pushes: list[Push], view: ClusterView) -> list[Action]:
        """Weigh each push by its samples, and pass the base version to the update."""
        return [Apply(pushes, sample_shares(pushes), {"version": view.version})]

    def sums(self, shapes: Shapes, version: int) -> Sequence[int]:
        """Return the entries of all P and uncompressed tensors, and of all Q."""
        matrices = self._matrices(shapes, version)
        if not matrices:
            return ()
        whole = sum(map(prod, shapes)) - sum(each.rows * each.columns for each in matrices)
        first = whole + sum(each.rows * each.rank for each in matrices)
        return [first, sum(each.columns * each.rank for each in matrices)]

    def exchange(
        self, mine: Vector, state: State, shapes: Shapes, numbers: Mapping[str, float]
    ) -> Exchanging:
        """Compute a worker's part: its P, then its Q."""
        version = int(numbers["version"])
        matrices = self._matrices(shapes, version)
        if not matrices:
            return {"vector": (yield mine)}
        starts = [self._orthogonal(self._factor(each, state, mine, version)) for each in matrices]
        own = [each.of(mine) @ q for each, q in zip(matrices, starts, strict=True)]
        total = yield end_to_end([*_beside(matrices, mine), *own])
        out, factors = mine.new_zeros(mine.shape), mine.new_zeros(mine.shape)
        beside = _beside(matrices, out)
        pieces = apart(total, [piece.numel() for piece in (*beside, *own)])
        for place, piece in zip(beside, pieces, strict=False):
            place.copy_(piece)
        ps = [
            self._orthogonal(piece.view(each.rows, each.rank))
            for each, piece in zip(matrices, pieces[len(beside) :], strict=True)
        ]
        total = yield end_to_end([each.of(mine).T @ p for each, p in zip(matrices, ps, strict=True)])
        pieces = apart(total, [each.columns * each.rank for each in matrices])
        for each, p, piece in zip(matrices, ps, pieces, strict=True):
            q = each.factor(factors).copy_(piece.view(each.columns, each.rank))
            each.of(out).copy_(p @ q.T)
        return {"vector": out, "factors": factors} if self.warm_start else {"vector": out}

    def left_out(
        self, mine: Vector, total: Pushed, state: State, shapes: Shapes, numbers: Mapping[str, float]
    ) -> Vector | None:
        """Return e_i = M_i - out; 0 for tensors that are sent uncompressed."""
        matrices = self._matrices(shapes, int(numbers["version"]))
        if not (self.error_feedback and matrices):
            return None
        residual = mine.new_zeros(mine.shape)
        for each in matrices:
            each.of(residual).copy_(each.of(mine) - each.of(total.vector))
        return residual

    def update(self, x: Vector, pushes: Sequence[Pushed], state: State, step: Step) -> None:
        """Step along the aggregate, and keep all Q for the next update, each in its tensor's place."""
        (total,) = pushes
        if "factors" in total.more:
            state["factors"] = total.more["factors"]
        step.move(total.vector)

    def _matrices(self, shapes: Shapes, version: int) -> list[_Matrix]:
        """Return the tensors that are compressed at the update of that version."""
        found, start = [], 0
        for number, shape in enumerate(shapes if version >= self.start_iter else ()):
            size = prod(shape)
            if len(shape) > 1 and size:
                rows = shape[0]
                columns = size // rows
                rank = min(self.rank, rows, columns)
                if (rows + columns) * rank * self.min_compression_rate < size:
                    found.append(_Matrix(number, start, rows, columns, rank))
            start += size
        return found

    def _factor(self, matrix: _Matrix, state: State, like: Vector, version: int) -> Vector:
        """Return the initial Q: the last one, with zero columns redrawn, or a new random one."""
        known = self.warm_start and "factors" in state
        last = matrix.factor(state["factors"]) if known else like.new_zeros(matrix.columns, matrix.rank)
        dead = last.abs().sum(0) == 0
        if not bool(dead.any()):
            return last
        draws = Streams(self.first_draw).generator(self.name, matrix.number, version)
        drawn = like.new_tensor(draws.standard_normal((matrix.columns, matrix.rank)))
        return last + drawn * dead

    def _orthogonal(self, matrix: Vector) -> Vector:
        """Return the matrix with orthonormal columns, by Gram-Schmidt."""
        matrix = matrix.clone()
        for i in range(matrix.shape[1]):
            column, before = matrix[:, i], matrix[:, :i]
            length = float(column.norm())
            for _ in range(2 if i else 0):  # once leaves what was rounded
                column.sub_(before @ (before.T @ column))
            left = float(column.norm())
            column.mul_(0.0 if left <= _DEPENDENT * length else 1.0 / (left + self.epsilon))
        return matrix


def _beside(matrices: Sequence[_Matrix], vector: Vector) -> list[Vector]:
    """Return the parts of a vector outside these matrices, as views."""
    found, start = [], 0
    for each in matrices:
        found.append(vector[start : each.start])
        start = each.start + each.rows * each.columns
    return [*found, vector[start:]]
