"""Schedules that the fuzzer has found, shrunk: what was wrong was what it asked for."""

from __future__ import annotations

import pytest

from psbench_fuzz import Schedule, play
from tests.mutation.planted import UNDER

# what is drawn at random is seldom what anybody would train with
pytestmark = pytest.mark.filterwarnings("ignore::psbench.errors.DoubtfulComposition")

EARLY_STOP = {
    "name": "custom",
    "consistency": {"name": "early_epoch_stop", "fraction": 0.6040070493754041},
    "aggregation": {"name": "dyn_sgd_versioned"},
    "communication": {
        "name": "micro_steps",
        "codec": {"name": "none"},
        "codec_down": {"name": "random_k", "error_feedback": True, "ratio": 0.01},
        "pieces": 4,
    },
    "stragglers": {
        "name": "drop_stragglers",
        "factor": 2.529009685427326,
        "window": 1,
        "patience": 4,
        "most": 0.25,
        "readmit_after_s": 0.18477788441762907,
    },
    "placement": {
        "name": "parameter_server",
        "servers": 3,
        "assignment": "size_threshold",
        "large_tensor": 1000000,
        "reassignment": {"name": "none"},
    },
    "lr_scaling": "none",
}
SWITCH_BACK = {
    "name": "strategy_switch",
    "first": {
        "name": "custom",
        "consistency": {"name": "bsp"},
        "aggregation": {"name": "dyn_sgd"},
        "communication": {
            "name": "micro_steps",
            "codec": {"name": "none"},
            "codec_down": {"name": "one_bit", "error_feedback": True, "bucket": 1},
            "pieces": 8,
        },
        "stragglers": {"name": "fixed"},
        "placement": {
            "name": "parameter_server",
            "servers": 4,
            "assignment": "contiguous",
            "large_tensor": 1000000,
            "reassignment": {"name": "none"},
        },
        "lr_scaling": "by_share",
    },
    "second": {
        "name": "custom",
        "consistency": {"name": "ssp", "staleness_bound": 1},
        "aggregation": {"name": "accumulated"},
        "communication": {
            "name": "osp",
            "codec": {"name": "top_k", "error_feedback": True, "ratio": 0.5604914783743091},
            "codec_down": {"name": "none"},
            "local_steps": 3,
        },
        "stragglers": {"name": "fixed"},
        "placement": {
            "name": "parameter_server",
            "servers": 1,
            "assignment": "contiguous",
            "large_tensor": 1000000,
            "reassignment": {"name": "none"},
        },
        "lr_scaling": "by_share",
    },
    "rule": {"name": "empirical", "window": 5, "threshold": 0.01},
    "momentum": "zero",
    "ramp_updates": 6,
    "cost_s": 1.5399138155136443,
}
SMALL_BATCH = {
    "name": "custom",
    "consistency": {"name": "early_epoch_stop", "fraction": 0.75},
    "aggregation": {"name": "staleness_weighted", "rate": "mean"},
    "communication": {
        "name": "every_step",
        "codec": {"name": "terngrad", "error_feedback": False, "bucket": 0, "clip": 2.5},
        "codec_down": {"name": "sign", "error_feedback": True, "bucket": 0},
    },
    "stragglers": {
        "name": "dbs_sgd",
        "window": 2,
        "tolerance": 0.0009485384049998654,
        "mode": "proportional",
    },
    "placement": {
        "name": "parameter_server",
        "servers": 2,
        "assignment": "contiguous",
        "large_tensor": 1000000,
        "reassignment": {"name": "none"},
    },
    "lr_scaling": "by_share",
}


def test_a_residual_of_gradients_is_not_added_to_models():
    """Two switches later, if its worker has not pushed in between, as nothing was left out there."""
    words = "what gradients are owed is added to models"
    choices = Schedule.parse("s0 a0 s0 ")
    play(Schedule(UNDER[words], 1, 1, 1261028694, choices, batches=(), momentum=0.0))


def test_a_part_begins_anew_though_nothing_was_made_between_two_switches():
    """The model's reading kept what the part remembered."""
    late, slowmo = {"name": "after", "fraction": 0.9}, {"name": "slowmo", "local_steps": 1}
    then = [{"to": slowmo, "rule": late, "momentum": "keep"}]
    strategy = {"name": "strategy_switch", "first": slowmo, "second": "bsp", "rule": late, "then": then}
    choices = Schedule.parse("s0 a0 s0 a0 w1 s0 a0 w2 j1 d0 s1 a1 s1 a1 s1 a1 s1 a1 ")
    play(Schedule(strategy | {"momentum": "keep"}, 2, 1, 5, choices, momentum=0.0))


@pytest.mark.parametrize(
    ("strategy", "workers", "starters", "seed", "choices"),
    [
        pytest.param(
            EARLY_STOP,
            4,
            3,
            110247443,
            "s2 a2 s2 a2 s2 a2 s2 a2 s2 s2 s2 a2 a2 a2 s2 a2 s2 s2 s2 a2 s2 a2 a2 a2 s2 a2 s2 a2 "
            "s2 a2 s2 a2 s2 a2 s2 a2 s2 a2 s2 a2 s2 s2 a2 a2 s2 s2 a2 a2 s2 a2 s2 s2 a2 s2 a2 a2 "
            "s2 s2 a2 a2 s2 a2 s2 a2 s2 a2 s2 a2 s2 s2 a2 a2 s2 s2 s2 s2 ",
            id="a worker in pieces has the rest of an epoch to do",
        ),
        pytest.param(
            SWITCH_BACK,
            5,
            1,
            1660627641,
            "s0 a0 s0 a0 j3 w1 s0 a0 s0 a0 s3 a3 w2 ",
            id="in a drain overlapping workers go on past the bound, as newcomers are parked",
        ),
        pytest.param(
            SMALL_BATCH,
            3,
            3,
            2076301944,
            "s2 s1 a2 s2 s0 a0 a1 a2 s1 a1 s1 s2 s0 a0 s0 a0 s0 a2 a0 a1 s2 s1 a2 a1 s1 s2 a2 s0 "
            "a0 s0 a1 s2 a0 s0 a0 s0 a2 a0 s0 a0 s0 a0 s2 a2 s2 a2 s2 a2 s2 a2 s2 a2 s0 s1 a1 a0 "
            "s2 a2 s2 a2 s2 a2 s2 a2 s1 s0 a1 s2 s1 a1 a2 s2 a2 s2 a2 s2 a2 s2 a2 a0 s2 s0 a0 s0 "
            "a0 s0 a0 s0 a0 a2 s0 s2 a2 a0 s0 s2 a0 s0 a0 a2 s0 a0 s2 a2 s2 a2 s2 a2 s2 a2 s2 a2 "
            "s2 a2 s1 a1 s1 s0 a1 s2 a0 s0 a2 a2 a0 s0 a0 s0 s2 a2 a0 s0 a2 a0 s0 a0 s2 a2 s0 a0 "
            "s2 s0 a0 s0 a2 a0 s2 a2 s2 s0 ",
            id="the worker with the smallest batch has the rest of an epoch to do",
        ),
    ],
)
def test_it_passes(strategy, workers, starters, seed, choices):
    play(Schedule(strategy, workers, starters, seed, Schedule.parse(choices)))


def test_the_vote_of_a_worker_that_died_counts_towards_no_switch():
    """Found by fuzzing: a rule saw its samples at every later vote, and switched too early."""
    rule = {"name": "after", "fraction": 0.02, "whole_epochs": False}
    strategy = {"name": "strategy_switch", "first": "selsync", "second": "asp", "rule": rule}
    choices = "s0 s1 a0 a1 a0 a1 s0 s1 a1 a0 s0 s1 a0 d0 a1" + " s1 a1" * 11 + " s1 "
    play(Schedule(strategy, 5, 2, 1882526253, Schedule.parse(choices), momentum=0.5))


def test_a_residual_may_be_off_by_the_last_bit_of_a_32_bit_scale():
    """1-bit Adam: the scale of a momentum differed in its last bit, and the residual in ten times as much."""
    adam = {"name": "one_bit_adam", "freeze_step": 1, "adam_weight_decay": 0.2366447333956341}
    parts = {"consistency": "bsp", "aggregation": adam, "placement": "all_reduce", "lr_scaling": "none"}
    drops = {"name": "drop_stragglers", "window": 5, "most": 0.25, "readmit_after_s": 0.0037523354363654077}
    strategy = {"name": "custom", "communication": "every_step", "stragglers": drops} | parts
    choices = Schedule.parse("s1 s0 s2 ")
    play(Schedule(strategy, 5, 3, 1440589886, choices, batches=(32, 40, 24), momentum=0.5))
