"""What a search may choose: values of an option, written as a line of text.

=======================  ===========================================================
``2,4,8``                one of these values; also ``true,false`` and ``o2,rotation``
``1..8``                 a whole number, both ends included
``64..512 step 64``      the same, in steps
``0.0..0.6``             a number
``1e-5..1e-2 log``       a number or a whole number, uniform in its logarithm
=======================  ===========================================================
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from bunn.data import DATASETS
from bunn.training import Config, ConfigError
from bunn.training.options import check_option, nearest, parse_value

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

_RANGE = re.compile(r"(\S+?)\s*\.\.\s*(\S+?)(?:\s+(log)|\s+step\s+(\S+))?")
_FORMS = "write 2,4,8 or 1..8 or '64..512 step 64' or 0.0..0.6 or '1e-5..1e-2 log'"


@dataclass(frozen=True)
class Choices:
    """One of some values, without an order."""

    values: tuple[Any, ...]

    def __str__(self) -> str:
        return ",".join(written(value) for value in self.values)

    @property
    def samples(self) -> tuple[Any, ...]:
        """Values whose type is that of all."""
        return self.values

    def distribution(self) -> BaseDistribution:
        """The space as Optuna takes it."""
        from optuna.distributions import CategoricalDistribution  # noqa: PLC0415

        return CategoricalDistribution(self.values)


@dataclass(frozen=True)
class Range:
    """A number between two, whole if both are whole.

    Args:
        low: The smallest.
        high: The largest.
        log: Whether its logarithm is uniform. (default: :obj:`False`)
        step: Between neighbours. (default: every number)
    """

    low: float
    high: float
    log: bool = False
    step: float | None = None

    def __str__(self) -> str:
        step = "" if self.step is None else f" step {self.step}"
        return f"{self.low}..{self.high}{' log' if self.log else ''}{step}"

    @property
    def samples(self) -> tuple[Any, ...]:
        """Values whose type is that of all."""
        return (self.low, self.high)

    def distribution(self) -> BaseDistribution:
        """The space as Optuna takes it."""
        from optuna.distributions import FloatDistribution, IntDistribution  # noqa: PLC0415

        if isinstance(self.low, int) and isinstance(self.high, int):
            return IntDistribution(self.low, self.high, self.log, int(self.step or 1))
        return FloatDistribution(self.low, self.high, self.log, self.step)


Space = Choices | Range


def written(value: Any) -> str:
    """A value as it is typed, the way back from :func:`bunn.training.options.parse_value`."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return str(value)


def settings(params: Mapping[str, Any]) -> list[str]:
    """What was chosen, as ``--set`` takes it."""
    return [f"{name}={written(value)}" for name, value in params.items()]


def parse_space(text: str, name: str) -> Space:
    """The space that ``text`` describes, for the option ``name``."""
    if ".." in text:
        return _parse_range(text.strip(), name)
    parts = [part.strip() for part in text.split(",")]
    if not all(parts) or any(bracket in text for bracket in "()[]"):
        raise ConfigError(f"{name}={text}; these are no values to choose from; {_FORMS}")
    values = tuple(parse_value(part) for part in parts)
    if any(value in values[:index] for index, value in enumerate(values)):
        raise ConfigError(f"{name}={text}; a value is there twice; write every value once")
    return Choices(values)


def _parse_range(text: str, name: str) -> Range:
    matched = _RANGE.fullmatch(text)
    if matched is None:
        raise ConfigError(f"{name}={text}; this is no range; {_FORMS}")
    log = matched[3] is not None
    texts = [part for part in (matched[1], matched[2], matched[4]) if part is not None]
    numbers = [parse_value(part) for part in texts]
    if not all(_is_number(number) for number in numbers):
        raise ConfigError(f"{name}={text}; its ends and its step must be numbers; {_FORMS}")
    low, high, step = (*numbers, None)[:3]
    if not low < high:
        raise ConfigError(f"{name}={text}; the first end must be smaller; write {high}..{low}")
    if log and low <= 0:
        raise ConfigError(f"{name}={text}; a logarithm needs a positive start, such as 1e-6")
    if step is None:
        return Range(low, high, log)
    if step <= 0 or (isinstance(step, float) and isinstance(low, int) and isinstance(high, int)):
        raise ConfigError(f"{name}={text}; the step must be positive, and whole between integers")
    rest = (Decimal(texts[1]) - Decimal(texts[0])) % Decimal(texts[2])
    if rest:
        end = Decimal(texts[1]) - rest
        raise ConfigError(f"{name}={text}; no step ends at {texts[1]}; end at {end}, for example")
    return Range(low, high, log, step)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def parse_spaces(
    config: Config, texts: Iterable[str], fixed: Iterable[str] = ()
) -> dict[str, Space]:
    """The spaces of ``"optimizer.lr=1e-5..1e-2 log"`` and the like, by option.

    Args:
        config: What is searched around: it says which options there are, and of what type.
        texts: One per option.
        fixed: Options that are not for choice. (default: none)
    """
    spaces: dict[str, Space] = {}
    closed = set(fixed)
    for text in texts:
        path, equals, described = text.partition("=")
        name = path.strip()
        if not equals or not described.strip():
            raise ConfigError(
                f"{text!r} is no search; write SECTION.OPTION=SPACE, such as model.num_layers=1..8"
            )
        if name in spaces:
            raise ConfigError(f"{name} is searched twice; give it one space")
        if name in closed:
            raise ConfigError(f"{name} is searched and set; leave out one: --search or --set")
        spaces[name] = parse_space(described, name)
        _check(config, name, spaces[name])
    return spaces


def _check(config: Config, name: str, space: Space) -> None:
    """Whether there is such an option, and values of the space have its type."""
    section, dot, option = name.partition(".")
    known = [key for key, value in config.as_dict().items() if isinstance(value, dict)]
    if section not in known:
        raise ConfigError(f"{section} is no section; {nearest(section, known)}")
    if not dot:
        raise ConfigError(f"{name!r} is no option; write SECTION.OPTION, such as optimizer.lr")
    for value in space.samples:
        check_option(type(getattr(config, section)), option, value, section)


#: What is searched where nothing is said, by whether there is one graph or many.
_RATES = {
    "bunn": {True: "1e-5..3e-3 log", False: "1e-4..3e-3 log"},
    "others": {True: "1e-4..1e-2 log", False: "1e-4..1e-2 log"},
}
_SHARED = {
    "optimizer.weight_decay": "1e-6..1e-2 log",
    "model.hidden_channels": "64,128,256,512",
    "model.num_layers": "1..8",
    "model.dropout": "0.0..0.6",
}
_OF_BUNN = {"model.phi_layers": "1..8", "model.num_bundles": "1,8,32"}


def default_spaces(config: Config, fixed: Iterable[str] = ()) -> dict[str, Space]:
    """A reasonable search for a model.

    Args:
        config: What is searched around.
        fixed: Options that are left as they are.
    """
    own = _OF_BUNN if config.architecture == "bunn" else {}
    rates = _RATES.get(config.architecture, _RATES["others"])
    rate = rates[DATASETS[config.dataset].transductive]
    spaces = {"optimizer.lr": rate, **_SHARED, **own}
    closed = set(fixed)
    kept = [f"{name}={text}" for name, text in spaces.items() if name not in closed]
    return parse_spaces(config, kept)
