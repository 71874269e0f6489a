"""Specifications: frozen pydantic models, `parameter` that declares fields, and error messages."""

# no `from __future__ import annotations`: pydantic would compile these texts again for each subclass

import inspect
import re
from collections.abc import Mapping, Sequence
from types import UnionType
from typing import Any, ClassVar, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from psbench.errors import ParameterError, UnknownName, in_short
from psbench.terminal import is_shown


def parameter(
    default: Any,
    description: str,
    *,
    unit: str = "",
    source: str = "",
    choices: Sequence[str] = (),
    **limits: Any,
) -> Any:
    """Declare a hyper-parameter: default, meaning, unit, source, and limits.

    `limits` are pydantic's (`ge`, `gt`, `le`, `lt`, and `validate_default` for a default that a validator
    completes). `unit` and `source` show up in tooltips and tables, and so do `choices`: names that are known
    only once all packages are installed, where a `Literal` names the others.
    """
    extra: dict[str, Any] = {"unit": unit, "source": source}
    if choices:
        extra["choices"] = [*choices]
    return Field(default, description=description, json_schema_extra=extra, **limits)


class Specification(BaseModel):
    """Base of everything that a user writes down: frozen, no unknown key, no NaN or infinity.

    Raises
    ------
    ParameterError, UnknownName
        On a value out of range, or a parameter that there is not.
    """

    #: where it comes from; shown wherever it is offered
    source: ClassVar[str] = ""
    #: if not its class's name in small letters
    called_in_errors: ClassVar[str] = ""

    # a validator is built when it is first needed: of some 300 classes a run needs a dozen
    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=(), defer_build=True
    )

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise _explained(error, type(self)) from None

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        cls.__doc__ = _completed(cls)
        _forget_class_variables(cls)

    @classmethod
    def error_name(cls) -> str:
        """Return the name of the specification in error messages."""
        return cls.called_in_errors or cls.__name__.lower()

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_before(cls, value: Any, info: ValidationInfo) -> Any:
        """Reject texts and booleans for numbers, and names with control characters."""
        wanted = cls.model_fields[info.field_name or ""].annotation
        numeric = set(get_args(wanted) or [wanted]) <= {int, float, type(None)}
        if numeric and isinstance(value, (str, bool)):
            raise PydanticCustomError("float_type", "must be a number")
        if info.field_name == "name" and isinstance(value, str) and not is_shown(value):
            raise PydanticCustomError("name", "must be one line of text, without control characters")
        return value


def _forget_class_variables(cls: type[BaseModel]) -> None:
    """Drop the annotations of class variables, which pydantic would evaluate again in each subclass."""
    own = cls.__annotations__.items()
    cls.__annotations__ = {name: kind for name, kind in own if name not in cls.__class_vars__}


_SIGNS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
#: a docstring's list of parameters, up to the next section
_PARAMETERS = re.compile(r"\nParameters\n-+\n(.*?)(?=\n\n\w+\n-+\n|\Z)", re.DOTALL)


def _completed(cls: type[Specification]) -> str:
    """Return a class's docstring, completed by the fields and the source that it does not describe."""
    text = inspect.cleandoc(cls.__doc__ or "")
    if not text:
        return text
    section = _PARAMETERS.search(text)
    said = "" if section is None else section[1]
    names = {name for line in re.findall(r"^(\w.*?) :", said, re.MULTILINE) for name in line.split(", ")}
    missing = "\n".join(_entry(name, f) for name, f in cls.model_fields.items() if name not in names)
    if section is not None and missing:
        text = f"{text[: section.end()]}\n{missing}{text[section.end() :]}"
    elif missing:
        text += f"\n\nParameters\n----------\n{missing}"
    return f"{text}\n\nSource\n------\n{cls.source}" if cls.source and "\nSource\n---" not in text else text


def _entry(name: str, field: FieldInfo) -> str:
    extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
    kind, allowed = getattr(field.annotation, "__name__", ""), allowed_values(field)
    said = [allowed if kind == "Literal" else kind, str(extra.get("unit", ""))]
    said += [] if kind == "Literal" else [allowed]
    text = f"\n    {field.description}" if field.description else ""
    return f"{name} : {', '.join(filter(None, said))}{text}"


def limits_of(info: FieldInfo) -> dict[str, Any]:
    """Return the bounds of a number by pydantic's names: "ge", "gt", "le" and "lt".

    >>> limits_of(parameter(1, "", ge=1, lt=9))
    {'ge': 1, 'lt': 9}
    """
    return {name: getattr(m, name) for m in info.metadata for name in _SIGNS if hasattr(m, name)}


def choices_of(annotation: Any, info: FieldInfo) -> list[Any]:
    """Return the allowed values of a field, from its `Literal` or its declaration; empty if unrestricted."""
    if get_origin(annotation) is Literal:
        return [*get_args(annotation)]
    declared = info.json_schema_extra.get("choices") if isinstance(info.json_schema_extra, dict) else None
    return declared if isinstance(declared, list) else []


def _kinds(info: FieldInfo) -> tuple[Any, ...]:
    """Return the types of a field, `X | None` as two."""
    is_union = get_origin(info.annotation) in (Union, UnionType)
    return get_args(info.annotation) if is_union else (info.annotation,)


def allowed_values(info: FieldInfo) -> str:
    """Return the allowed values in words.

    >>> allowed_values(parameter(1, "", ge=1, lt=9))
    '>= 1, < 9'
    """
    choices = [each for kind in _kinds(info) for each in choices_of(kind, info)]
    if choices:
        choices = ["null", *choices] if type(None) in _kinds(info) else choices
        return " | ".join(map(str, choices)) if len(choices) > 1 else ""
    return ", ".join(f"{_SIGNS[name]} {limit:g}" for name, limit in limits_of(info).items())


#: what is wrong, by the type of pydantic's error: its types and their values are fixed, its texts are not
_PROBLEMS = {
    "missing": "is required",
    **dict.fromkeys(("extra_forbidden", "unexpected_keyword_argument"), "is not known"),
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be greater than or equal to {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be less than or equal to {le}",
    "finite_number": "must be finite",
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "must be a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "must be a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "must be true or false"),
    "string_type": "must be a text",
    **dict.fromkeys(("list_type", "tuple_type"), "must be a list"),
    **dict.fromkeys(("dict_type", "mapping_type", "model_type"), "must be a mapping"),
    "literal_error": "must be {expected}",
    **dict.fromkeys(("too_short", "string_too_short"), "must have at least {min_length}"),
    **dict.fromkeys(("too_long", "string_too_long"), "must have at most {max_length}"),
}


def problem(error: Mapping[str, Any]) -> str:
    """Return one of pydantic's errors in words that do not change with pydantic's version.

    >>> problem({"type": "less_than", "ctx": {"lt": 1.0}, "msg": ""})
    'must be less than 1'
    """
    if error["type"] not in _PROBLEMS:
        text = str(error.get("ctx", {}).get("error", error["msg"]))
        return text[:1].lower() + text[1:]
    limits = {
        name: int(limit) if isinstance(limit, float) and limit.is_integer() else limit
        for name, limit in error.get("ctx", {}).items()
    }
    return _PROBLEMS[error["type"]].format_map(limits)


def _explained(error: ValidationError, model: type[Specification]) -> ParameterError | UnknownName:
    """Turn a pydantic error into a psbench error: the problem, its path, and the nearest known name."""
    errors, where = error.errors(include_url=False), model.error_name()
    # a misspelt name may also be reported as a missing one: the former says more
    first = next((e for e in errors if e["type"] == "extra_forbidden"), errors[0])
    path = ".".join(str(step) for step in first["loc"])
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, (ParameterError, UnknownName)):
        return cause
    if first["type"] == "extra_forbidden":
        return UnknownName(f"parameter of {where}", str(first["loc"][-1]), model.model_fields)
    got = "" if first["type"] == "missing" else f", got {in_short(first['input'])}"
    message = problem(first)
    return ParameterError(f"{where}: {path}: {message}{got}" if path else f"{where}: {message}{got}")
