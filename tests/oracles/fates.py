"""What became of every gradient, and which classes a model was trained on, in plain loops over the log."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from oracles.story import Row, with_absences, workers_of

from psbench.results.run import Run


@dataclass(frozen=True)
class Piece:
    """A gradient, or a step that was to become one: whose it was, why it was not used, or its age."""

    worker: int
    fate: str
    age: int | None
    samples: int


def pieces_of(rows: list[Row]) -> list[Piece]:
    """Return a piece for each push, for each step kept after a vote, and for each step that was lost."""
    made = {row.id: row for row in rows if row.kind == "PUSH"}
    open_pushes = {**made}
    found: list[Piece] = []
    for row in rows:
        if row.kind == "APPLY":
            del open_pushes[row.id]
            age = row.version - made[row.id].version - 1
            fate = "used" if row.loss else "applied with weight 0"
            found.append(Piece(row.worker, fate, age if row.loss else None, row.samples))
        elif row.kind == "DISCARD":
            found.append(Piece(row.worker, row.text, None, open_pushes.pop(row.id).samples))
        elif row.kind == "RELEASE" and row.samples:
            found.append(Piece(row.worker, "used", 0, row.samples))
        elif row.kind == "CANCEL":
            found.append(Piece(row.worker, "cancelled", None, 0))
    doing: dict[int, str] = {}
    for row in with_absences(rows):
        if row.kind == "LEAVE" and doing.get(row.worker) == "RELEASE":
            found.append(Piece(row.worker, "its worker left", None, 0))
        if row.kind == "LEAVE" and doing.get(row.worker) == "VOTE":
            found.append(Piece(row.worker, "its worker left before an answer to its vote", None, 0))
        if row.kind in ("JOIN", "LEAVE", "RELEASE", "PUSH", "VOTE", "CANCEL"):
            doing[row.worker] = row.kind
    return found + [
        Piece(push.worker, "buffered at the end", None, push.samples) for push in open_pushes.values()
    ]


def starved(rows: list[Row]) -> list[str]:
    """Return a warning for each worker of whose gradients no tenth was used."""
    pieces, found = pieces_of(rows), []
    if not any(piece.fate == "used" for piece in pieces):
        return []
    for worker in workers_of(rows):
        fates = Counter(piece.fate for piece in pieces if piece.worker == worker)
        used, finished = fates.pop("used", 0), sum(1 for piece in pieces if piece.worker == worker)
        order = sorted(sorted(fates), key=lambda fate: fates[fate], reverse=True)
        why = ", ".join(f"{fates[fate]} {fate}" for fate in order)
        if finished == 0:
            text = "it finished no gradient, so the model never learned its shard"
        elif used == 0:
            text = f"0 of {finished} gradients used ({why}), so the model never learned its shard"
        elif finished >= 10 and 10 * used < finished:
            text = f"{used} of {finished} gradients used ({why}): it is starved"
        else:
            continue
        found.append(f"worker {worker}: {text}")
    return found


def shares_of_classes(run: Run, pieces: list[Piece]) -> list[float] | None:
    """Return the share of each class in what was used, a gradient for its worker's shard on average."""
    counts = run.meta["label_counts"]
    used = [piece for piece in pieces if piece.fate == "used"]
    if not counts or not used:
        return None
    found = [0.0] * len(run.meta["classes"])
    for piece in used:
        for number, count in enumerate(counts[piece.worker]):
            found[number] += piece.samples * count / sum(counts[piece.worker])
    return [each / sum(found) for each in found]


def class_distance(run: Run, pieces: list[Piece]) -> float | None:
    """Return half of the sum of differences to the classes' shares of the data."""
    shares = shares_of_classes(run, pieces)
    if shares is None:
        return None
    labels = run.experiment.data.load(_streams(run)).train_y.tolist()
    whole = [labels.count(number) / len(labels) for number in range(len(shares))]
    return sum(abs(a - b) for a, b in zip(shares, whole, strict=True)) / 2


def _streams(run: Run) -> Any:
    from psbench.seeds import Streams

    return Streams(run.experiment.seed)
