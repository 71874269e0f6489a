"""Small faults that may be put into a function: other operators, numbers, bounds, and lines left out."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: what a comparison becomes
_COMPARED = {
    **{"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="},
    **{"is": "is not", "is not": "is", "in": "not in", "not in": "in"},
}
_COUNTED = {"+": "-", "-": "+", "*": "/", "/": "*", "//": "*", "&": "|", "|": "&"}
_NAMED = {"min": "max", "max": "min", "any": "all", "all": "any", "minimum": "maximum", "maximum": "minimum"}
_SIDES = {"left": "right", "right": "left"}
_SIGNS = {
    **{ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="},
    **{ast.Is: "is", ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in"},
    **{ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//"},
    **{ast.BitAnd: "&", ast.BitOr: "|"},
}
#: functions that say what a chart looks like: that is looked at, and not computed
_LOOKS = re.compile(r"\balt\.|gridColor")


@dataclass(frozen=True)
class Mutant:
    """A file with one fault.

    Attributes
    ----------
    path : Path
    function : str
        Qualified name of the function that has the fault.
    line : int
    statement : int
        Line at which the statement begins that the fault is in.
    before, after : str
        What stood there, and what stands there now.
    start, stop : int
        Where in the file.
    """

    path: Path
    function: str
    line: int
    statement: int
    before: str
    after: str
    start: int
    stop: int

    @property
    def source(self) -> str:
        text = self.path.read_text()
        return text[: self.start] + self.after + text[self.stop :]

    @property
    def key(self) -> str:
        """What names it in a list of reasons: it does not change with lines above."""
        return f"{self.path.as_posix()}:{self.function}: {self.before} -> {self.after}"

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.function}: {self.before} -> {self.after}"


def mutants_of(path: Path) -> list[Mutant]:
    """Return the faults that may be put into the functions of a file."""
    text = path.read_text()
    starts = [0]
    for line in text.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def at(line: int, column: int) -> int:
        return len(text.encode()[: starts[line - 1] + column].decode())  # columns are counted in bytes

    found = []
    for name, function in _functions(ast.parse(text)):
        if _LOOKS.search(ast.unparse(ast.Module(function.body, []))) or function.name == "__repr__":
            continue
        for node, statement in _inside(function):
            place = node.test if isinstance(node, ast.If) else node
            start = at(place.lineno, place.col_offset)
            stop = at(place.end_lineno or 0, place.end_col_offset or 0)
            before = text[start:stop]
            for after in _faults(node, before):
                if after != before:
                    found.append(Mutant(path, name, place.lineno, statement, before, after, start, stop))
    return found


def _functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Yield the functions of a module and of its classes; what is nested in one belongs to it."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            for each in node.body:
                if isinstance(each, ast.FunctionDef):
                    yield f"{node.name}.{each.name}", each


def _inside(function: ast.FunctionDef) -> Iterator[tuple[Any, int]]:
    """Yield what is computed in a function, with the first line of its statement.

    Annotations, texts and messages of errors are left out.
    """
    todo: list[tuple[ast.AST, int]] = [(node, 0) for node in function.body]
    while todo:
        node, statement = todo.pop()
        if isinstance(node, ast.Raise | ast.JoinedStr | ast.Assert | ast.Import | ast.ImportFrom):
            continue
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue  # a docstring
        if isinstance(node, ast.keyword) and node.arg == "strict":
            continue  # of `zip`: asked for everywhere, and true wherever the tests pass
        if isinstance(node, ast.arg):
            continue  # of a function within: its annotation is not computed
        if isinstance(node, ast.stmt):
            statement = node.lineno
        if hasattr(node, "lineno"):
            yield node, statement
        if isinstance(node, ast.AnnAssign):
            todo += [(node.value, statement)] if node.value is not None else []
        else:
            returns = getattr(node, "returns", None)
            todo += [(each, statement) for each in ast.iter_child_nodes(node) if each is not returns]


def _faults(node: ast.AST, text: str) -> Iterator[str]:
    """Yield what may stand in the place of a piece of code."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        yield _with(node.left, node.ops[0], node.comparators[0], _COMPARED)
    elif isinstance(node, ast.BinOp) and type(node.op) in _SIGNS:
        if not any(isinstance(each, ast.JoinedStr) for each in (node.left, node.right)):
            yield _with(node.left, node.op, node.right, _COUNTED)
    elif isinstance(node, ast.BoolOp):
        other = ast.And() if isinstance(node.op, ast.Or) else ast.Or()
        yield f"({ast.unparse(ast.BoolOp(other, node.values))})"
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub | ast.Invert):
        yield f"({ast.unparse(node.operand)})"
    elif isinstance(node, ast.IfExp):
        yield f"({ast.unparse(ast.IfExp(node.test, node.orelse, node.body))})"
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield str(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield repr(node.value + 1)
    elif isinstance(node, ast.Constant) and node.value in _SIDES:
        yield repr(_SIDES[node.value])
    elif isinstance(node, ast.Name | ast.Attribute):
        own = node.id if isinstance(node, ast.Name) else node.attr
        if own in _NAMED:
            yield text[: len(text) - len(own)] + _NAMED[own]
    elif isinstance(node, ast.If):
        yield f"(not ({ast.unparse(node.test)}))"
    elif (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)) or isinstance(node, ast.AugAssign):
        yield "pass"
    elif isinstance(node, ast.Continue):
        yield "break"


def _with(left: ast.expr, sign: ast.AST, right: ast.expr, others: dict[str, str]) -> str:
    other = others[_SIGNS[type(sign)]]
    return f"({ast.unparse(left)}) {other} ({ast.unparse(right)})"
