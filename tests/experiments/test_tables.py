"""Tables: what the paper printed, what was measured, and pages that hold both."""

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from bunn.experiments.cells import compare
from bunn.experiments.embedding import embed, is_current, refresh
from bunn.experiments.published import ELSEWHERE, LAYOUTS, PUBLISHED, Published, published
from bunn.experiments.results import METRICS
from bunn.experiments.tables import markdown, tables_for
from tests.experiments.samples import sample, trees


def best_of(experiment: str, dataset: str) -> str:
    """The model the paper prints in bold."""
    entries = [
        p
        for p in PUBLISHED
        if (p.experiment, p.dataset) == (experiment, dataset) and p.model != ELSEWHERE
    ]
    sign = 1 if METRICS[entries[0].metric].lower_is_better else -1
    return min(entries, key=lambda p: sign * p.mean).model


def cells(line: str) -> list[str]:
    """The cells of a line of a Markdown table."""
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def row(text: str, label: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {label} |")]
    return cells(line)


# The published numbers


def test_published_numbers_are_complete_and_plausible():
    sizes = {name: sum(p.experiment == name for p in PUBLISHED) for name in LAYOUTS}
    assert sizes == {
        "synthetic": 9 * 2,
        "neighborsmatch": 4 * 7 - 2 + 5,
        "heterophilous": 8 * 5 + 5,
        "ablations": 0,
        "lrgb": 9 * 3 - 1 + 3,
        "heterophilous-runtime": 5 * 5,
        "lrgb-runtime": 4 * 3,
        "lrgb-encodings": 3 * 2,
        "lrgb-weights": 2 * 2,
    }
    assert len({(p.experiment, p.dataset, p.model, p.metric) for p in PUBLISHED}) == len(PUBLISHED)
    for p in PUBLISHED:
        assert p.source
        assert (p.mean is None) == (p.note == "out of memory on 24 GB")
        if METRICS[p.metric].fraction:
            assert 0 < p.mean <= 1
            assert p.std is None or 0 < p.std < 0.05


def test_the_bold_numbers_of_the_paper_are_the_best():
    bold = {
        "synthetic": {"barbell": "bunn", "clique": "bunn"},
        "heterophilous": dict.fromkeys(
            ("roman-empire", "amazon-ratings", "minesweeper", "tolokers", "questions"), "bunn"
        ),
        "lrgb": {"peptides-func": "bunn", "peptides-struct": "graph-vit", "pascalvoc-sp": "gps"},
        "lrgb-encodings": {"peptides-func": "bunn-rwse", "peptides-struct": "bunn-lpe"},
        "lrgb-weights": {"peptides-func": "bunn", "peptides-struct": "bunn"},
    }
    for experiment, winners in bold.items():
        assert {dataset: best_of(experiment, dataset) for dataset in winners} == winners


def test_units_are_those_of_results():
    entry = published("heterophilous", "minesweeper", "bunn", "roc-auc")
    assert (entry.mean, entry.std) == (0.9899, 0.0016)
    assert published("heterophilous", "minesweeper", "bunn", "accuracy") is None
    assert published("lrgb", "peptides-struct", "bunn", "mae").mean == 0.2463
    assert published("heterophilous-runtime", "roman-empire", "sage", "seconds").mean == 105
    assert published("synthetic", "clique", "gcn", "mse").mean == 29.65
    starred = {(p.model, p.dataset) for p in PUBLISHED if p.note and p.mean is not None}
    assert starred == {("nsd", "tolokers"), ("nsd", "questions")}


def test_deeper_trees_are_harder():
    for model in ("ggnn", "gat", "gin", "gcn", "bunn"):
        curve = [p.mean for p in PUBLISHED if p.experiment == "neighborsmatch" and p.model == model]
        assert curve == sorted(curve, reverse=True)
        assert curve[0] == 1.0


# Tables


def test_a_cell_has_ours_and_the_papers():
    (table,) = tables_for([sample()], "synthetic")
    (cell,) = [cell for row in table.rows for cell in row.cells if cell.result is not None]
    assert cell.text == "0.002 ± 0.001 (paper 0.01 ± 0.07)"


def test_every_row_of_the_paper_is_there_and_missing_ones_say_so():
    text = markdown([sample()], ["synthetic"])
    assert row(text, "BuNN") == [
        "BuNN",
        "**0.002 ± 0.001** (paper 0.01 ± 0.07)",
        "not run here (paper 0.03 ± 0.01)",
        "3",
    ]
    assert row(text, "GPS")[1:] == ["not run here (paper 1.06 ± 0.13)"] * 2 + ["–"]
    assert "| MSE ↓ | barbell | clique | runs |" in text
    assert text.count("not run here") == 17


def test_per_cent_where_the_paper_prints_per_cent():
    results = [
        sample(
            experiment="heterophilous", dataset="minesweeper", metric="roc-auc", test=[0.9, 0.92]
        ),
        sample(experiment="lrgb", dataset="peptides-struct", metric="mae", test=[0.25]),
    ]
    text = markdown(results)
    assert row(text.split("### Long")[0], "BuNN")[3] == "**91.00 ± 1.41** (paper 98.99 ± 0.16)"
    assert row(text.split("### Long")[1], "BuNN")[2] == "**25.00** (paper 24.63 ± 0.12)"
    assert row(text.split("### Long")[0], "highest elsewhere")[3] == "99.03 (GraphTARIF)"
    assert "minesweeper (ROC AUC ↑)" in text
    assert "peptides-struct (MAE ↓)" in text
    assert "\\* in the paper: some runs were out of memory" in text


def test_out_of_memory_and_times():
    text = markdown([], ["heterophilous-runtime"])
    assert row(text, "NSD")[1] == "not run here (paper 7:58)"
    assert row(text, "NSD")[4] == "not run here (paper out of memory on 24 GB)"
    assert row(text, "SAGE")[3] == "not run here (paper 48 s)"


@given(st.lists(st.floats(0, 1), min_size=2, max_size=4))
def test_the_best_of_a_column_is_bold(means):
    for metric, pick in (("mse", min), ("accuracy", max)):
        results = [
            sample(experiment="own", dataset="ring", model=f"m{i}", metric=metric, test=[mean])
            for i, mean in enumerate(means)
        ]
        (table,) = tables_for(results, "own")
        best = pick(float(row.cells[0].ours) for row in table.rows)
        for line in table.rows:
            assert line.cells[0].best == (float(line.cells[0].ours) == best)
            assert (f"**{line.cells[0].ours}**" in row(table.markdown(), line.label)[1]) == (
                line.cells[0].best
            )


def test_columns_without_results_are_not_confused():
    """Equal cells in several columns: each is marked in its own."""
    results = trees("bunn", {5: 1.0}) + trees("gcn", {5: 0.2, 6: 0.2})
    (table,) = tables_for(results, "neighborsmatch")
    marked = [(r.label, c) for r in table.rows for c, cell in enumerate(r.cells) if cell.best]
    assert marked == [("GCN", 4), ("BuNN", 3)]
    assert table.heads[:2] == ["r = 2", "r = 3"]


def test_what_nobody_ran_is_said_once_for_a_model():
    results = [sample(dataset="barbell"), sample(dataset="barbell", preset="quick")]
    text = markdown(results, ["synthetic"])
    _, here, missing, _ = row(text, "BuNN")
    assert "paper" in here
    assert missing.startswith("not run here (paper")
    _, here, missing, _ = row(text, "BuNN (quick)")
    assert "paper" in here
    assert missing == "–"


def test_presets_have_rows_of_their_own_and_the_papers_first():
    presets = ("quick", "labels", "released", "paper", "tuned")
    results = [sample(preset=preset) for preset in presets]
    text = markdown(results)
    labels = [cells(line)[0] for line in text.splitlines() if line.startswith("| BuNN")]
    names = ("released", "tuned", "labels", "quick")
    assert labels == ["BuNN", *(f"BuNN ({name})" for name in names)]


def test_runs_are_counted():
    results = [sample(), sample(dataset="clique", test=[0.02] * 5), sample(model="mlp", test=[1.1])]
    text = markdown(results)
    assert row(text, "BuNN")[-1] == "3–5"
    assert row(text, "MLP")[1] == "1.100 (paper 1.08 ± 0.07)"
    assert row(text, "MLP")[-1] == "1"


def test_what_the_paper_has_no_column_for_is_a_second_table():
    results = [
        sample(experiment="heterophilous", dataset="texas", metric="accuracy", test=[0.8]),
        sample(experiment="heterophilous", dataset="minesweeper", metric="accuracy", test=[0.7]),
    ]
    first, second = tables_for(results, "heterophilous")
    assert not first.results
    assert [column.dataset for column in second.columns] == ["minesweeper", "texas"]
    assert "paper" not in second.markdown()


def test_the_part_is_shown_where_it_is_not_the_usual_one():
    assert "**0.002 ± 0.001 (train)**" in markdown([sample(part="train")])
    assert "(train)" not in markdown(trees("bunn", {5: 1.0}))
    assert "(test)" in markdown([*trees("bunn", {5: 1.0}), sample(**{
        "experiment": "neighborsmatch", "dataset": "tree-neighborsmatch-r6", "metric": "accuracy",
        "test": [0.5],
    })])  # fmt: skip


def test_small_errors_are_not_printed_as_zero():
    assert "**0.0002**" in markdown([sample(test=[0.0002])])
    assert "**0.000**" in markdown([sample(test=[0.0])])


@given(st.permutations(range(6)))
def test_the_order_of_results_does_not_matter(order):
    models = ("bunn", "gcn", "mlp")
    results = [sample(model=m, dataset=d) for m in models for d in ("barbell", "clique")]
    assert markdown([results[i] for i in order]) == markdown(results)


def test_a_result_given_twice():
    with pytest.raises(ValueError, match=r"barbell-bunn-paper.json twice"):
        tables_for([sample(), sample()], "synthetic")


def test_an_unknown_experiment():
    with pytest.raises(ValueError, match=r"'sinthetic'.*did you mean 'synthetic'"):
        tables_for([], "sinthetic")


HOSTILE = "a|b\n<!-- end -->\n| c | <script>alert(1)</script> [bold]x[/bold]"


def test_rows_with_the_same_note_share_a_line():
    results = [sample(model=model, notes="Short.") for model in ("gcn", "sage")]
    results += [sample(model="gat", dataset="clique", notes="Short.")]
    (table,) = tables_for(results, "synthetic")
    assert [note for _, note in table.notes] == ["Short."] * 2
    assert {which for which, _ in table.notes} == {"GCN, SAGE on barbell", "GAT on clique"}


def test_notes_are_listed_once_and_stay_in_their_line():
    results = [sample(notes=HOSTILE), sample(dataset="clique", notes=HOSTILE)]
    text = markdown(results)
    (note,) = [line for line in text.splitlines() if line.startswith("- ")]
    assert note.startswith("- BuNN on barbell, clique: a\\|b &lt;!-- end -->")
    assert "<script" not in text
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert {len(cells(line)) for line in table} == {4}


@pytest.mark.parametrize("width", [60, 100, 160])
def test_a_terminal_shows_the_same_numbers(width):
    results = [sample(notes=HOSTILE), sample(model="gcn", test=[1.0])]
    console = Console(file=io.StringIO(), width=width)
    for table in tables_for(results, "synthetic"):
        console.print(table.rich())
    text = console.file.getvalue()
    for words in ("Synthetic tasks", "MSE ↓", "0.002 ± 0.001", "(0.01 ± 0.07)", "not run here"):
        assert words in text
    assert "[bold]" in text
    assert all(len(line) <= width for line in text.splitlines())


# Against the paper


@given(
    ours=st.lists(st.floats(0.2, 0.8), min_size=1, max_size=5),
    paper=st.floats(0.2, 0.8),
    std=st.floats(0, 0.1),
)
def test_comparisons_mirror(ours, paper, std):
    """Up and down are mirror images, and a large enough spread covers any gap."""
    up = sample(metric="accuracy", test=ours)
    down = sample(metric="mse", test=ours)
    verdicts = [
        compare(result, Published("synthetic", "barbell", "bunn", result.metric, paper, std, ""))
        for result in (up, down)
    ]
    assert tuple(verdicts) in {("within", "within"), ("better", "worse"), ("worse", "better")}
    gap = abs(up.test_mean - paper)
    if gap > up.test_std + std + 0.0051:
        assert verdicts[0] == ("better" if up.test_mean > paper else "worse")
    if gap < up.test_std + std:
        assert verdicts[0] == "within"


def test_nothing_is_compared_with_nothing():
    oom = published("heterophilous-runtime", "tolokers", "nsd", "seconds")
    assert compare(sample(metric="seconds"), oom) is None


# Tables in pages

PAGE = """# A page

<!-- bunn report: synthetic -->
typed by hand
<!-- end -->

Text between. `<!-- bunn report: lrgb -->` in a line is no marker.

<!-- bunn report: neighborsmatch -->
<!-- end -->

Last words."""


@pytest.fixture
def site(tmp_path):
    """A page in a folder, results beside the folder."""
    sample().write(tmp_path / "results")
    page = tmp_path / "docs" / "page.md"
    page.parent.mkdir()
    page.write_text(PAGE)
    return page


def test_a_page_is_refreshed_between_its_markers_only(site):
    assert not is_current(site)
    assert refresh(site) is True
    text = site.read_text()
    assert "typed by hand" not in text
    assert "| BuNN | **0.002 ± 0.001** (paper 0.01 ± 0.07) |" in text
    assert text.count("<!-- end -->") == 2
    kept = re.sub(r"(report: \w+ -->\n).*?(<!-- end)", r"\1\2", text, flags=re.DOTALL)
    assert kept == PAGE.replace("typed by hand\n", "")
    assert is_current(site)
    assert refresh(site) is False
    assert site.read_text() == text


def test_a_short_page_leaves_the_notes_to_others():
    results = [sample(notes="A narrower network.")]
    for marker, noted in (("synthetic", True), ("synthetic, without notes", False)):
        text = embed(f"<!-- bunn report: {marker} -->\n<!-- end -->\n", results)
        assert "| BuNN |" in text
        assert ("narrower" in text) == noted


def test_a_page_is_not_current_after_a_new_result_or_an_edit(site):
    refresh(site)
    sample(model="gcn", test=[1.0]).write(site.parent.parent / "results")
    assert not is_current(site)
    refresh(site)
    site.write_text(site.read_text().replace("0.002 ±", "0.001 ±"))
    assert not is_current(site)
    other = site.parent / "other"
    sample(test=[0.5]).write(other)
    refresh(site, other)
    assert "**0.500**" in site.read_text()


def test_a_note_cannot_close_the_marker(site):
    sample(notes="<!-- end -->").write(site.parent.parent / "results")
    refresh(site)
    assert refresh(site) is False


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("<!-- bunn report: synthetic -->\n", "no <!-- end -->"),
        ("<!-- bunn report: synthetic -->\n<!-- bunn report: lrgb -->\n<!-- end -->", "line 2"),
        ("\n<!-- bunn report: sinthetic -->\n<!-- end -->", "line 2.*did you mean 'synthetic'"),
    ],
)
def test_wrong_markers(site, text, words):
    site.write_text(text)
    with pytest.raises(ValueError, match=words) as error:
        refresh(site)
    assert str(site) in str(error.value)
    assert site.read_text() == text


@given(st.text(alphabet=st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"])))
def test_text_without_markers_is_left_alone(text):
    assert embed(text, []) == text


def test_no_results_near_a_page(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("text")
    with pytest.raises(FileNotFoundError, match=r"page\.md.*results"):
        is_current(page)
