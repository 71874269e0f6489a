"""Names of parts, and how they are made."""

from __future__ import annotations

from typing import ClassVar

import pytest
from toybox import take_out

from psbench.core.part import REGISTRY, make_part
from psbench.core.parts import Aggregation, Consistency
from psbench.errors import ParameterError, UnknownName
from psbench.strategies.consistency import SSP


def test_before_any_part_is_loaded_it_is_said_how(monkeypatch):
    monkeypatch.setitem(REGISTRY, "consistency", {})
    with pytest.raises(ParameterError, match=r"consistency: .* import psbench.strategies first"):
        make_part("consistency", "bsp")


def test_a_subclass_without_a_name_does_not_take_its_parents_place():
    class Nameless(SSP):
        pass

    assert Nameless.name == "ssp"
    assert REGISTRY["consistency"]["ssp"] is SSP


def test_a_name_is_given_once():
    with pytest.raises(
        ParameterError,
        match=r"consistency 'ssp' is defined already, by psbench.strategies.consistency.ssp.SSP",
    ):

        class Another(Consistency):
            name: ClassVar[str] = "ssp"

    assert REGISTRY["consistency"]["ssp"] is SSP


@pytest.mark.parametrize(
    ("written", "meant"), [("updtae", "update"), ("on_comit", "on_commit"), ("left_ot", "left_out")]
)
def test_a_method_that_nothing_calls_is_not_taken_for_a_helper(written, meant):
    says = f"aggregation 'own_typo': nothing calls its method '{written}'; did you mean '{meant}'"
    with pytest.raises(ParameterError, match=says):
        type("Typo", (Aggregation,), {"name": "own_typo", "__module__": __name__, written: lambda self: None})
    assert "own_typo" not in REGISTRY["aggregation"]
    helpers = {name: lambda self: None for name in (f"_{written}", "updates", "median")}
    type("Helped", (Aggregation,), {"name": "own_helped", "__module__": __name__} | helpers)
    take_out("own_helped")


def test_a_class_defined_again_takes_its_own_place():
    def define():
        class Toy(Consistency):
            name: ClassVar[str] = "toy_again"

        return Toy

    define()
    assert [define()] == take_out("toy_again")


def test_parts_are_made_from_names_mappings_and_parts():
    part = SSP(staleness_bound=7)
    assert make_part("consistency", {"name": "ssp", "staleness_bound": 7}) == part
    assert make_part("consistency", part) is part
    with pytest.raises(UnknownName, match="did you mean 'ssp'"):
        make_part("consistency", "sspp")
    with pytest.raises(ParameterError, match="is a consistency part, not a placement part"):
        make_part("placement", part)
