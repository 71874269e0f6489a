"""Fifteen questions on concepts, for before and after a course; options are in each student's order."""

from __future__ import annotations

import string
from importlib.resources import files

from psbench_course.draws import draws_of


def _questions() -> list[tuple[str, list[str]]]:
    text = files("psbench_course").joinpath("quiz.md").read_text(encoding="utf-8")
    parts = (part.split("\n- ") for part in text.split("\n## ")[1:])
    return [(question.strip(), [option.strip() for option in options]) for question, *options in parts]


QUESTIONS = _questions()
NUMBERS = range(1, len(QUESTIONS) + 1)


def options_of(student: str, number: int) -> dict[str, str]:
    """Return the options of a question, from 1 on, by their letters, in the student's order."""
    options = QUESTIONS[number - 1][1]
    order = draws_of(student, "quiz", number).permutation(len(options))
    return {letter: options[place] for letter, place in zip(string.ascii_lowercase, order, strict=False)}


def shown(student: str) -> str:
    """Return the questions in Markdown, with the options in the student's order."""
    parts = []
    for number, (question, _) in enumerate(QUESTIONS, 1):
        lines = (f"- **{letter}** {option}" for letter, option in options_of(student, number).items())
        parts.append(f"**{number}.** {question}\n\n" + "\n".join(lines))
    return "\n\n".join(parts)
