"""A claim of a paper, with its sentence, its rows, and the rule for its verdict."""

from __future__ import annotations

from typing import Literal, Self, TypeAlias, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

#: medium is for claims about accuracy, on CIFAR-10 and in hours; most set-ups have none
Scale: TypeAlias = Literal["smoke", "quick", "medium", "full"]
SCALES: tuple[Scale, ...] = get_args(Scale)

#: claim: printed in the paper. conditional: the same, given a number or a reading that is said. check: an
#: identity or a closed form that our runs must have. input: numbers that were used to set up the runs.
#: evidence: numbers that stand beside claims and are not judged.
ClaimKind: TypeAlias = Literal["claim", "conditional", "check", "input", "evidence"]
JUDGED: tuple[ClaimKind, ...] = ("claim", "conditional", "check")

#: effect: the rows differ from "no effect" as printed. same: they do not differ by more than the margin.
#: number: ours is the printed one, within the margin.
Test: TypeAlias = Literal["effect", "same", "number"]


class Claim(BaseModel):
    """A claim, fixed before its runs.

    Parameters
    ----------
    name : str
    says : str
        One sentence that is understood without the paper.
    rows : tuple of str
        All of them have to hold.
    kind : Kind
    test : Test
    margin : float
        effect and number: the factor within which a ratio has the printed size (and at least half of the
        printed effect, and half as much again; for a difference only that). same: the factor of a ratio above
        1, or the difference in the unit of the rows, that still counts as the same.
    given : str
        What a conditional claim supposes.
    rates : "common" or "best"
        Whether all strategies have one learning rate, or each its best of those that were tried.
    control : str
        The claim of an effect that has to be found here, too, before accuracies or losses are called the
        same, or an effect on them is said not to be there. Where nothing can be lost, neither says anything.
    untestable : mapping of scale to str
        Why the set-up of a scale cannot test it, whatever its runs come to.
    found : str
        What was found on looking; it may explain a verdict and never makes one.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")
    says: str = Field(min_length=20, pattern=r"\.$")
    rows: tuple[str, ...] = Field(min_length=1)
    kind: ClaimKind = "claim"
    test: Test = "effect"
    margin: float = Field(default=1.25, gt=0)
    given: str = ""
    rates: Literal["common", "best"] = "common"
    control: str = ""
    untestable: dict[Scale, str] = Field(default_factory=dict)
    found: str = ""

    @model_validator(mode="after")
    def _is_conditional_if_it_supposes(self) -> Self:
        if bool(self.given) != (self.kind == "conditional"):
            raise ValueError(f"claim {self.name!r}: a conditional claim, and no other, has `given`")
        return self

    @model_validator(mode="after")
    def _margin_is_a_factor(self) -> Self:
        if self.test != "same" and self.margin <= 1:
            raise ValueError(f"claim {self.name!r}: margin {self.margin:g} must be a factor above 1")
        return self
