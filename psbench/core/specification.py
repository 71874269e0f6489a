"""Specifications: frozen pydantic models, and errors that say what is wrong."""

from __future__ import annotations

from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from psbench.errors import ParameterError, UnknownName


def parameter(default: Any, description: str, *, unit: str = "", source: str = "", **limits: Any) -> Any:
    """Declare a hyper-parameter: default, meaning, unit, source, and limits.

    `limits` are pydantic's (`ge`, `gt`, `le`, `lt`). `unit` and `source` show up in tooltips and tables.
    """
    extra: dict[str, Any] = {"unit": unit, "source": source}
    return Field(default, description=description, json_schema_extra=extra, **limits)


class Specification(BaseModel):
    """Base of everything that a person writes down: frozen, no unknown key, no NaN or infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_text(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse strings and booleans where a number is expected; pydantic would convert them."""
        wanted = cls.model_fields[info.field_name or ""].annotation
        numeric = set(get_args(wanted) or [wanted]) <= {int, float, type(None)}
        if numeric and isinstance(value, (str, bool)):
            raise PydanticCustomError("number_expected", "Input should be a number")
        return value


def explain(error: ValidationError, model: type[BaseModel], where: str) -> ParameterError | UnknownName:
    """Turn pydantic's error into one of psbench: what, where, and the nearest right thing."""
    errors = error.errors(include_url=False)
    # a misspelt name may also be reported as a missing one: the former says more
    first = next((e for e in errors if e["type"] == "extra_forbidden"), errors[0])
    path = ".".join(str(step) for step in first["loc"])
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, (ParameterError, UnknownName)):
        return cause
    if first["type"] == "extra_forbidden":
        return UnknownName(f"parameter of {where}", str(first["loc"][-1]), model.model_fields)
    got = "" if first["type"] == "missing" else f", got {first['input']!r}"
    message = first["msg"][0].lower() + first["msg"][1:].replace("valid tuple", "list")  # as YAML calls it
    return ParameterError(f"{where}: {path}: {message}{got}" if path else f"{where}: {message}{got}")
