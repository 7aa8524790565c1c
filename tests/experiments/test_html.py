"""The HTML report: one file, well formed, the same bytes again, and safe whatever a file says."""

import re
from html.parser import HTMLParser

import pytest

from bunn.experiments.html import page, write_html
from bunn.experiments.plots import curve_figure, strokes_for
from tests.experiments.samples import sample, trees, with_curves

VOID = {"meta", "br", "hr", "img", "link", "input", "col"}
HOSTILE = """</style></pre><script>alert(1)</script><img src=x onerror=alert(1)>"' & <b>"""


class Reader(HTMLParser):
    """Reads a page, checks that tags are closed in order, and keeps what it saw."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.text = [], [], ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def results():
    return [
        with_curves(),
        with_curves(model="gcn", test=[1.05, 1.1], notes="A narrower network."),
        sample(dataset="clique", test=[0.9]),
        *trees("bunn", {2: 1.0, 5: 1.0}),
        *trees("gcn", {2: 1.0, 5: 0.19}),
    ]


@pytest.fixture(scope="module")
def text(results):
    return page(results)


def test_the_same_results_give_the_same_bytes(results, text, tmp_path):
    again = write_html(list(reversed(results)), tmp_path / "new" / "report.html")
    assert again.read_text(encoding="utf-8") == text


def test_the_page_is_well_formed(text):
    found = Reader(text)
    names = [attributes["id"] for _, attributes in found.tags if "id" in attributes]
    assert len(names) == len(set(names))
    links = {a["href"][1:] for a in found.all("a")}
    used = {a["xlink:href"][1:] for a in found.all("use")}
    clips = set(re.findall(r"url\(#(.*?)\)", text))
    assert links == {"synthetic", "neighborsmatch"}
    assert used
    assert links | used | clips <= set(names)


def test_nothing_is_loaded_from_elsewhere(text):
    found = Reader(text)
    assert not {"script", "link", "img", "iframe", "object", "base"} & {
        tag for tag, _ in found.tags
    }
    for _, attributes in found.tags:
        for name, value in attributes.items():
            assert not name.startswith("on")
            if name in ("src", "href", "xlink:href", "data", "action"):
                assert value.startswith("#")
    outside_names = re.sub(r'xmlns(:\w+)?="[^"]*"', "", text)
    assert "://" not in outside_names
    assert "@import" not in text
    policies = [a["content"] for a in found.all("meta") if "http-equiv" in a]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'"]


def test_it_can_be_read_by_everyone(text):
    found = Reader(text)
    assert found.all("html") == [{"lang": "en"}]
    assert all(a.get("scope") in ("col", "row") for a in found.all("th"))
    plots = [a for a in found.all("svg") if a.get("aria-hidden") != "true"]
    assert len(plots) == 3  # two curves of the barbell, accuracy against depth
    for attributes in plots:
        assert attributes["role"] == "img"
        assert len(attributes["aria-label"]) > 20
        assert "width" not in attributes
    assert "prefers-color-scheme: dark" in text
    assert "width=device-width" in text


def test_plots_take_the_colours_of_the_page(text):
    drawings = "".join(re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL))
    assert "currentColor" in drawings
    assert "var(--c0)" in drawings
    assert not re.search(r"#(?!0{6})[0-9a-f]{6}\b", drawings)
    for name in set(re.findall(r"var\((--\w+)\)", text)):
        assert text.count(f"{name}: #") == 2, name  # light and dark


def test_numbers_notes_and_provenance(text):
    found = Reader(text)
    for words in (
        "0.002 ± 0.001",
        "paper 0.01 ± 0.07",
        "not run here",
        "A narrower network.",
        "bunn reproduce synthetic",
        "a processor",
        "torch 2.8.0",
        "synthetic/barbell-gcn-paper.json",
        "0.001, 0.002, 0.003",
    ):
        assert words in found.text
    assert text.count("<dt>command</dt>") == 7
    # BuNN's 0.9 on the clique against 0.03; all else is within the spread.
    assert [a["aria-label"] for a in found.all("span") if "aria-label" in a] == [
        "worse than published"
    ]


def test_text_from_files_is_escaped():
    result = with_curves(
        notes=HOSTILE,
        device=HOSTILE,
        command=HOSTILE,
        git_commit=HOSTILE,
        versions={HOSTILE: HOSTILE},
        options={HOSTILE: [HOSTILE]},
        extra={HOSTILE: HOSTILE},
    )
    for name in ("experiment", "dataset", "model", "preset"):  # refused by Result; and if not
        object.__setattr__(result, name, HOSTILE)
    found = Reader(page([result]))
    assert "alert(1)" in found.text
    assert not {"script", "img", "b"} & {tag for tag, _ in found.tags}
    assert not any(name.startswith("on") for _, a in found.tags for name in a)


def test_no_results_yet():
    found = Reader(page([]))
    assert "no results yet" in found.text
    assert not found.all("section")


def test_an_experiment_that_was_asked_for_is_shown_without_results():
    found = Reader(page([], ["neighborsmatch"]))
    assert [a["id"] for a in found.all("section")] == ["neighborsmatch"]
    assert "How each number was measured" not in found.text
    assert len([a for a in found.all("svg") if a.get("role") == "img"]) == 1


def test_strokes_are_told_apart():
    models = ["base-1", "base-2", "mlp", "gcn", "sage", "gat", "gps", "nsd", "bunn"]
    strokes = strokes_for(models)
    assert len({(s.colour, s.dashes) for s in strokes.values()}) == len(models)
    assert strokes["bunn"].width > max(strokes[m].width for m in models[:-1])


def test_a_curve_is_what_was_recorded():
    results = [with_curves(), sample(model="gcn"), with_curves(preset="quick")]
    strokes = strokes_for(["gcn", "bunn"])
    figure = curve_figure(results, "train_loss", strokes)
    lines = figure.axes[0].lines
    assert [list(line.get_ydata()) for line in lines] == [[30.0, 1.0, 0.01]] * 2
    assert [line.get_linestyle() for line in lines] == ["-", "--"]
    assert figure.axes[0].get_yscale() == "log"
    assert curve_figure([sample()], "train_loss", strokes) is None


def test_a_failed_write_leaves_the_old_page(results, tmp_path, monkeypatch):
    path = write_html([], tmp_path / "report.html")
    before = path.read_bytes()
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        write_html(results[2:3], path)
    assert path.read_bytes() == before


def test_a_learned_bundle_is_drawn():
    bundle = {"angles": [[0.1] * 20], "cluster": [0] * 10 + [1] * 10, "x": [0.5] * 20}
    text = page([sample(extra={"bundle": bundle})])
    assert "The learned bundles" in text
    assert 'id="synthetic-bundle-' in text
