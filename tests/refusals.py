"""What tests of refusals share: all reasons, and compositions, checked or not."""

from __future__ import annotations

import itertools
from typing import ClassVar

import pytest
from toybox import take_out

from psbench.backends.control import Control
from psbench.backends.simulated.simulation import Simulation
from psbench.core.aggregation import PayloadKind, ReplyKind
from psbench.core.collective import Jobs
from psbench.core.compatibility import misfits
from psbench.core.log import EventLog
from psbench.core.part import make_part
from psbench.core.strategy import DOMAINS, Strategy
from psbench.errors import ParameterError
from psbench.strategies.aggregation import Mean
from psbench.strategies.communication import LocalSGD
from psbench.testing import toy_experiment
from psbench.testing.toys import toy_cluster
from psbench.training.build import Workload


class Stateless(Jobs):
    """What MapReduce is: tasks that come and go."""

    name: ClassVar[str] = "refused_stateless"


class BareModels(Mean):
    """Has workers send models, and does not say what to do with them."""

    name: ClassVar[str] = "refused_bare_models"
    payload: ClassVar[PayloadKind] = "parameters"


class TwoVectors(Mean):
    """Has pushes carry a vector beside."""

    name: ClassVar[str] = "refused_two_vectors"
    payload: ClassVar[PayloadKind] = "difference"
    carries: ClassVar[tuple[str, ...]] = ("control",)


class TwoModels(TwoVectors):
    """The same of models."""

    name: ClassVar[str] = "refused_two_models"
    payload: ClassVar[PayloadKind] = "parameters"


class GivesTwo(LocalSGD):
    """Gives both."""

    name: ClassVar[str] = "refused_gives_two"

    def payload(self, w, state, own):
        return {"vector": super().payload(w, state, own), "control": w}


class SendsState(TwoVectors):
    """Sends a vector of its state with the model."""

    name: ClassVar[str] = "refused_sends_state"
    carries: ClassVar[tuple[str, ...]] = ()
    sends: ClassVar[tuple[str, ...]] = ("control",)


class AnswersOtherwise(SendsState):
    """Is to send it with an aggregate."""

    name: ClassVar[str] = "refused_answers_otherwise"
    reply: ClassVar[ReplyKind] = "aggregate"


take_out("refused_")

#: each row of `misfits` by the name of its test below
ROWS = {
    "who_may_never_push": "may never push, which would block",
    "all_push_together": "all workers push together",
    "missed_aggregates": "workers outside the commit would not receive it",
    "lost_steps": "takes local steps, which would be lost",
    "answers_to_others": "replies only to the workers of a commit, but",
    "answers_in_part": "answers that are independent of each other",
    "no_model_to_send": "have no models of their own, but",
    "no_model_to_apply_to": "to apply an aggregate of",
    "interrupted_overlap": "would cancel that work",
    "sums_taken_for_means": "would count each as one step",
    "means_taken_for_sums": "interprets each push as a sum over steps",
    "models_added_up_as_directions": "a weighted sum of models is not a descent direction",
    "pushes_that_only_their_sum_is_left_of": "sums pushes in transit",
    "blocks_of_all": "treats a commit as the work of all workers",
    "one_push_against_a_state": "weights one push against its own state",
    "replicas_that_overlap": "needs replicas of one model",
    "chunks_unknown": "sets the sizes of data chunks, but",
    "progress_not_reported": "uses the workers' progress within a batch",
    "recut_without_a_barrier": "changes batch sizes at barriers",
    "a_ring_of_some": "needs all workers in each operation",
    "bits_that_belong_together": "sums float vectors in transit",
    "sums_rounded_without_a_residual": "rounds sums in transit",
    "tasks_that_keep_nothing": "keep no state between steps",
    "tasks_that_hand_on_floats": "return 32-bit floats, but",
    "parts_of_two_families": "for workers that mix their own models without a server, but",
    "neighbours_not_waited_for": "mixes the models that a worker's neighbours sent",
    "neighbours_waited_for_in_vain": "waits for models from neighbours",
    "pairs_that_wait_for_all": "lets each pair exchange independently",
    "groups_that_nobody_forms": "mixes the models of a group of waiting workers",
    "groups_that_nobody_mixes": "commits the pushes of groups",
    "groups_across_a_graph": "forms groups of any workers",
    "parts_of_a_mixture": "mixes models, which codecs do not support",
    "writes_that_take_no_time": "writing takes none",
    "overlaps_that_lose_nothing": "would lose nothing by it",
    "no_memory_to_write_into": "workers write into one memory, and",
    "codecs_of_what_is_not_sent": "sends no vectors, but",
    "a_regions_model_taken_for_a_gradient": "would interpret as a gradient",
    "no_model_of_a_region": "continues from the model in the reply to a push",
    "a_share_of_the_model": "a worker holds a share of the model",
    "shares_of_the_dropped": "each share of the model is on one worker only",
    "shares_that_are_nowhere_else": "gathers shares of the model unencoded",
    "tensors_in_part": "uses norms of whole tensors, but",
    "fragments_at_different_steps": "commits pushes of several fragments together",
    "fragments_without_a_step": "does not step along the difference",
    "numbers_of_whole_vectors": "measures whole vectors",
    "codecs_of_whole_vectors": "its codecs have residuals of whole vectors",
    "fragments_that_move": "moves parameters meanwhile",
    "vectors_that_are_not_given": "pushes one; override 'payload'",
    "several_vectors_in_part": "but the fragments of",
    "several_vectors_as_differences": "expects pushes with several models, but the codec",
    "several_vectors_that_wait": "a push that waits for a commit",
    "several_vectors_that_move": "parameter_server moves the entries of one only",
    "state_beside_no_model": "replies without the model",
    "state_beside_a_fragment": "replies with fragments, which exclude them",
    "state_of_a_share": "each worker holds a share of the model",
    "sums_that_depend_on_sums": "sums several times per version",
    "control_variates_that_nobody_gives": "needs the control variates of workers, but",
    "corrections_that_nobody_sends": "corrects its steps by a global control variate",
    "a_table_that_is_never_filled": "needs a commit with a push of every worker",
    "gradients_added_to_estimates": "adds pushes to gradient estimates, but",
    "differences_taken_for_gradients": "sends differences from gradient estimates",
    "differences_sent_twice": "already corrects compression errors",
    "estimates_of_void_pushes": "and the worker sum the same pushes, but",
    "no_memory_between_tasks": "a worker's memory of its samples",
    "samples_of_a_chunk": "chooses from a worker's shard",
    "sums_of_something_else": "encodes its sums itself",
}

PLAIN = {
    "consistency": "bsp",
    "aggregation": "mean",
    "communication": "every_step",
    "stragglers": "fixed",
    "placement": "parameter_server",
    "selection": "reshuffle",
}
GRADIENTS = {"name": "exchange", "aggregate": "gradient"}
PIECES = {"name": "fragments", "local_steps": 4, "num_fragments": 2, "overlap": 0}
LOCAL = {"name": "local_sgd", "local_steps": 4}
MOVING = {"name": "parameter_server", "servers": 2, "reassignment": "by_load"}
#: what is refused of pushes that are not one vector of all entries
OF_PUSHES = {
    "tensors_in_part": {
        "aggregation": "radial_outer",
        "communication": "local_sgd",
        "placement": {"name": "parameter_server", "servers": 2},
    },
    "fragments_at_different_steps": {
        "consistency": {"name": "k_batch_asp", "k": 2},
        "aggregation": "fedbuff",
        "communication": PIECES,
    },
    "fragments_without_a_step": {"aggregation": "model_average", "communication": PIECES},
    "numbers_of_whole_vectors": {"aggregation": "sparse_outer", "communication": PIECES},
    "codecs_of_whole_vectors": {"aggregation": "outer", "communication": PIECES | {"codec": "top_k"}},
    "fragments_that_move": {"aggregation": "outer", "communication": PIECES, "placement": MOVING},
    "vectors_that_are_not_given": {"aggregation": TwoVectors(), "communication": "local_sgd"},
    "several_vectors_in_part": {"aggregation": TwoVectors(), "communication": PIECES},
    "several_vectors_as_differences": {"aggregation": TwoModels(), "communication": GivesTwo(codec="top_k")},
    "several_vectors_that_wait": {
        "consistency": {"name": "k_batch_asp", "k": 2},
        "aggregation": TwoVectors(),
        "communication": GivesTwo(),
    },
    "several_vectors_that_move": {
        "aggregation": TwoVectors(),
        "communication": GivesTwo(),
        "placement": MOVING,
    },
    "state_beside_no_model": {"aggregation": AnswersOtherwise(), "communication": "selsync"},
    "state_beside_a_fragment": {"aggregation": SendsState(), "communication": PIECES},
    "state_of_a_share": {
        "aggregation": SendsState(),
        "communication": "local_sgd",
        "placement": "sharded",
    },
    "sums_that_depend_on_sums": {"aggregation": "power_sgd"},
    "sums_of_something_else": {
        "aggregation": "power_sgd",
        "communication": {"name": "every_step", "codec": "fp16"},
        "placement": "all_reduce",
    },
}


def unchecked(**parts):
    """The composition, whether it is refused or not."""
    made = {domain: make_part(domain, parts.get(domain, PLAIN[domain])) for domain in DOMAINS}
    return Strategy.model_construct(name="unchecked", lr_scaling="none", **made)


def refused(row, **parts):
    """Check that a composition is refused for that reason, and return it nonetheless."""
    with pytest.raises(ParameterError) as raised:
        Strategy(**PLAIN | parts)
    composition = unchecked(**parts)
    assert str(raised.value).endswith(misfits(composition)[0])
    assert [reason for reason in misfits(composition) if ROWS[row] in reason]
    return composition


def simulated(strategy, updates, **cluster):
    """A simulation that has ended, and the number of steps that were computed to their end."""
    experiment = toy_experiment(strategy, cluster=toy_cluster(**cluster), stop={"updates": updates})
    simulation = Simulation(Workload.build(experiment), EventLog(), Control())
    count, result = itertools.count(), simulation.cluster.steps.result
    simulation.cluster.steps.result = lambda *job: (next(count), result(*job))[1]
    simulation.run()
    return simulation, next(count)
