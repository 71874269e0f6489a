"""Every message that travels between the processes of a live run; a new one is added here.

A class is a kind of message, with a number that no other has; `decoder` says how it is encoded and what is
refused. Answers repeat the `tag` of the request. A push is named by its key: (worker, ticket). The kinds
that are sent in every step are in `step_messages`.

Over 400 lines because it is a list: every message stands in one place.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from msgspec import Struct

from psbench.backends.dask.protocol.decoder import Json, Message
from psbench.backends.dask.protocol.framing import StateDict
from psbench.backends.dask.protocol.roles import Address
from psbench.backends.dask.protocol.step_messages import LogRows as LogRows
from psbench.backends.dask.protocol.step_messages import PushMessage as PushMessage
from psbench.backends.dask.protocol.step_messages import ReleaseMessage as ReleaseMessage
from psbench.backends.dask.protocol.step_messages import RingPiece as RingPiece
from psbench.backends.dask.protocol.step_messages import Summand as Summand
from psbench.core.actions import Apply

#: the worker, and the ticket that its push repeats
PushKey: TypeAlias = tuple[int, int]
#: for each server the ranges of entries that it holds: from (included), to (excluded)
EntryRanges: TypeAlias = list[list[tuple[int, int]]]


class Update(Struct, array_like=True, forbid_unknown_fields=True):
    """The settings of an update, without its pushes; part of messages, see `Server.apply`."""

    lr_scale: float
    epoch: float
    momentum_scale: float
    numbers: dict[str, float]
    fragment: int = -1

    @classmethod
    def of(cls, apply: Apply) -> Update:
        """Return the settings of an update."""
        return cls(apply.lr_scale, apply.epoch, apply.momentum_scale, apply.numbers, apply.fragment)


# -------------------------------------------------------------------- connecting, failing, ending
class Hello(Message, kind=0):
    """The first message on a connection, after the run's key."""

    name: str


class Ping(Message, kind=5):
    """An empty message; a failure to send it shows that the peer is lost."""


class Ready(Message, kind=10):
    """A role is ready; a worker gives the address at which it listens for pieces of rings."""

    ring: Address | None = None


class Failed(Message, kind=11):
    """A task raised."""

    traceback: str


class PeerRefused(Message, kind=12):
    """A server or worker could not decode a message of that peer, and has closed the connection."""

    name: str
    reason: str


class ClosedStrangers(Message, kind=16):
    """The number of unknown connections that a server, a worker or the replica has closed so far."""

    count: int


class StopRun(Message, kind=13):
    """The run is over."""


class AskClock(Message, kind=14):
    """A worker asks for the coordinator's time."""


class Clock(Message, kind=15):
    """The coordinator's monotonic clock, in seconds."""

    time_s: float


# -------------------------------------------------------------------- client
class RequestStop(Message, kind=20):
    """The user's request to end the run, with or without a checkpoint to resume from."""

    checkpoint: bool


class RequestSwitch(Message, kind=21):
    """The user's request to switch to that composition, or to the other one."""

    to: int | None


class PressWorker(Message, kind=18):
    """A fault that the user injects into a worker; see `control.Press`."""

    worker: int
    what: Literal["lost", "back", "speed"]
    factor: float


class StoreCheckpoint(Message, kind=22):
    """A checkpoint to be written to a file of that name."""

    label: str
    state: Json
    tensors: StateDict


class RoleLost(Message, kind=25):
    """To the client: find another Dask worker for a role. From the client: there is none."""

    name: str


class RoleLeaves(Message, kind=26):
    """The Dask worker of a role is being retired: drop the role, or start it elsewhere."""

    name: str


class RoleGone(Message, kind=29):
    """The Dask worker of a role is lost, according to its scheduler."""

    name: str


class Incident(Message, kind=28):
    """An incident, in words; sent at once, as the coordinator may be lost too."""

    text: str


class Waiting(Message, kind=19):
    """The processes that the run has been waiting for, for some time, in words."""

    text: str


class RunMoves(Message, kind=27):
    """A server's Dask worker is being retired: the run has written a checkpoint, and will move."""

    name: str


class RunOutcome(Message, kind=23):
    """The outcome of the run, without its log; see `outcome.Outcome`."""

    status: str
    reason: str
    facts: Json
    tensors: StateDict


class OutcomeReceived(Message, kind=24):
    """The client has the outcome."""


# -------------------------------------------------------------------- workers
class StartTraining(Message, kind=30):
    """Training begins at that time of the coordinator's clock."""

    begin_s: float


class PeerAddresses(Message, kind=48):
    """Addresses of workers that the receiver is about to send to; see `Introductions`."""

    addresses: dict[int, Address]


class VoteMessage(Message, kind=31):
    """A worker's vote on whether to synchronise; see `events.Vote`."""

    ticket: int
    value: float
    samples: int
    compute_s: float


class ReportMessage(Message, kind=32):
    """Statistics of a step that is not pushed; see `events.Report`."""

    ticket: int
    stats: dict[str, float]


class ChangeSpeed(Message, kind=43):
    """Sets the worker's speed as a multiple of the profile's, as the user requested."""

    factor: float


class NewOrders(Message, kind=33):
    """Orders for a worker that is computing; see `actions.Tell`."""

    orders: dict[str, Any]


class Halt(Message, kind=34):
    """Halt: the worker's step is void, and so is its state under this composition."""


class ChangeComposition(Message, kind=35):
    """Hand-over to another of the experiment's compositions."""

    composition: int


class ChangeRanges(Message, kind=36):
    """The servers' partition changes."""

    ranges: EntryRanges


class SendModel(Message, kind=37):
    """Asks for the worker's own model, as it is now or after the next release."""

    tag: int
    with_release: bool


class WorkerModel(Message, kind=42):
    """A worker's own model."""

    tag: int
    tensors: StateDict


class SendWorkerState(Message, kind=38):
    """Asks for the worker's part of a checkpoint: its current state if it waits, else at its last release."""

    tag: int
    waits: bool


class WorkerState(Message, kind=39):
    """A worker's part of a checkpoint."""

    tag: int
    state: Json
    tensors: StateDict


class ResumeWorker(Message, kind=40):
    """A worker's part of a checkpoint, to continue from; without a `state` it begins with the composition."""

    composition: int
    ranges: EntryRanges | None
    state: Json | None
    tensors: StateDict


class UsageReport(Message, kind=41):
    """A worker's use of time; see `Usage`."""

    worker: int
    steps: int
    read_s: float
    compute_s: float
    cpu_s: float
    wall_s: float
    samples: list[tuple[float, float]]


class StampsReport(Message, kind=49):
    """Times of a worker's messages (received, created, sent), and its clock's differences; see `stamps`."""

    rows: str
    said: str
    clocks: list[tuple[float, float]]
    encoding: str
    decoding: str


# -------------------------------------------------------------------- All-Reduce
class RingPlace(Struct, array_like=True, forbid_unknown_fields=True):
    """A worker's place among the `size` members of a ring, and the one that it sends to; see `Ring`."""

    place: int
    size: int
    pieces: int
    following: int


class StartRing(Message, kind=50):
    """The receiver and the other members add up their payloads, and report when they have the sum.

    `place` is the receiver's in a ring of all. If there are `levels`, its places in rings of some, these add
    up instead. Its payload counts by `weight`, and its buffers by `share` of all. The sum is of `samples` and
    `steps`; `numbers` are those of the update that it is for. Where members send each other messages they
    have the `weights` of all, unless all are equal.
    """

    ring: int
    place: RingPlace
    levels: list[RingPlace]
    weight: float
    share: float
    samples: float
    steps: int
    numbers: dict[str, float]
    weights: list[float] = []


class ContributeZeros(Message, kind=47):
    """Contribute zeros to the next all-reduce (of `fragment`; -1: of the whole model).

    Sent where the workers that pushed for the next version were lost with their gradients.
    """

    fragment: int


class AbortRing(Message, kind=51):
    """The ring has lost a member; asks whether the receiver finished the ring."""

    ring: int


class RingVerdict(Message, kind=52):
    """Tells whether a member has the sum: sent once it has, or in answer to `AbortRing`."""

    ring: int
    finished: bool


class LoadReplica(Message, kind=53):
    """The model for a worker that has missed a version."""

    tensors: StateDict


class KeepShare(Message, kind=44):
    """The receiver keeps only its share of the model; it has this place in every ring."""

    place: RingPlace


class SendSum(Message, kind=54):
    """Asks a member for the sum of the last ring, which other members did not finish."""

    tag: int


class TakeSum(Message, kind=55):
    """The sum of a ring that the receiver did not finish."""

    ring: int
    tensors: StateDict


class MixModels(Message, kind=57):
    """Without a server: replace a model by the weighted sum of these workers' models.

    `worker` is the one that is released with its new model; another, of a pair, goes on with its own step.
    The models are those that were sent at the version `key`, or, below 0, as they are when all are asked. For
    `lost` workers none waits, nor for those of which a `NeighbourLost` with a higher `number` has come.

    If the workers of the row `meet`, each is sent its own order, and they add up their models in a ring. If
    one of them is lost, those without the sum go on with their own models.
    """

    worker: int
    key: int
    row: dict[int, float]
    number: int
    lost: list[int] = []
    meet: bool = False


class GiveModel(Message, kind=58):
    """Send the receiver's model to a joining worker.

    With `at_once` also while the receiver waits for a model itself: perhaps for one of that worker.
    """

    to: int
    key: int
    at_once: bool = False


class NeighbourLost(Message, kind=46):
    """Stop waiting for the messages of that worker that earlier orders announced: it is dead."""

    worker: int
    number: int


class SendAgain(Message, kind=45):
    """Send the latest models again to a joining worker, which may have lost them.

    They are for that release of it and those that follow.
    """

    to: int
    ticket: int


class PeerModel(Message, kind=59):
    """A worker's model for another worker, for that release or a later one."""

    worker: int
    key: int
    tensors: StateDict
    ticket: int = -1


class MakeVersion(Message, kind=56):
    """Make this version from the sum of that ring."""

    ring: int
    version: int
    update: Update


# -------------------------------------------------------------------- requests to servers and replicas
class SendState(Message, kind=60):
    """Asks for the current version, with the optimizer's states if `states`."""

    tag: int
    states: bool


class SendPayload(Message, kind=61):
    """Request for the payload of a push; a worker is asked for its payload of the next ring."""

    tag: int
    key: PushKey


class SendSliceState(Message, kind=62):
    """Asks a server for its part of a checkpoint, with the payloads of these pushes."""

    tag: int
    keys: list[PushKey]


class MeasureDistance(Message, kind=63):
    """Asks a server for the squared distance of the current version of its slice from a held one."""

    tag: int
    version: int


class MeasureMovement(Message, kind=79):
    """Asks the only server for the distance of the last update and of all later ones."""

    tag: int


class MeasureProducts(Message, kind=67):
    """Asks a server for its shares of scalar products: of two vectors by name, from start to stop."""

    tag: int
    keys: list[PushKey]
    products: list[tuple[str, str, int, int]]


class MeasureLoad(Message, kind=64):
    """Asks a server for the seconds that it was busy serving since it was asked last."""

    tag: int


class AskServed(Message, kind=68):
    """Asks a server for the report of its service."""


class ServedReport(Message, kind=69):
    """Seconds of a server's service, and its queue; see `stamps`."""

    serving: str
    decoding: str
    encoding: str
    updating: str
    waiting: str


class StateReply(Message, kind=65):
    """Requested tensors; for a checkpoint the first server adds its codecs' counters."""

    tag: int
    tensors: StateDict
    codec_counters: dict[str, int] | None = None


class NumberReply(Message, kind=66):
    """A requested number."""

    tag: int
    number: float


# -------------------------------------------------------------------- servers
class BeginSlice(Message, kind=70):
    """The slice that a server holds under a composition; `codec_counters` if it comes from a checkpoint."""

    composition: int
    ranges: EntryRanges | None
    codec_counters: dict[str, int] | None
    tensors: StateDict


class ApplyUpdate(Message, kind=71):
    """Make the next version from these pushes, in this order; `bases` are the versions they started from."""

    keys: list[PushKey]
    weights: list[float]
    samples: list[int]
    steps: list[int]
    bases: list[int]
    update: Update


class AnswerWorker(Message, kind=72):
    """Send a worker the slice, a fragment, or the last commit's aggregate, with its release."""

    worker: int
    ticket: int
    version: int
    aggregate: bool
    fragment: int = -1


class DiscardPush(Message, kind=73):
    """Drop the payload of a push."""

    key: PushKey


class ForgetWorker(Message, kind=74):
    """Forget which model a worker holds: it restarts."""

    worker: int


class WorkerGone(Message, kind=75):
    """Stop waiting for payloads of a dead worker, or accept the process that replaces it.

    `ticket` is the last that the dead process had.
    """

    worker: int
    is_back: bool
    ticket: int = -1


class HoldVersion(Message, kind=76):
    """Keep the current version for distances, unless it is kept already, and drop these."""

    version: int
    dropped: list[int]


class GiveEntries(Message, kind=77):
    """Asks for the entries that move to other servers; the listed pushes must have arrived."""

    tag: int
    keys: list[PushKey]
    ranges: EntryRanges


class TakeEntries(Message, kind=78):
    """Entries from other servers; answered, because pushes for them must arrive afterwards."""

    tag: int
    tensors: StateDict


# -------------------------------------------------------------------- evaluator
class EvaluateModel(Message, kind=80):
    """Asks for loss and accuracy of a model."""

    key: int
    tensors: StateDict


class EvaluationDone(Message, kind=81):
    """The evaluator's answer."""

    key: int
    values: dict[str, float]


class MeasureLoss(Message, kind=82):
    """Asks for the loss of a model on a number of fixed samples of a part of the data."""

    name: str
    which: Literal["train", "test"]
    samples: int
    tensors: StateDict


class LossMeasured(Message, kind=83):
    """The requested number with that name."""

    name: str
    number: float


# -------------------------------------------------------------------- replica
class KeepState(Message, kind=90):
    """The complete state of the run; `rows` and `texts` of the log precede it."""

    tag: int
    rows_before: int
    texts_before: int
    state: Json
    tensors: StateDict


class StateKept(Message, kind=91):
    """The replica has stored that state: answers that depend on it may be sent."""

    tag: int


class GiveStateBack(Message, kind=92):
    """The client requests the state after the loss of a server; it has `rows` and `texts` of the log."""

    rows: int
    texts: int
