"""Checks of a strategy's arithmetic on a few entries: in slices, in a ring, after save and load."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from zlib import crc32

import torch
from torch import Tensor

from psbench.core import Apply, Orders, Pushed, Release, Strategy
from psbench.core.arithmetic import ToAll
from psbench.errors import ProtocolError
from psbench.optimization.optimizer import SGD
from psbench.seeds import Streams
from psbench.testing.invariants import BrokenContract, MisfitOrBroken
from psbench.testing.scripted_cluster import LAYOUT
from psbench.training.local_model import LocalModel
from psbench.training.server import Server
from psbench.training.trainer import StepResult

ENTRIES = 7
_WHOLE = (slice(0, ENTRIES),)
#: of the tensors that these are
SHAPES = ((3, 2), (1,))
_SLICES = (slice(0, 2), slice(2, 3), slice(3, ENTRIES))
#: of a run, as each checks every one of them
_UPDATES = 30
_PUSHES = 4  # of a worker
OPTIMIZER = SGD(lr=0.1, momentum=0.5)
NONE = torch.zeros(0)

#: makes the vector of a name
_Draw = Callable[[str], Tensor]


def check_update(strategy: Strategy, updates: Sequence[Apply]) -> None:
    """Check the result of an aggregation part's `update` on its own commits.

    Parameters
    ----------
    strategy : Strategy
    updates : sequence of Apply
        In order; as an engine hands them to a backend.

    Raises
    ------
    BrokenContract
        Names the method, the commit and the likely cause.
    """
    part, updates = strategy.aggregation, updates[:_UPDATES]
    who = f"{type(part).__name__}.update"
    plain, before = _updated(strategy, updates, _WHOLE, drawn), part.state_dict()
    _updated(strategy, updates[:-1], _WHOLE, drawn)  # or a count of every other would be where it was
    if not all(map(torch.equal, plain, _updated(strategy, updates, _WHOLE, drawn))):
        raise BrokenContract(
            f"{who}: the same pushes give different parameters the second time. Most likely it draws "
            "random numbers, or keeps values outside `state`"
        )
    if updates and torch.equal(plain[-1], drawn("start")):
        raise BrokenContract(
            f"{who}: the parameters never move. Change `x` in place: x.add_(...), x.copy_(...)"
        )
    sliced = not (part.exchanges or part.per_tensor)
    if sliced and not is_close(plain, _updated(strategy, updates, _SLICES, drawn)):
        raise BrokenContract(
            f"{who}: on three servers, each with a slice, the parameters differ from those on one. Most "
            "likely it sums over entries (a norm, a mean); request scalar products instead: `measures = "
            "('dot',)`"
        )
    if not is_close(plain, _updated(strategy, updates, _WHOLE, drawn, reloads=True)):
        raise BrokenContract(
            f"{who}: saving and loading its state before every commit changes the parameters. Most likely "
            "it keeps values outside `state`"
        )
    linear = part.linear and not part.exchanges
    if linear and not is_close(plain, _updated(strategy, updates, _WHOLE, drawn, added_up=True)):
        raise BrokenContract(
            f"{who}: it declares `linear`, on which a ring relies, but the weighted sum of the pushes "
            "gives different parameters than the pushes themselves"
        )
    for vector in _updated(strategy, updates, _WHOLE, lambda name: torch.zeros(ENTRIES)):
        if not bool(vector.isfinite().all()):
            raise BrokenContract(f"{who}: pushes of zeros give NaN or infinity: does it divide by a norm?")
    if part.state_dict() != before:
        raise BrokenContract(f"{who}: changes a private attribute, which servers do not have; use `state`")


def _updated(
    strategy: Strategy,
    updates: Sequence[Apply],
    slices: Sequence[slice],
    draw: _Draw,
    *,
    reloads: bool = False,
    added_up: bool = False,
) -> list[Tensor]:
    """Return the parameters after each commit, as the servers of these slices compute them."""
    part, versions = strategy.aggregation, [draw("start")]
    fragments = [some_fragments(strategy, range(ENTRIES)[cut]) for cut in slices]
    servers = [
        Server(versions[0][cut], NONE, OPTIMIZER, 1, part, own, shapes=SHAPES)
        for cut, own in zip(slices, fragments, strict=True)
    ]
    for number, apply in enumerate(updates):
        pushes = pushes_of(strategy, apply, draw, versions)
        if added_up and len(pushes) > 1:
            total = sum((push.vector * push.weight for push in pushes), torch.zeros_like(pushes[0].vector))
            pushes = [Pushed(total, NONE, samples=sum(push.samples for push in pushes))]
        for place, cut in enumerate(slices):
            if reloads:
                saved = servers[place].tensors()
                own = fragments[place]
                renewed = part.fresh()
                servers[place] = Server(versions[0][cut], NONE, OPTIMIZER, 1, renewed, own, shapes=SHAPES)
                servers[place].load(saved)
            sent = [replace(p, vector=_sent(p.vector, cut), base=_cut(p.base, cut)) for p in pushes]
            if apply.fragment >= 0:
                entries = fragments[place][apply.fragment]
                sent = [replace(push, vector=entries.of(push.vector)) for push in sent]
            apply_to(servers[place], sent, apply, f"{type(part).__name__}.update, commit {number}")
        versions.append(torch.cat([server.parameters for server in servers]))
    return versions[1:]


def pushes_of(
    strategy: Strategy, apply: Apply, draw: _Draw, versions: Sequence[Tensor] | Mapping[int, Tensor]
) -> list[Pushed]:
    """Return the pushes of a commit with drawn vectors."""
    carries = strategy.aggregation.carries
    return [
        Pushed(
            vector=torch.cat([draw(f"push {push.id} {name}".rstrip()) for name in ("", *carries)]),
            buffers=NONE,
            worker=push.worker,
            samples=push.samples,
            steps=push.steps,
            base=versions[push.base_version] if strategy.aggregation.needs_base else None,
            weight=weight,
        )
        for push, weight in zip(apply.pushes, apply.weights, strict=True)
    ]


def _sent(vector: Tensor, cut: slice) -> Tensor:
    """Return one server's part of a push: its entries of each vector, concatenated."""
    return vector.view(-1, ENTRIES)[:, cut].reshape(-1)


def _cut(vector: Tensor | None, cut: slice) -> Tensor | None:
    return None if vector is None else vector[cut].clone()


def apply_to(server: Server, pushes: list[Pushed], apply: Apply, where: str) -> None:
    """Make a version, and check that its pushes do not change."""
    sent = [push.vector for push in pushes]
    before = [vector.clone() for vector in sent]
    with named(where):
        if server.aggregation.exchanges:
            pushes = [_exchanged(server, pushes, apply)]
        server.apply(pushes, replace(apply, numbers=dict(apply.numbers)))
    if not all(map(torch.equal, sent, before)):
        raise BrokenContract(f"{where}: changes the vector of a push; make a new one: push.vector * 2")
    if server.aggregate is not None and server.aggregation.reply == "model":
        raise BrokenContract(f"{where}: calls step.reply, but the part's `reply` is 'model'")


def _exchanged(server: Server, pushes: list[Pushed], apply: Apply) -> Pushed:
    """Return the result of an exchange, after checking that all members agree and that `sums` is right."""
    part, before = server.aggregation, {name: each.clone() for name, each in server.tensors().items()}
    found = server.exchange(pushes, apply.numbers)
    declared: list[int | ToAll] = []
    member = part.exchange(pushes[0].vector, server.state, SHAPES, apply.numbers)
    with suppress(StopIteration):
        given = next(member)
        while True:
            if isinstance(given, Tensor):
                declared.append(len(given))
                given = member.send(given.clone())
            else:
                declared.append(ToAll(len(given)))
                given = member.send([(1.0, given)])
    who = f"{type(part).__name__}.exchange"
    sums = [*part.sums(SHAPES, apply.pushes[0].base_version)] or [ENTRIES]
    if declared != sums:
        raise BrokenContract(f"{who}: its sums have {declared} entries, but `sums` returns {sums}")
    if not all(torch.equal(each.vector, found[0].vector) for each in found):
        raise BrokenContract(
            f"{who}: members return different vectors. Return a result of the sums only; a member's own "
            "remainder belongs in `left_out`"
        )
    after = server.tensors()
    if before.keys() != after.keys() or not all(torch.equal(before[name], after[name]) for name in before):
        raise BrokenContract(f"{who}: changes `state`; return the vector, and let `update` keep it")
    left = [server.left_out(push.vector, found[0], apply.numbers) for push in pushes]
    if part.conserves_sums and any(each is not None for each in left):
        sent = sum(
            push.weight * (push.vector if each is None else push.vector - each)
            for push, each in zip(pushes, left, strict=True)
        )
        if not isinstance(sent, Tensor) or not is_close([found[0].vector], [sent]):
            raise BrokenContract(
                f"{type(part).__name__}.left_out: it declares `conserves_sums`, but the pushes minus their "
                "remainders do not sum to the aggregate"
            )
    return found[0]


# -------------------------------------------------------------------- the worker's half


def check_half(strategy: Strategy, releases: Sequence[Release]) -> None:
    """Check the worker methods of a communication part on models and gradients.

    Parameters
    ----------
    strategy : Strategy
    releases : sequence of Release
        Of an engine; those of the worker that is released first are taken for their orders.

    Raises
    ------
    BrokenContract
        Names the method and the likely cause.
    """
    who = type(strategy.communication).__name__
    orders = [each.orders for each in releases if each.worker == releases[0].worker][:_PUSHES]
    part, before = strategy.communication, strategy.communication.state_dict()
    plain = _payloads(strategy, orders, drawn)
    _payloads(strategy, orders[:1], drawn)  # or a count of every other would be where it was
    if part.state_dict() != before:
        raise BrokenContract(
            f"{who}: the worker's half changes a private attribute, which live workers do not have; use "
            "`state`"
        )
    if not all(map(torch.equal, plain, _payloads(strategy, orders, drawn))):
        raise BrokenContract(
            f"{who}: the same gradients give different pushes the second time. Most likely it draws random "
            "numbers, or keeps values outside `state`"
        )
    if not is_close(plain, _payloads(strategy, orders, drawn, reloads=True)):
        raise BrokenContract(
            f"{who}: saving and loading a worker's state after every push changes the next pushes. Most "
            "likely it keeps values outside `state`"
        )
    for payload in _payloads(strategy, orders, lambda name: torch.zeros(ENTRIES)):
        if not bool(payload.isfinite().all()):
            raise BrokenContract(f"{who}: models and gradients of zeros give pushes of NaN or infinity")


def _payloads(
    strategy: Strategy, orders: Sequence[Orders], draw: _Draw, *, reloads: bool = False
) -> list[Tensor]:
    """Return the pushes of a worker that takes two steps for each push and receives answers."""
    who = type(strategy.communication).__name__
    fragments = some_fragments(strategy, range(ENTRIES))
    model, found, copies = LocalModel(strategy, OPTIMIZER, fragments), [], []
    answered, fragment = strategy.aggregation.reply != "model", -1
    for push, order in enumerate(orders):
        given = answer_of(strategy, draw, f"answer {push}")
        if fragment >= 0:
            given = fragments[fragment].of(given)
        model.obey(order)
        before = given.clone()
        with named(f"{who}.receive" if push and answered else f"{who}.begin"):
            if push and answered:
                model.receive(given)
            else:
                model.load(given, NONE, fragment)
        fragment = order["fragment"] if fragments else -1
        for number in range(2):
            gradient = draw(f"gradient {push} {number}")
            with named(f"{who}.step"):
                model.stepped(StepResult(gradient, NONE, 0.0), 4, 0.0)
            if not torch.equal(gradient, draw(f"gradient {push} {number}")):
                raise BrokenContract(f"{who}.step: changes the gradient; make a new vector")
            if not number:
                with named(f"{who}.keep"):
                    model.keep()
        if not torch.equal(given, before):
            raise BrokenContract(f"{who}: changes the received model, which other workers share; copy it")
        with named(f"{who}.payload"):
            payload = model.payload(fragment)
        entries = draw("start") if fragment < 0 else fragments[fragment].of(draw("start"))
        vectors = strategy.vectors_of_a_push
        if getattr(payload, "shape", None) != (vectors * len(entries),):
            raise BrokenContract(
                f"{who}.payload: returns {type(payload).__name__}, not a vector as long as `w`"
            )
        if model.notes_pushes:
            with named(f"{who}.sent"):
                model.sent(payload)
        found.append(payload)
        copies.append(payload.clone())
        if reloads:
            saved = model.state_dict()
            model = LocalModel(strategy, OPTIMIZER, fragments)
            if strategy.computes_on_workers:
                model.load_state_dict(saved)
    if not is_close(found, copies):
        raise BrokenContract(f"{who}.payload: later steps change the returned vector; return a copy")
    return copies


def answer_of(strategy: Strategy, draw: _Draw, name: str) -> Tensor:
    """Return a worker's answer under a name: the model, followed by the sent state."""
    return torch.cat([draw(f"{name} {more}".rstrip()) for more in ("", *strategy.aggregation.sends)])


# -------------------------------------------------------------------- tools


class Some:
    """Some entries of a vector, by index."""

    def __init__(self, places: list[int]) -> None:
        self.places = torch.tensor(places, dtype=torch.int64)

    @property
    def size(self) -> int:
        """Number of entries."""
        return len(self.places)

    def of(self, vector: Tensor) -> Tensor:
        """Return these entries."""
        return vector[self.places]

    def put(self, vector: Tensor, part: Tensor) -> None:
        """Write these entries."""
        vector[self.places] = part


def some_fragments(strategy: Strategy, held: range) -> list[Some]:
    """Return the indices of each fragment's entries, for an arbitrary partition."""
    count = len(strategy.communication.fragments(LAYOUT))
    return [Some([e - held.start for e in held if e % count == i]) for i in range(count)]


def drawn(name: str) -> Tensor:
    """Return a fixed random vector for a name, without zeros."""
    draws = Streams(0).generator("arithmetic", crc32(name.encode()))
    return torch.from_numpy(draws.standard_normal(ENTRIES)).float()


def is_close(left: Sequence[Tensor], right: Sequence[Tensor]) -> bool:
    """Return whether vectors are equal up to rounding."""
    pairs = zip(left, right, strict=True)
    return all(torch.allclose(a, b, rtol=1e-4, atol=1e-6, equal_nan=True) for a, b in pairs)


@contextmanager
def named(where: str) -> Iterator[None]:
    """Turn an exception of a part's arithmetic into one line that names the method and the case."""
    try:
        yield
    except BrokenContract:
        raise
    except ProtocolError as error:
        raise BrokenContract(f"{where}: {error}") from error
    except KeyError as error:
        raise MisfitOrBroken(
            f"{where}: there is no {error.args[0]!r}. Numbers are given to Apply(pushes, weights, "
            "{'name': number}) by on_commit; create a vector of the state with state.vector(name)"
        ) from error
    except Exception as error:
        raise BrokenContract(f"{where}: raised {type(error).__name__}: {error}") from error
