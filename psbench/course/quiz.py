"""Fifteen questions on concepts, for before and after a course; options are in each student's order."""

from __future__ import annotations

import string
from collections.abc import Mapping
from typing import Any

from psbench.course.draws import draws_of

#: a question, and its options, of which the first is right
QUESTIONS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "Four workers train under BSP, and one is half as fast as the others. How long does a round take?",
        (
            "as long as the slow worker's step",
            "as long as the mean of the four steps",
            "as long as a fast worker's step",
            "as long as all four steps together",
        ),
    ),
    (
        "What does ASP do when a worker's gradient arrives?",
        (
            "it changes the model at once and sends the new one to that worker",
            "it waits for the gradients of the others",
            "it drops the gradient if the model has changed meanwhile",
            "it changes the model, and the worker waits for the slowest",
        ),
    ),
    (
        "What is the staleness of a gradient?",
        (
            "how many versions the model has moved on since the one that it was computed on",
            "how many seconds its message took",
            "how many steps its worker is ahead of the slowest",
            "how many samples it was computed from",
        ),
    ),
    (
        "What does the bound of SSP limit?",
        (
            "how many steps a worker may be ahead of the slowest",
            "how many versions stale a gradient may be",
            "how many workers may push at once",
            "how many seconds a worker may wait",
        ),
    ),
    (
        "SSP with a bound of 0 lets workers wait as in ...",
        ("BSP", "ASP", "local SGD", "gossip"),
    ),
    (
        "SSP with a bound that is never reached is ...",
        ("ASP", "BSP", "All-Reduce", "local SGD"),
    ),
    (
        "Eight workers have the same speed. How stale is a gradient under ASP, once all of them are busy?",
        ("about 7 versions", "0 versions", "about 1 version", "about 64 versions"),
    ),
    (
        "All-Reduce and BSP with a parameter server, same batches: what is the same?",
        (
            "the model after every round, up to rounding",
            "the bytes that are sent",
            "the time of a round",
            "how many processes there are",
        ),
    ),
    (
        "A ring of n workers adds up a gradient of m bytes. About how many bytes does each of them send?",
        ("2 m (n - 1) / n", "m n", "m / n", "m (n - 1)"),
    ),
    (
        "Local SGD with 10 steps, in comparison with BSP, sends for the same number of samples ...",
        ("a tenth of the messages", "ten times as many", "as many", "a hundredth of them"),
    ),
    (
        "Why may ASP reach a lower accuracy than BSP in the same number of epochs?",
        (
            "its gradients were computed on older models",
            "it leaves out samples of slow workers",
            "it rounds gradients to fewer bits",
            "it takes fewer steps",
        ),
    ),
    (
        "A strategy is twice as fast for an epoch. Is it the better one?",
        (
            "not before one knows how long each takes to the same accuracy",
            "yes",
            "yes, if it sends fewer bytes",
            "no: what is faster is less accurate",
        ),
    ),
    (
        "k-batch-BSP takes the first k gradients and voids the others. What is lost where speeds differ?",
        (
            "the samples of slow workers count less, or not at all",
            "nothing: every gradient counts in the next round",
            "the barrier: no worker waits",
            "the order of updates",
        ),
    ),
    (
        "Two strategies were run with three seeds each; their 95 % intervals overlap widely. What follows?",
        (
            "these runs do not tell which is better",
            "they are equally good",
            "the one with the larger mean is better",
            "three more epochs are needed",
        ),
    ),
    (
        "Strategy-Switch begins with All-Reduce and goes on with ASP. Why in this order?",
        (
            "stale gradients do most harm at the beginning, when the model changes fast",
            "ASP needs fewer workers at the beginning",
            "All-Reduce is faster at the beginning",
            "ASP cannot begin without momentum",
        ),
    ),
)
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
