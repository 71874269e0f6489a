"""What tests of refusals share: all reasons, and compositions, checked or not."""

from __future__ import annotations

import itertools
from typing import ClassVar

import pytest
from toybox import take_out

from psbench.backends.control import Control
from psbench.backends.simulated.simulation import Simulation
from psbench.core.aggregation import PayloadKind
from psbench.core.compatibility import misfits
from psbench.core.log import EventLog
from psbench.core.part import make_part
from psbench.core.parts import Placement
from psbench.core.strategy import DOMAINS, Strategy
from psbench.errors import ParameterError
from psbench.strategies.aggregation import Mean
from psbench.strategies.communication import EveryStep, LocalSGD
from psbench.testing import toy_experiment
from psbench.testing.toys import toy_cluster
from psbench.training.workload import Workload


class Stateless(Placement):
    """What MapReduce is: tasks that come and go."""

    name: ClassVar[str] = "refused_stateless"
    collective: ClassVar[bool] = True
    stateless_workers: ClassVar[bool] = True


class BareModels(Mean):
    """Has workers send models, and does not say what to do with them."""

    name: ClassVar[str] = "refused_bare_models"
    payload: ClassVar[PayloadKind] = "parameters"


class BareLocal(EveryStep):
    """Says that steps stay on the worker, and not what becomes of them."""

    name: ClassVar[str] = "refused_bare_local"
    local: ClassVar[bool] = True


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


take_out("refused_")

#: each row of `misfits` by the name of its test below
ROWS = {
    "who_may_never_push": "a worker that may never push would stall the others",
    "all_push_together": "all push together, which needs a barrier",
    "missed_aggregates": "would miss its aggregate",
    "lost_steps": "steps kept on the worker would be lost",
    "answers_to_others": "answers the pushers of a commit, of which",
    "answers_in_part": "is no difference from the one before",
    "steps_without_a_half": "does not say how; derive it from OwnSteps",
    "no_model_to_send": "has no model of its own to send",
    "no_model_to_apply_to": "cannot apply an aggregate",
    "interrupted_overlap": "cannot be interrupted",
    "sums_taken_for_means": "a push of several steps would count as one",
    "means_taken_for_sums": "each push is a mean already, not a sum",
    "models_added_up_as_directions": "the weighted sum of models is no direction",
    "pushes_that_only_their_sum_is_left_of": "pushes are added up on their way",
    "blocks_of_all": "takes a commit for the work of all since the last",
    "one_push_against_a_state": "weighs one push against its own state",
    "replicas_that_overlap": "its workers are not at one model",
    "chunks_unknown": "sizes chunks of data, which",
    "progress_not_reported": "looks at the workers' progress, which",
    "recut_without_a_barrier": "cuts new batches at each barrier",
    "a_ring_of_some": "a collective operation needs all workers",
    "bits_that_belong_together": "vectors are added up on their way",
    "tasks_that_keep_nothing": "its tasks keep nothing between steps",
    "tasks_that_hand_on_floats": "its tasks hand on 32-bit floats",
    "nobody_who_makes_a_version": "no server makes a version of pushes",
    "one_model_for_all": "mixes models of workers, and",
    "neighbours_not_waited_for": "mixes what a worker's neighbours sent at the same exchange",
    "neighbours_waited_for_in_vain": "waits for what neighbours send",
    "pairs_that_wait_for_all": "a pair exchanges whatever others do",
    "a_model_that_is_replaced": "would not go on from its own model",
    "no_mixture": "a worker goes on from a mixture, and",
    "parts_of_a_mixture": "what a codec loses of a model that is mixed",
    "a_regions_model_taken_for_a_gradient": "a worker would take for a gradient",
    "no_model_of_a_region": "goes on from a model that it is answered with, and",
    "a_share_of_the_model": "a worker holds a share of the model between steps",
    "shares_that_are_nowhere_else": "a share of the model is with its worker alone",
    "tensors_in_part": "takes norms of whole tensors, of which",
    "fragments_at_different_steps": "takes pushes of several together",
    "fragments_without_a_step": "a fragment is a difference, and a step of its own",
    "numbers_of_whole_vectors": "asks for numbers of whole vectors",
    "codecs_of_whole_vectors": "codecs keep whole vectors",
    "fragments_that_move": "parameters that move, while",
    "vectors_that_are_not_given": "does not give; define its 'payload'",
    "several_vectors_in_part": "fragments and measured numbers are of one vector",
    "several_vectors_as_differences": "sends models as differences, and knows of one vector",
    "several_vectors_that_wait": "and may wait for a commit under",
    "several_vectors_that_move": "whose entries parameter_server does not move",
    "sums_that_depend_on_sums": "several times for a version, which",
    "sums_of_something_else": "decides what its sums carry",
}

PLAIN = {
    "consistency": "bsp",
    "aggregation": "mean",
    "communication": "every_step",
    "stragglers": "fixed",
    "placement": "parameter_server",
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
