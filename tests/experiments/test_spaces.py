"""Search spaces: what is typed, what is meant, and what is said of what cannot be meant."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from bunn.experiments.presets import find_preset
from bunn.experiments.spaces import (
    Choices,
    Range,
    default_spaces,
    parse_space,
    parse_spaces,
    written,
)
from bunn.training import MODELS, Config, ConfigError
from bunn.training.options import parse_value

CONFIG = Config("barbell")
numbers = st.integers(-1000, 1000) | st.floats(-1e6, 1e6)
words = st.text("abcdeflnorstuxyz_-", min_size=1).filter(lambda word: parse_value(word) == word)
values = st.none() | st.booleans() | numbers | words


@pytest.mark.parametrize(
    ("text", "space"),
    [
        ("2,4, 8", Choices((2, 4, 8))),
        ("true,false", Choices((True, False))),
        ("o2,rotation", Choices(("o2", "rotation"))),
        ("none,1.5", Choices((None, 1.5))),
        ("64", Choices((64,))),
        ("1..8", Range(1, 8)),
        ("-2 .. 8", Range(-2, 8)),
        ("1..1024 log", Range(1, 1024, log=True)),
        ("64..512 step 64", Range(64, 512, step=64)),
        ("1e-5..1e-2 log", Range(1e-5, 1e-2, log=True)),
        ("0.0..0.6", Range(0.0, 0.6)),
        ("0..0.6 step 0.1", Range(0, 0.6, step=0.1)),
    ],
)
def test_what_is_typed_is_what_is_meant(text, space):
    assert parse_space(text, "model.x") == space


@given(values)
def test_a_value_that_is_written_is_read_again(value):
    assert parse_value(written(value)) == value


@given(st.lists(values, min_size=1, max_size=6, unique_by=lambda value: (value, str(value))))
def test_choices_that_are_written_are_read_again(chosen):
    if len(set(chosen)) == len(chosen):  # 1 and true are the same to Python
        assert parse_space(str(Choices(tuple(chosen))), "x") == Choices(tuple(chosen))


@given(numbers, numbers, st.booleans())
def test_ranges_that_are_written_are_read_again_and_contain_their_ends(low, high, log):
    space = Range(low, high, log)
    if not low < high or (log and low <= 0):
        with pytest.raises(ConfigError, match=r"model\.x="):
            parse_space(str(space), "model.x")
        return
    assert parse_space(str(space), "model.x") == space
    distribution = space.distribution()
    assert (distribution.low, distribution.high, distribution.log) == (low, high, log)
    whole = isinstance(low, int) and isinstance(high, int)
    assert isinstance(distribution, IntDistribution if whole else FloatDistribution)


@given(st.integers(-100, 100), st.integers(1, 50), st.integers(1, 20))
def test_steps_end_where_the_range_does(low, step, count):
    space = parse_space(f"{low}..{low + step * count} step {step}", "model.x")
    assert space.distribution() == IntDistribution(low, low + step * count, step=step)
    if step > 1:
        with pytest.raises(ConfigError, match=rf"end at {low + step * count},"):
            parse_space(f"{low}..{low + step * count + 1} step {step}", "model.x")


def test_choices_are_categories():
    assert Choices((2, None, "o2")).distribution() == CategoricalDistribution((2, None, "o2"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model.num_layers", "'model.num_layers' is no search; write SECTION.OPTION=SPACE"),
        ("model.num_layers=", "is no search"),
        ("modle.num_layers=1..8", "modle is no section; did you mean 'model'?"),
        ("dataset=1..8", "dataset is no section"),
        ("model=1..8", "'model' is no option; write SECTION.OPTION"),
        ("model.num_layer=1..8", "model.num_layer is no option; did you mean 'num_layers'?"),
        ("model.num_layers=1..", "model.num_layers=1..; this is no range; write 2,4,8"),
        ("model.num_layers=a..b", "its ends and its step must be numbers"),
        ("model.num_layers=1..inf", "its ends and its step must be numbers"),
        ("model.num_layers=8..1", "the first end must be smaller; write 1..8"),
        ("model.num_layers=0..8 log", "a logarithm needs a positive start"),
        ("model.num_layers=1..8 step 0.5", "the step must be positive, and whole"),
        ("model.num_layers=1..8 step 0", "the step must be positive"),
        ("model.num_layers=1..9 step 3", "no step ends at 9; end at 7"),
        ("model.num_layers=1..8 log step 2", "this is no range"),
        ("model.num_layers=1..8 logg", "this is no range"),
        ("model.num_layers=1.0..8.5", "model.num_layers=8.5; it must be a whole number"),
        ("model.num_layers=1,2,two", "model.num_layers='two'; it must be a whole number"),
        ("model.num_layers=1,,2", "these are no values to choose from; write 2,4,8"),
        ("model.time=[1,2],[3,4]", "these are no values to choose from"),
        ("model.num_layers=1,2,1", "a value is there twice"),
        ("optimizer.name=adam,sgd", "optimizer.name='sgd'; it must be one of"),
    ],
)
def test_bad_spaces_name_the_option_what_was_seen_and_the_fix(text, message):
    with pytest.raises(ConfigError) as caught:
        parse_spaces(CONFIG, [text])
    assert message in str(caught.value)


def test_an_option_is_searched_once_and_not_set():
    twice = ["optimizer.lr=1e-4..1e-2 log", "optimizer.lr=1e-3,1e-2"]
    with pytest.raises(ConfigError, match=r"optimizer\.lr is searched twice"):
        parse_spaces(CONFIG, twice)
    with pytest.raises(ConfigError, match=r"optimizer\.lr is searched and set"):
        parse_spaces(CONFIG, twice[:1], ["optimizer.lr"])


@pytest.mark.parametrize("dataset", ["barbell", "minesweeper"])
@pytest.mark.parametrize("model", MODELS)
def test_default_spaces_hold_possible_configurations(dataset, model):
    _, config = find_preset(dataset, model, "default")
    spaces = default_spaces(config)
    assert {"optimizer.lr", "model.hidden_channels", "model.dropout"} < spaces.keys()
    for end in (0, -1):
        config.override([f"{name}={space.samples[end]}" for name, space in spaces.items()])
    assert "model.dropout" not in default_spaces(config, ["model.dropout"])
