"""Frozen dataclasses from plain values: checked types, and the nearest name for an unknown one.

Options are typed data. What a configuration file or ``--set model.num_layers=4`` gives is plain
(numbers, words, lists); here it becomes the dataclass it is meant for, or an error that says which
option, what was seen and what would do.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeVar

from bunn.names import did_you_mean

Options = TypeVar("Options")


class ConfigError(ValueError):
    """A configuration that cannot be meant."""


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint at the name that was meant, or at all there are."""
    names = list(known)
    if near := did_you_mean(name, names, before=""):
        return near
    return f"there are: {', '.join(names)}" if names else "there are none"


def read_options(cls: type[Options], values: Mapping[str, Any], where: str) -> Options:
    """The dataclass ``cls`` from plain ``values``, whose keys are its fields.

    Args:
        cls: A frozen dataclass whose fields have defaults.
        values: Field names and plain values: what JSON holds.
        where: What the values belong to, for error messages: ``"model"``.
    """
    kinds = field_types(cls)
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where}={values!r}; it must be a section of options and their values")
    for name in values:
        _check_name(name, kinds, where)
    read = {name: _coerce(value, kinds[name], f"{where}.{name}") for name, value in values.items()}
    try:
        return cls(**read)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{where}: {error}") from error


def check_fields(options: Any) -> None:
    """Whether every field of a dataclass has a value of its type; whole numbers become floats."""
    for name, kind in field_types(type(options)).items():
        object.__setattr__(options, name, _coerce(getattr(options, name), kind, name))


def check_option(cls: type, name: str, value: Any, where: str) -> None:
    """Whether a dataclass has a field ``name``, and ``value`` the type of it."""
    kinds = field_types(cls)
    _check_name(name, kinds, where)
    _coerce(value, kinds[name], f"{where}.{name}")


def field_types(cls: type) -> dict[str, Any]:
    """The fields of a dataclass and their types."""
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def parse_value(text: str) -> Any:
    """What is written after ``=``: a number, ``true``, ``none``, a list, or else a word.

    A list is written ``1,inf``, ``[1, inf]`` or ``(1, inf)``.
    """
    text = text.strip()
    if text.lower() in ("none", "null"):
        return None
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            pass
    if "," in text or text[:1] in ("(", "["):
        return [parse_value(part) for part in text.strip("()[] ").split(",") if part.strip()]
    return text.strip("'\"")


def _check_name(name: str, known: Iterable[str], where: str) -> None:
    names = list(known)
    if name not in names:
        raise ConfigError(f"{where}.{name} is no option; {nearest(name, names)}")


def _coerce(value: Any, kind: Any, where: str) -> Any:
    """``value`` as the type ``kind``; widening an integer to a float is the only conversion."""
    for option in _alternatives(kind):
        fitting = _fit(value, option)
        if fitting is not _NO_FIT:
            return fitting
    raise ConfigError(f"{where}={value!r}; it must be {_describe(kind)}")


_NO_FIT = object()


def _alternatives(kind: Any) -> tuple[Any, ...]:
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return typing.get_args(kind)
    return (kind,)


def _fit(value: Any, kind: Any) -> Any:  # noqa: PLR0911
    origin = typing.get_origin(kind)
    if origin is Literal:
        return next((name for name in typing.get_args(kind) if _is_word(value, name)), _NO_FIT)
    if origin is tuple:
        item = typing.get_args(kind)[0]
        if not isinstance(value, list | tuple):
            return _NO_FIT
        parts = tuple(_fit(part, item) for part in value)
        return _NO_FIT if any(part is _NO_FIT for part in parts) else parts
    if kind is type(None):
        return None if value is None else _NO_FIT
    if kind is bool:
        return value if isinstance(value, bool) else _NO_FIT
    if isinstance(value, bool):
        return _NO_FIT
    if kind is float:
        return _as_float(value)
    if kind is int and isinstance(value, float) and value.is_integer():
        return int(value)  # 1e3
    return value if isinstance(value, kind) else _NO_FIT


def _is_word(value: Any, name: object) -> bool:
    """Whether ``value`` is ``name``, also where a word such as ``"32"`` was read as a number."""
    return value == name or (type(value) is int and str(value) == name)


def _as_float(value: Any) -> Any:
    if isinstance(value, str) and value.lower().lstrip("+-") in ("inf", "infinity", "nan"):
        return float(value)
    return float(value) if isinstance(value, int | float) else _NO_FIT


def _describe(kind: Any) -> str:
    return " or ".join(_describe_one(option) for option in _alternatives(kind))


def _describe_one(kind: Any) -> str:
    if typing.get_origin(kind) is Literal:
        return f"one of {list(typing.get_args(kind))}"
    if typing.get_origin(kind) is tuple:
        return f"a list, each {_describe(typing.get_args(kind)[0])}"
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a word"}
    return names.get(kind, "none" if kind is type(None) else str(kind))
