"""The certificate says what the report holds, no more and no less, and needs nothing but itself to be read."""

import json
import math
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from edgeformer.documents import schema
from edgeformer.errors import ExportError
from edgeformer.export.parity.certificate.page import (
    Axis,
    by_figure,
    largest_errors,
    plot_row,
    shares,
    write_certificate,
)
from edgeformer.export.parity.certificate.words import (
    checks_finding,
    figure,
    paragraph,
    summary,
    verdict,
    worst_check,
)
from edgeformer.export.parity.report import Check, Curve, Greedy, Report, Rounding, StateError

VOID = {"meta", "br", "img", "link", "input", "hr"}
NAN, INF = math.nan, math.inf

HOSTILE = (
    "<script>alert(1)</script>",
    "\"><img src='http://tracker.example/x.png'>",
    "$\\frac{x^2$ & 100 % </svg></style>",
    "two\nlines\twith\x07bell",
    "模型 🐫 نموذج",
    "x" * 300,
)


def check(name="prefill: worst ratio", value=1.25, limit=2.0, **changes) -> Check:
    return Check(
        **{
            "name": name,
            "what": "a whole text",
            "value": value,
            "limit": limit,
            "eager": 1.0,
            "reason": "two roundings",
        }
        | changes
    )


def curve(run="prefill", graph=(1e-6, 2e-6, 1.5e-6), eager=(1e-6, 1.8e-6, 1.6e-6), kl=(1e-13, 0.0, 3e-13), first=0):
    return Curve(run=run, first_position=first, graph=tuple(graph), eager=tuple(eager), kl=tuple(kl))


def layer(index=0, graph=(2e-7, 3e-7), eager=(2.1e-7, 2.9e-7)) -> tuple[StateError, ...]:
    """Return the errors of a layer's key and value."""
    return tuple(
        StateError(layer=index, tensor=name, graph=ours, eager=theirs)
        for name, ours, theirs in zip(("key", "value"), graph, eager, strict=True)
    )


def report(**changes) -> Report:
    whole = Report(
        version=2, mode="full", reference="float64 PyTorch, the checkpoint", precision="fp32",
        environment={"torch": "2.13.0", "provider": "cpu"}, hashes={"onnx/model.onnx": "ab" * 32}, seconds=12.5,
        checks=(
            check(),
            check("decode: max KL", 2e-13, 1e-11, eager=3e-13, reason="grows with the square"),
            check("decode: top-1", 1.0, 1.0, eager=None, at_least=True, reason="a tie is a tie"),
        ),
        greedy=Greedy(steps=256), states=layer(0) + layer(1), curves=(curve(), curve("decode", first=2)),
        rounding=None,
    )  # fmt: skip
    return replace(whole, **changes)


def failing() -> Report:
    """A graph that gives NaN in one run."""
    return report(
        checks=(
            check(),
            check("chunks: worst ratio", NAN),
            check("chunks: max KL", INF, 1e-11),
            check("far: nmse", 37.0),
        ),
        curves=(curve(), curve("chunks", graph=(1e-6, NAN, INF), kl=(1e-13, NAN, INF))),
        states=layer(0) + layer(1, graph=(NAN, 3e-7)),
        greedy=Greedy(steps=8, divergence=3, token=5, expected=9, margin=NAN, allowed_error=2e-6, excused=False),
    )


class Page(HTMLParser):
    """What a browser would make of a page: its elements with their attributes, and its text."""

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == [], "unclosed elements"

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if ("class", "number") not in attrs:  # the one element that stands inside sentences
            self.words.append(" ")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.words).split())

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.elements)


def write(tmp_path, what: Report, title="a model") -> Page:
    write_certificate(what, tmp_path / "parity", title)
    return Page((tmp_path / "parity/report.html").read_text(encoding="utf-8"))


def refuse(constant: str):
    raise AssertionError(f"{constant} is not JSON")


def read_json(tmp_path):
    return json.loads((tmp_path / "parity/report.json").read_text(encoding="utf-8"), parse_constant=refuse)


def test_json_holds_the_report(tmp_path):
    before = report(rounding=Rounding(mean_kl=1e-6, max_kl=2e-4, top1_agreement=0.999, nmse=1e-6))
    write(tmp_path, before)
    data = read_json(tmp_path)
    assert data.pop("passed") is True
    assert [plain.pop("passed") for plain in data["checks"]] == [True] * 3
    assert schema.from_json(Report, data) == before


def test_json_is_strict_where_figures_are_no_numbers(tmp_path):
    write(tmp_path, failing())
    data = read_json(tmp_path)
    assert [plain["value"] for plain in data["checks"]] == [1.25, "nan", "inf", 37.0]
    assert data["curves"][1]["graph"] == [1e-6, "nan", "inf"] and data["greedy"]["margin"] == "nan"
    assert schema.to_json({"low": -INF}) == {"low": "-inf"}


@pytest.mark.parametrize("make", [report, failing], ids=["passing", "failing"])
def test_page_holds_everything_and_loads_nothing(tmp_path, make):
    what = make()
    page = write(tmp_path, what, "tiny-llama")
    raw = (tmp_path / "parity/report.html").read_text(encoding="utf-8")
    assert "http://" not in raw and "https://" not in raw and "@import" not in raw
    assert page.count("script") == page.count("link") == page.count("iframe") == 0
    for tag, attributes in page.elements:
        for name in ("src", "srcset", "href", "xlink:href", "action", "data"):
            assert (attributes.get(name) or "#").startswith(("#", "data:")), (tag, attributes)
    assert set(re.findall(r"url\((.)", raw)) <= {"#"}
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids)) and set(re.findall(r'(?:url\(|href=")#([^")]+)', raw)) <= set(ids)

    assert verdict(what) in page.text and "tiny-llama" in page.text
    assert ("Passed" in page.words) == what.passed and ("Failed" in page.words) == (not what.passed)
    for one in what.checks:
        assert one.name in page.text and one.reason in page.text and one.what in page.text
        assert figure(one.value, one.limit, 1) in page.text
    assert [word for word in page.words if word in ("passed", "failed")] == [
        "passed" if one.passed else "failed" for group in by_figure(what.checks).values() for one in group
    ]
    for shown in (*what.hashes.values(), *what.environment.values(), what.reference, what.precision, what.mode):
        assert shown in page.text


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_names_from_anywhere_stay_text(tmp_path, text):
    what = report(
        reference=text, environment={text: text}, hashes={text: text}, precision=text, mode=text,
        checks=(check(f"{text}: {text}", 3.0, what=text, reason=text), check(text)), curves=(curve(text),),
        rounding=Rounding(mean_kl=0.0, max_kl=0.0, top1_agreement=1.0, nmse=0.0),
    )  # fmt: skip
    page = write(tmp_path, what, text)
    assert page.count("script") == page.count("img") == 0 and page.count("svg") == 5 and page.count("style") == 1
    assert " ".join(text.split()) in page.text
    assert read_json(tmp_path)["reference"] == text
    assert not re.search(r"(?<!\\)[<`$]", paragraph(what)), "Markdown would not show it as text"


def big(runs=20, layers=48, positions=40) -> Report:
    some = [1e-6 * (1 + (7 * index % 5) / 10) for index in range(positions)]
    return report(
        checks=tuple(check(f"run {run}: {kind}", 1.0 + run / 50) for run in range(runs) for kind in ("a", "b", "c")),
        curves=tuple(curve(f"run {run}", some, some, some) for run in range(runs)),
        states=tuple(error for index in range(layers) for error in layer(index)),
    )


ODD = {
    "one position, one layer": lambda: report(curves=(curve("p", (1e-6,), (2e-6,), (0.0,)),), states=layer()),
    "many runs and layers": big,
    "a long text": lambda: big(runs=1, positions=5000),
    "nothing ran": lambda: report(
        checks=(check("run", NAN, 0.0, eager=None),), curves=(), states=(), greedy=Greedy(steps=0)
    ),
    "an empty run": lambda: report(curves=(curve("p", (), (), ()),)),
    "all exact": lambda: report(
        curves=(curve("p", (0.0,) * 3, (0.0,) * 3, (0.0,) * 3),), states=layer(0, (0.0, 0.0), (0.0, 0.0)),
        checks=(check("p: differing logits", 0.0, 0.0, eager=None),),
    ),
    "nothing is a number": lambda: report(
        curves=(curve("p", (NAN,) * 3, (INF,) * 3, (-INF, NAN, INF)),), states=layer(0, (NAN, NAN), (NAN, NAN)),
        checks=(check("p: worst ratio", NAN, eager=NAN), check("p: top-1", NAN, 1.0, at_least=True)),
    ),
    "extremes": lambda: report(
        curves=(curve("p", (5e-324, 1e308, 1.0), (1.0, 1.0, 1e-300), (-1e-17, 5e-324, 1e308)),),
        checks=(check("p: a", 1e308, 1e-300), check("p: b", 1.0, 0.0), check("p: c", -1.0, -2.0)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("make", [report, failing, *ODD.values()], ids=["passing", "failing", *ODD])
def test_the_page_of_any_report_shows_every_check(tmp_path, make):
    what = make()
    page = write(tmp_path, what)
    assert sorted(path.name for path in (tmp_path / "parity").iterdir()) == ["report.html", "report.json"]
    assert (tmp_path / "parity/report.html").stat().st_size < 100_000
    dots = [attributes for tag, attributes in page.elements if tag == "circle" and "%" in attributes["cx"]]
    assert all(0 <= float(dot["cx"].rstrip("%")) <= 100 for dot in dots)
    kinds = {kind: sum(dot["class"] == kind for dot in dots) for kind in ("graph", "fails", "eager")}
    failures = len(what.failures())
    eager = sum(one.eager is not None for one in what.checks)
    assert kinds == {"graph": len(what.checks) - failures, "fails": failures, "eager": eager}
    runs = sum(len(one.graph) > 0 for one in what.curves)
    assert len(list(largest_errors(what))) == runs + len({error.tensor for error in what.states})


def test_the_plot_shows_zeros_and_what_is_no_number():
    checks = (check("a: x", 4.0), check("b: x", 0.0), check("c: x", NAN), check("d: x", 1e-6, eager=0.5))
    axis = Axis(shares(checks))
    row = plot_row("x", checks, axis)
    assert [kind for kind, _ in row.dots] == ["eager"] * 4 + ["fails", "graph", "fails", "graph"]
    places = [place for kind, place in row.dots if kind != "eager"]
    assert places[1] == axis.ZERO < places[3] < axis.limit < places[0] < places[2] == axis.BROKEN
    assert row.run == "c", "NaN is beyond all others"
    assert axis.ticks[axis.ZERO] == "0" and axis.ticks[axis.BROKEN] == "NaN, ∞"
    assert plot_row("x", checks[:1] * 2, axis).run == "", "the runs do not differ"
    plain = Axis(shares([check()]))
    assert not {plain.ZERO, plain.BROKEN} & plain.ticks.keys()
    for ratio in (0.01, 0.1, 10.0, 100.0):
        wide = Axis([0.001, 1000.0])
        assert wide.ticks[wide.place(ratio)] == f"{ratio:g}"


def test_the_largest_errors_are_found():
    """A fault in one position or layer is not hidden by the others, nor by eager PyTorch's own errors."""
    runs = (curve("p", (1e-6, 7e-6, 2e-6), (1e-6, 2e-6, 3e-6), (1e-13, 0.0, 4e-13), first=40), curve("q", (), (), ()))
    found = list(largest_errors(report(curves=runs, states=layer(0) + layer(1, (9e-7, 3e-7)))))
    assert found == [
        ("p", "position 41 of 40–42", 7e-6, 3e-6, 4e-13),
        ("cached keys", "layer 1 of 0–1", 9e-7, 2.1e-7, None),
        ("cached values", "layer 0 of 0–1", 3e-7, 2.9e-7, None),
    ]
    broken = next(largest_errors(failing_run()))
    assert broken.where == "position 1 of 0–2" and math.isnan(broken.graph) and math.isnan(broken.kl)


def failing_run() -> Report:
    return report(curves=(curve("chunks", graph=(1e-6, NAN, INF), kl=(1e-13, NAN, INF)),))


def test_the_page_holds_the_largest_errors(tmp_path):
    text = write(tmp_path, report()).text
    assert "prefill position 1 of 0–2 2e-6 1.80e-6 3e-13" in text
    assert "cached values layer 0 of 0–1 3e-7 2.90e-7 –" in text
    assert "Largest errors" not in write(tmp_path / "encoder", report(curves=(), states=())).text


def test_the_same_report_makes_the_same_bytes(tmp_path):
    write(tmp_path / "a", report())
    write(tmp_path / "b", report())
    for name in ("report.html", "report.json"):
        assert (tmp_path / "a/parity" / name).read_bytes() == (tmp_path / "b/parity" / name).read_bytes(), name


def test_the_finding_is_the_check_that_is_worst():
    assert checks_finding(report()) == (
        "Every check is within its limit; the closest is “prefill: worst ratio”: 1.25, where at most 2 is allowed"
    )
    assert checks_finding(failing()) == (
        "3 of 4 checks failed; the worst is “chunks: worst ratio”: NaN, where at most 2 is allowed"
    )


def test_greedy_text_in_words(tmp_path):
    tie = Greedy(steps=256, divergence=17, token=5, expected=9, margin=1e-6, allowed_error=2e-6)
    wrong = replace(tie, margin=0.3, excused=False)
    for greedy, tile in (
        (Greedy(steps=256), "256 of 256 as in float64"),
        (tie, "17 of 256 as in float64, then a tie"),
        (wrong, "17 of 256 as in float64, then different ones"),
    ):
        page = write(tmp_path, report(greedy=greedy))
        assert greedy.describe() in page.text and tile in page.text
        assert greedy.describe() in paragraph(report(greedy=greedy))
    page = write(tmp_path, report(greedy=Greedy(steps=0)))
    assert "No free-running text was made." in page.text and "Free-running tokens" not in page.text


def test_rounding_loss_is_told_apart_from_errors(tmp_path):
    assert "Rounding loss" not in write(tmp_path / "without", report()).text
    rounding = Rounding(mean_kl=3.1e-6, max_kl=2.2e-4, top1_agreement=0.99996, nmse=1.2e-6)
    text = write(tmp_path / "with", report(precision="fp16", rounding=rounding)).text
    assert "Storing the weights in fp16" in text and "99.996 % of positions" in text and "No limit is set" in text


def test_the_page_tells_of_several_summation_orders(tmp_path):
    assert "summation orders" not in write(tmp_path / "one", report()).text
    assert "in 8 summation orders" in write(tmp_path / "eight", report(orders=8)).text


def test_summary_is_what_a_manifest_keeps():
    assert summary(report()) == {
        "passed": True, "mode": "full", "reference": "float64 PyTorch, the checkpoint",
        "worst": {"name": "prefill: worst ratio", "value": 1.25, "limit": 2.0},
        "comparison": None,
        "greedy": {"steps": 256, "divergence": None, "excused": True},
    }  # fmt: skip
    failed = json.loads(json.dumps(summary(failing()), allow_nan=False))
    assert failed["passed"] is False and failed["greedy"] == {"steps": 8, "divergence": 3, "excused": False}
    assert failed["worst"] == {"name": "chunks: worst ratio", "value": "nan", "limit": 2.0}


def test_paragraph_for_a_readme():
    assert paragraph(report()) == (
        "Its parity is certified: all 3 checks of the full verification passed, against float64 PyTorch, the "
        "checkpoint. "
        "The figure closest to its limit is “prefill: worst ratio”: 1.25, where at most 2 is allowed. "
        f"{report().greedy.describe()}."
    )
    assert paragraph(failing()).startswith("**It is not at parity:** 3 of 4 checks of the full verification failed")
    assert "“a\\_b: \\*c\\*”" in paragraph(report(checks=(check("a_b: *c*"),)))


def test_worst_check_weighs_limits_of_both_kinds():
    near, agreement = check("a: x", 1.9), check("a: top-1", 0.9995, 0.999, at_least=True)
    assert worst_check(report(checks=(agreement, near))) is near
    assert worst_check(report(checks=(replace(agreement, value=0.99), near))).name == "a: top-1"
    assert math.isnan(worst_check(failing()).value)
    assert agreement.share(0.9995) == pytest.approx(0.5)
    assert agreement.share(1.0) == 0 and near.share(3.0) == 1.5
    exact = check("repeat: differing logits", 0.0, 0.0)
    assert exact.share(0.0) == 0 and exact.share(1.0) == INF


def test_a_report_without_checks_certifies_nothing(tmp_path):
    with pytest.raises(ValueError, match="without checks certifies nothing"):
        write_certificate(report(checks=()), tmp_path / "parity", "a model")
    assert not (tmp_path / "parity").exists()


@pytest.mark.parametrize(
    ("value", "apart_from", "text"),
    [
        (1.0958, (), "1.10"), (0.0, (), "0"), (1190.0, (), "1,190"), (123.4, (), "123"), (2.5347e-12, (), "2.53e-12"),
        (1e-9, (), "1e-9"), (1.2e20, (), "1.20e20"), (0.000185, (), "1.85e-4"), (0.71, (), "0.710"), (NAN, (), "NaN"),
        (INF, (), "∞"), (-INF, (), "−∞"), (2.0004, (2.0,), "2.0004"), (0.99996, (1.0,), "0.99996"),
        (1.00004e-5, (1e-5,), "1.00004e-5"),
    ],
)  # fmt: skip
def test_figures_do_not_round_onto_their_limit(value, apart_from, text):
    assert figure(value, *apart_from) == text


def browse(page, folder) -> tuple[str, set[str]]:
    """Render a page in Chromium, all names unresolvable; return the DOM, and the URLs that the page asked for."""
    folder.mkdir()
    log, shot = folder / "net.json", folder / "shot.png"
    line = [
        "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        f"--user-data-dir={folder / 'profile'}", "--host-resolver-rules=MAP * ~NOTFOUND", "--window-size=390,2000",
        f"--log-net-log={log}", f"--screenshot={shot}", "--dump-dom", page.as_uri(),
    ]  # fmt: skip
    dom = subprocess.run(line, capture_output=True, text=True, encoding="utf-8", timeout=120, check=True).stdout
    assert shot.stat().st_size > 1000
    events = [event.get("params", {}) for event in json.loads(log.read_text(encoding="utf-8"))["events"]]
    # The browser's own errands have an initiator that is "not an origin".
    asked = {event["url"] for event in events if event.get("initiator", "not an origin") != "not an origin"}
    return dom, {url for url in asked if url.startswith("http")}


@pytest.mark.skipif(
    shutil.which("chromium") is None,
    reason="2026-11-20: needs a browser, which pip cannot install; apt install chromium",
)
def test_a_browser_renders_the_page_without_the_network(tmp_path):
    write(tmp_path, failing())
    page = tmp_path / "parity/report.html"
    dom, asked = browse(page, tmp_path / "page")
    assert asked == set()
    assert verdict(failing()) in " ".join(dom.split()) and dom.count("<svg") == 7

    # The page forbids itself what it does not need, and a page that asks is caught asking.
    greedy = '<img src="http://tracker.example/x.png"><script>document.title = "ran"</script></main>'
    page.write_text(page.read_text(encoding="utf-8").replace("</main>", greedy), encoding="utf-8")
    dom, asked = browse(page, tmp_path / "forbidden")
    assert asked == set() and "<title>ran" not in dom
    page.write_text(re.sub("<meta http-equiv.*?>", "", page.read_text(encoding="utf-8")), encoding="utf-8")
    dom, asked = browse(page, tmp_path / "asking")
    assert asked == {"http://tracker.example/x.png"} and "<title>ran" in dom


@pytest.mark.parametrize("name", ["/dev/null", "a" * 300], ids=["no folder", "too long"])
def test_a_certificate_that_cannot_be_written_is_one_sentence(tmp_path, name):
    with pytest.raises(
        ExportError, match=r"^the certificate cannot be written to .*: (File exists|File name too long)\.$"
    ):
        write_certificate(report(), tmp_path / name, "a model")
