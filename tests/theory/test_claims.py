"""The claims hold on other graphs, sizes and seeds than those of the command."""

import inspect
import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bunn.theory import CLAIMS, Check, Claim, Erratum, Report
from bunn.theory import graphs as g
from bunn.theory.claim import SettingsError, at_least, at_most, some_at_least
from bunn.theory.graphs import Graph
from tests.theory.settings import SETTINGS

#: The claims that hold as printed; all others hold as corrected.
AS_PRINTED = {
    "factorization",
    "newheatdiff",
    "path-independence",
    "limit",
    "consensus",
    "mpnn-uniform-approx",
}


def failures(report: Report) -> str:
    failed = [check for check in report.all_checks() if not check.passed]
    return report.error or "\n".join(str(check) for check in failed)


@pytest.mark.parametrize("name", CLAIMS)
def test_verdict_on_other_graphs(name):
    report = CLAIMS[name](**SETTINGS[name])
    expected = "holds" if name in AS_PRINTED else "corrected"
    assert report.verdict == expected, failures(report)
    assert report.checks
    for erratum in report.errata:
        assert erratum.verification, erratum.name


@pytest.mark.parametrize("name", ["newheatdiff", "consensus", "jacobian", "squashing", "sheaf"])
@settings(max_examples=8)
@given(n=st.integers(4, 9), seed=st.integers(0, 10**6))
def test_verdict_on_any_connected_graph(name, n, seed):
    graphs = (g.random(n, seed=seed), g.star(n))
    report = CLAIMS[name](**{**SETTINGS[name], "graphs": graphs, "seed": seed})
    assert report.verdict != "fails", failures(report)


@pytest.mark.parametrize("name", [name for name, claim in CLAIMS.items() if claim.plot])
def test_plot(name):
    report = CLAIMS[name](**SETTINGS[name])
    figure = CLAIMS[name].plot(report.tables)
    (axes,) = figure.axes
    assert axes.get_xlabel()
    assert axes.get_ylabel()
    assert axes.lines


def test_reports_are_plain_data():
    for name in ("oversmoothing", "unifapp", "cost"):
        data = CLAIMS[name](**SETTINGS[name]).as_dict()
        again = json.loads(json.dumps(data, allow_nan=False))
        assert again["name"] == name
        assert again["residual"] == data["residual"]


def test_same_seed_same_report():
    first, second = (CLAIMS["squashing"](seed=4).as_dict() for _ in range(2))
    for report in (first, second):
        report.pop("seconds")
    assert first == second


def test_a_claim_leaves_the_random_state_alone():
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    CLAIMS["gcn"]()
    torch.testing.assert_close(torch.rand(3), expected)


class TestChecks:
    """What passes, what does not, and what a claim makes of it."""

    @pytest.mark.parametrize("make", [at_most, at_least, some_at_least])
    @pytest.mark.parametrize("values", [[], [math.nan], [0.5, math.nan], [math.nan, 2.0]])
    def test_nothing_measured_and_nan_never_pass(self, make, values):
        assert not make("it", values, 1.0).passed
        assert not make("it", torch.tensor(values), 1.0).passed

    def test_bounds(self):
        assert at_most("it", [0.1, 1.0], 1.0).passed
        assert not at_most("it", [0.1, 1.1], 1.0).passed
        assert at_least("it", [2.0, 1.0], 1.0).passed
        assert not at_least("it", [2.0, 0.9], 1.0).passed
        assert some_at_least("it", [0.0, 1.0], 1.0).passed
        assert not some_at_least("it", [0.0, 0.9], 1.0).passed

    def erratum(self, refuted: bool, verified: bool) -> Erratum:
        return Erratum(
            "name",
            "printed",
            "counterexample",
            "corrected",
            Check("refutation", 1.0 if refuted else 0.0, 0.5, ">="),
            (Check("verification", 0.0 if verified else 1.0, 0.5),),
        )

    def verdict(self, *evidence) -> str:
        return Claim("name", "where", "statement", lambda: iter(evidence))().verdict

    def test_verdicts(self):
        good, bad = Check("it", 0.0, 1.0), Check("it", 2.0, 1.0)
        assert self.verdict(good) == "holds"
        assert self.verdict(good, bad) == "fails"
        assert self.verdict() == "fails"
        assert self.verdict(good, self.erratum(True, True)) == "corrected"
        assert self.verdict(good, self.erratum(False, True)) == "fails"
        assert self.verdict(good, self.erratum(True, False)) == "fails"

    def test_an_exception_is_part_of_the_report(self):
        def measure():
            yield Check("it", 0.0, 1.0)
            raise RuntimeError("broken layer")

        report = Claim("name", "where", "statement", measure)()
        assert report.verdict == "fails"
        assert report.error == "RuntimeError: broken layer"

    def test_a_mistaken_keyword_is_an_error(self):
        with pytest.raises(TypeError, match="graph"):
            CLAIMS["jacobian"](graph=[g.path(3)])

    @pytest.mark.parametrize(
        ("name", "graphs", "message"),
        [
            ("jacobian", g.path(4), "graphs is a Graph; pass a list"),
            ("jacobian", [], "pass a list of graphs"),
            ("jacobian", [g.path(4).edge_index], "graphs holds a Tensor"),
            ("limit", [g.path(1)], "not connected or a single node"),
            ("limit", [Graph("two", torch.tensor([[0, 1], [1, 0]]), 3)], "not connected"),
            ("path-independence", [g.path(5)], "a tree; the claim is about cycles"),
            ("squashing", [g.path(2)], "the claim is about three nodes"),
        ],
    )
    def test_what_a_claim_says_nothing_about_is_an_error(self, name, graphs, message):
        with pytest.raises(SettingsError, match=message):
            CLAIMS[name](graphs=graphs)

    @pytest.mark.parametrize("name", ["unifapp", "spectral", "energy"])
    def test_one_regular_graph_is_enough(self, name):
        report = CLAIMS[name](graphs=[g.cycle(5)])
        assert report.verdict == "corrected", failures(report)

    def test_a_claim_and_its_report_can_be_read(self):
        assert "graphs" in inspect.signature(CLAIMS["jacobian"]).parameters
        report = CLAIMS["limit"]()
        assert str(report).startswith("limit (Section 4.1): holds\n✓ kernel at t = ∞")

    def test_headline_is_the_first_check_or_the_first_that_failed(self):
        good, bad = Check("good", 0.0, 1.0), Check("bad", 2.0, 1.0)
        report = Claim("name", "where", "statement", lambda: iter((good, good)))()
        assert report.headline is good
        report = Claim("name", "where", "statement", lambda: iter((good, bad)))()
        assert report.headline is bad
