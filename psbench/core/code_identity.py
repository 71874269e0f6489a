"""The identity of classes and functions: a text that changes when their code does."""

from __future__ import annotations

import functools
import hashlib
import inspect
import types
from collections.abc import Iterator
from typing import Any

#: values whose text says everything about them
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


def qualified_name(value: Any) -> str:
    """Return the qualified name of a class or function, or of another object's class.

    >>> qualified_name(qualified_name)
    'psbench.core.code_identity.qualified_name'
    """
    if isinstance(value, functools.partial):
        return qualified_name(value.func)
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"


def code_identity(value: Any) -> str:
    """Return the name of a class, function or callable object, its code, and the plain values bound to it.

    What the code calls is not part of it, and neither are bound values that are not plain data.
    """
    return "\n".join([qualified_name(value), *_parts(value)])


def code_digest(value: Any, *settings: str) -> str:
    """Return the SHA-256 of an object's identity, and of further texts that determine its results."""
    return hashlib.sha256("".join([code_identity(value), *settings]).encode()).hexdigest()


def _parts(value: Any) -> Iterator[str]:
    if isinstance(value, functools.partial):
        yield from (code_identity(value.func), _text(value.args), _text(value.keywords))
    elif isinstance(value, type):
        yield _source(value)
    elif inspect.ismethod(value):
        yield from (code_identity(value.__func__), code_identity(type(value.__self__)))
    elif inspect.isfunction(value):
        yield _source(value)
        yield _text(value.__defaults__)
        yield _text(value.__kwdefaults__)
        yield _text(tuple(_held(cell) for cell in value.__closure__ or ()))
    elif not inspect.isbuiltin(value):  # an object with a __call__
        yield code_identity(type(value))


def _held(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # nothing is in it yet
        return None


def _source(value: Any) -> str:
    """Return the source code, or the byte code if there is no source, as in an interactive session."""
    try:
        return inspect.getsource(value)
    except (OSError, TypeError):
        functions = vars(value).values() if isinstance(value, type) else [value]
        codes = (getattr(each, "__code__", None) for each in functions)
        return "\n".join(_compiled(code) for code in codes if code is not None)


def _compiled(code: types.CodeType) -> str:
    inner = [_compiled(each) if isinstance(each, types.CodeType) else _text(each) for each in code.co_consts]
    return f"{code.co_name} {code.co_code.hex()} {code.co_names} {inner}"


def _text(value: Any) -> str:
    """Return plain data as text; for other objects the class, since their text is often an address."""
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(_text, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_text(k)}: {_text(v)}' for k, v in value.items())}}}"
    if isinstance(value, type) or inspect.isroutine(value):
        return qualified_name(value)
    return type(value).__qualname__
