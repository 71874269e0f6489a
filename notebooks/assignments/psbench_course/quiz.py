"""Fifteen questions on concepts, for before and after a course; options are in each student's order."""

from __future__ import annotations

import string
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from psbench_course.draws import draws_of


def _questions() -> list[tuple[str, list[str]]]:
    """Return each question of `quiz.md` with its options, of which the first is right."""
    text = files("psbench_course").joinpath("quiz.md").read_text(encoding="utf-8")
    parts = (part.split("\n- ") for part in text.split("\n## ")[1:])
    return [(question.strip(), [option.strip() for option in options]) for question, *options in parts]


QUESTIONS = _questions()
NUMBERS = range(1, len(QUESTIONS) + 1)


def _order(student: str, number: int) -> list[int]:
    """Return the student's order of a question's options."""
    options = QUESTIONS[number - 1][1]
    return [int(each) for each in draws_of(student, "quiz", number).permutation(len(options))]


def letter(student: str, number: int) -> str:
    """Return the letter of the right answer to a question, from 1 on, in the student's order of options."""
    return string.ascii_lowercase[_order(student, number).index(0)]


def shown(student: str) -> str:
    """Return the questions in Markdown, with the options in the student's order."""
    parts = []
    for number, (question, options) in enumerate(QUESTIONS, 1):
        lines = (
            f"- **{name}** {options[place]}"
            for name, place in zip(string.ascii_lowercase, _order(student, number), strict=False)
        )
        parts.append(f"**{number}.** {question}\n\n" + "\n".join(lines))
    return "\n\n".join(parts)


def points(student: str, answers: Mapping[str, Any]) -> int:
    """Return how many of the answers, q1 to q15, are right."""
    return sum(answers.get(f"q{number}") == letter(student, number) for number in NUMBERS)
