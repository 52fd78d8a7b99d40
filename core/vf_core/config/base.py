"""The strict base of every config model, and what can be read off a field's annotation."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import AliasChoices, BaseModel, ConfigDict, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError


class StrictModel(BaseModel):
    """A config table: unknown keys are refused, defaults are validated, numbers are finite, nothing changes.

    Text given for a number is read as one; true and false are not numbers.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        validate_default=True,
        allow_inf_nan=False,
        validate_by_name=True,
        validate_by_alias=True,
    )

    @field_validator("*", mode="before")
    @classmethod
    def _no_bool_as_number(cls, value: Any, info: ValidationInfo) -> Any:
        # Pydantic's lax mode would quietly read `true` as 1.
        if isinstance(value, bool) and info.field_name is not None:
            kinds = set(alternatives(cls.model_fields[info.field_name].annotation))
            if kinds & {int, float} and not kinds & {bool, Any}:
                raise PydanticCustomError(
                    "bool_for_number", "expected a number, got {value}", {"value": str(value).lower()}
                )
        return value


def alternatives(annotation: Any) -> Iterator[Any]:
    """The members of a union, `Annotated` unwrapped: `Annotated[int, …] | None` gives int and NoneType."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from alternatives(get_args(annotation)[0])
    elif origin in (Union, types.UnionType):
        for member in get_args(annotation):
            yield from alternatives(member)
    else:
        yield annotation


KeyPath = tuple[str, ...]
"""Where a value stands: the keys from the root of the config."""


class Index(str):
    """A part of a key path that is a place in a list."""

    __slots__ = ()


def item_of(annotation: Any) -> Any:
    """What the items of a list are; None when unknown."""
    for kind in alternatives(annotation):
        if get_origin(kind) in (list, set, frozenset, tuple):
            return get_args(kind)[0]
    return None


def spellings(model: type[BaseModel]) -> dict[str, str]:
    """Every key that `model` accepts, aliases included, and the field that it sets."""
    out: dict[str, str] = {}
    for name, info in model.model_fields.items():
        out[name] = name
        alias = info.validation_alias or info.alias
        choices = alias.choices if isinstance(alias, AliasChoices) else [alias]
        out.update({choice: name for choice in choices if isinstance(choice, str)})
    return out


def submodel(annotation: Any) -> type[BaseModel] | None:
    """The one model that a value of this annotation may be; None when there is none or a choice."""
    models = [a for a in alternatives(annotation) if isinstance(a, type) and issubclass(a, BaseModel)]
    return models[0] if len(models) == 1 else None


Narrow = Mapping[KeyPath, type[BaseModel]]
"""For tables whose model depends on the data (a plugin's own options): their place and their model."""


def tables(
    model: type[BaseModel], narrow: Narrow, at: KeyPath = ()
) -> Iterator[tuple[KeyPath, type[BaseModel]]]:
    """Every table of the config's tree, from the root down: its place and its model."""
    model = narrow.get(at, model)
    yield at, model
    if len(at) > 6:
        return
    for name, info in model.model_fields.items():
        below = submodel(info.annotation)
        if below is not None:
            yield from tables(below, narrow, (*at, name))
