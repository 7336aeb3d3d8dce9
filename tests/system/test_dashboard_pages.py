"""The dashboard's pages in a real browser, over a real dashboard and real studies."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import numpy as np
import pytest
from browser import CHROMIUM, FLAGS, RULES_OF_COLOURS
from commands import WarmProcess, run_merlin
from live_dashboard import LiveDashboard, live_dashboard
from waiting import wait_until

from merlin.base.png import png

pytest.importorskip("playwright")
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page, Route, expect, sync_playwright

if CHROMIUM is None and not os.environ.get("CI"):
    pytest.skip("chromium is not installed", allow_module_level=True)

expect.set_options(timeout=60_000)

HOSTILE = '<img src=x onerror="hacked=1"><script>hacked=1</script>'
NAME = "<img src=x onerror=hacked=1>&'\""  # all that a name of a study may be made of
STUDY = rf"""
description: {{name: {json.dumps(NAME)}, description: {json.dumps(HOSTILE)}}}
study:
  - name: shell
    run:
      cmd: |
        echo out; echo '{HOSTILE}' >&2
        printf '%s' "$MERLIN_VALUE_LABEL" > label.html
        cp $(SPECROOT)/dot.png .
        [ "$(MERLIN_SAMPLE_ID)" -lt 38 ]
  - name: draw
    run: {{function: "pictures:draw"}}
  - name: collect
    run:
      depends: [draw]
      aggregate:
        samples_per_shard: 20
        fields:
          size: {{units: {json.dumps(HOSTILE)}, description: {json.dumps(HOSTILE)}}}
          picture: {{kind: image, shape: [8, 8]}}
  - name: train
    run: {{depends: [collect], cmd: cp -r $(SPECROOT)/trained ./run}}
merlin:
  samples: {{file: samples.csv, column_labels: [LABEL, X]}}
"""
PICTURES = f"""
import numpy as np
def draw(inputs, context):
    x = inputs["X"][:, None, None]
    if np.any(x > 36):
        raise RuntimeError({HOSTILE!r})
    return {{"size": x[:, 0, 0] * 2, "picture": np.cos(x / 9 + np.mgrid[:8, :8].sum(axis=0))}}
"""
WAITING = """
description: {name: waiting, description: Its tasks wait until they may go on}
study:
  - name: wait
    run: {cmd: "while [ ! -e $(SPECROOT)/go.$(MERLIN_SAMPLE_ID) ]; do sleep 0.05; done"}
  - name: after
    run: {depends: [wait], cmd: "echo $(X)"}
merlin:
  samples: {generate: {method: sobol, num: 4, bounds: {X: [0, 1]}}, column_labels: [X]}
"""
MILLION = """
description: {name: million, description: A million samples}
study:
  - name: simulate
    run: {cmd: "echo $(X)"}
merlin:
  samples: {generate: {method: sobol, num: 1000000, bounds: {X: [0, 1]}}, column_labels: [X]}
"""


# keeps what a screen reader would say by itself
LISTEN = """() => {
    window.spoken = [];
    const node = document.getElementById("spoken");
    new MutationObserver(() => spoken.push(node.textContent)).observe(node, {childList: true, subtree: true});
}"""


@dataclass
class Dashboard:
    """A process of `merlin dashboard`."""

    live: LiveDashboard
    root: str = "/"

    @property
    def url(self) -> str:
        """With the token."""
        return self.live.url

    @property
    def base(self) -> str:
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}{self.root}"


@contextmanager
def dashboard(*words: str | Path, home: Path, root: str = "/") -> Iterator[Dashboard]:
    with live_dashboard(home, *words, env={"HOME": str(home)}) as live:
        yield Dashboard(live, root)
        live.end(signal.SIGINT)


@dataclass
class Visit:
    """A page in a browser, and everything that went wrong in it."""

    page: Page
    at: Dashboard
    foreign: list[str] = field(default_factory=list)  # requests to other servers
    complaints: list[str] = field(default_factory=list)  # of the browser

    def watch(self) -> None:
        host = urlsplit(self.at.base).netloc
        self.page.on("request", lambda r: host == urlsplit(r.url).netloc or self.foreign.append(r.url))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: self.complaints.append(dialog.message))
        self.page.on("console", lambda m: m.type != "error" or self.complaints.append(m.text))

    def go(self, path: str, sign: str) -> Page:
        """Open a page of the dashboard, and wait until `sign` can be seen."""
        self.page.goto(self.at.base + path)
        expect(self.page.locator(sign).first).to_be_visible()
        return self.page

    def assert_clean(self) -> None:
        """Nothing of the studies' text has run, nobody else was asked, and the browser does not complain."""
        assert self.page.evaluate("window.hacked") is None
        assert self.page.locator("main :is(script, img[src=x], [onload], [onerror], [onclick])").count() == 0
        assert self.foreign == []
        # other tests make and remove networks of their own, which browsers take for a change of this one
        assert [c for c in self.complaints if "ERR_NETWORK_CHANGED" not in c] == []


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def studies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a study that has failures, files, a data set and a training run, all with hostile text."""
    folder = tmp_path_factory.mktemp("studies")
    (folder / "study.yaml").write_text(STUDY)
    (folder / "pictures.py").write_text(PICTURES)
    (folder / "dot.png").write_bytes(png(np.zeros((4, 4, 3), np.uint8)))
    _write_run(folder / "trained")
    with (folder / "samples.csv").open("w", newline="") as file:
        csv.writer(file).writerows([f"{HOSTILE}{i}", i] for i in range(40))
    done = run_merlin("run", "--local", "study.yaml", cwd=folder)
    assert "planned 84 = ok 79 + failed 5" in done.stdout + done.stderr, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def seen(studies: Path, home: Path) -> Iterator[Dashboard]:
    with dashboard("--root", studies, home=home) as found:
        yield found


@pytest.fixture
def visit(browser: Browser, seen: Dashboard) -> Iterator[Visit]:
    """A browser that has signed in."""
    with _signed_in(browser, seen) as found:
        yield found
        found.assert_clean()


@contextmanager
def _signed_in(browser: Browser, at: Dashboard, **options: Any) -> Iterator[Visit]:
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
    try:
        yield _sign_in(context, at)
    finally:
        context.close()


@pytest.fixture(scope="module")
def signed_in(browser: Browser, seen: Dashboard) -> Iterator[BrowserContext]:
    """A browser that has signed in, whose pages share what they load."""
    with _signed_in(browser, seen) as found:
        context = found.page.context
        found.assert_clean()
        found.page.close()
        yield context


def _new_page(context: BrowserContext, at: Dashboard) -> Visit:
    visit = Visit(context.new_page(), at)
    visit.watch()
    return visit


def _sign_in(context: BrowserContext, at: Dashboard) -> Visit:
    visit = _new_page(context, at)
    visit.page.goto(at.url)
    expect(visit.page.get_by_role("heading", level=1)).to_have_text("Studies")
    return visit


def _write_run(run: Path) -> None:
    """A tournament of two trainers, as `merlin train` writes it."""
    facts = {
        "format": "merlin-run",
        "version": 1,
        "created": "2026-01-01T00:00:00+00:00",
        "data_path": HOSTILE,
        "num_parameters": 12345,
    }
    (run / "best").mkdir(parents=True)
    (run / "run.json").write_text(json.dumps(facts))
    best = {"trainer": 1, "step": 40, "metric": HOSTILE, "direction": "min", "value": 0.25, "metrics": {}}
    (run / "best" / "best.json").write_text(json.dumps(best))
    for trainer in range(2):
        lines: list[dict[str, Any]] = []
        for step in range(10, 50, 10):
            loss = 1 / step + trainer / 100
            lines.append(
                {
                    "kind": "train",
                    "step": step,
                    "time_s": step,
                    "samples_per_s": 900.0,
                    "values": {"loss": loss},
                }
            )
            lines.append({"kind": "validation", "step": step, "values": {"loss": loss * 1.1}})
            kept = "partner" if trainer == step // 10 % 2 else "local"
            lines.append(
                {"kind": "round", "step": step, "round": step // 10, "partner": 1 - trainer, "kept": kept}
            )
        lines.append({"kind": "end", "step": 40, "state": "finished"})
        (run / "trainers" / str(trainer)).mkdir(parents=True)
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (run / "trainers" / str(trainer) / "metrics.jsonl").write_text(text)


def _study(studies: Path, name: str = "") -> str:
    """The address of the study in a folder."""
    [workspace] = [p for p in studies.iterdir() if (p / "merlin_info").is_dir() and p.name.startswith(name)]
    return f"study/{quote(workspace.name, safe='')}"


# page: its address below the study ("" with a "/": not of a study), and what can be seen when it is there
PAGES = {
    "studies": ("/", "tbody a"),
    "workers": ("/workers", "text=/no broker is configured|No worker is alive/"),
    "overview": ("", ".groups summary"),
    "tasks": ("/tasks?outcome=failed", "tbody tr:nth-child(5)"),
    "failures": ("/failures", ".groups li:nth-child(2)"),
    "a task": ("/task/shell/39", "details[open] .log"),
    "a study's workers": ("/workers", "text=No worker is alive"),
    "data": ("/data", ".images img >> nth=3"),
    "training": ("/training", "svg.lineage .dot >> nth=1"),
}


def _axe(page: Page, *rules: str) -> list[str]:
    """What these rules have to say, or all."""
    options = {"resultTypes": ["violations"], **({"runOnly": rules} if rules else {})}
    violations = Axe().run(page, options=options).response["violations"]
    return [f"{v['id']}: {[node['html'][:200] for node in v['nodes']]}" for v in violations]


@pytest.mark.parametrize("name", PAGES)
def test_every_page_is_there_for_all_eyes_and_on_a_phone_and_asks_nobody_else(
    name: str, signed_in: BrowserContext, seen: Dashboard, studies: Path
) -> None:
    path, sign = PAGES[name]
    visit = _new_page(signed_in, seen)
    page = visit.go(path[1:] if name in ("studies", "workers") else _study(studies) + path, sign)
    page.evaluate("document.querySelectorAll('details').forEach((one) => (one.open = true))")
    expect(page.locator(".waiting")).to_have_count(0)
    expect(page.get_by_role("heading", level=1)).to_have_count(1)
    page.emulate_media(color_scheme="light")
    assert _axe(page) == []
    page.emulate_media(color_scheme="dark")
    assert _axe(page, *RULES_OF_COLOURS) == []
    page.set_viewport_size({"width": 360, "height": 740})
    page.evaluate("() => new Promise(requestAnimationFrame)")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    visit.assert_clean()
    page.close()


def test_what_a_study_did_stands_on_its_pages(visit: Visit, studies: Path) -> None:
    page = visit.go(_study(studies), ".groups summary")
    assert page.locator("h1").inner_text() == NAME
    assert (
        _plain(page.locator(".reconciled").inner_text())
        == "84 planned = ✓ 79 ok + ✕ 5 failed + ↷ 0 skipped + ○ 0 missing"
    )
    assert page.locator("svg.graph a").count() == 4
    expect(page.locator("svg.graph a").first).to_have_attribute(
        "aria-label", "shell: 100 % done: 38 ok, 2 failed"
    )
    page.locator("svg.graph a", has_text="draw").first.click()
    expect(page.get_by_label("Step of the heat map")).to_have_value("draw")
    page.get_by_role("link", name="All 5 failures").click()
    page.locator(".groups summary", has_text="shell").click()
    page.get_by_role("link", name="sample 39").click()
    expect(page.locator(".facts code", has_text="hacked=1</script>39")).to_have_text(f"{HOSTILE}39")
    expect(page.locator("details[open] .log")).to_have_text(HOSTILE)
    expect(page.locator("img[alt='Image dot.png']")).to_have_js_property("naturalWidth", 4)
    page.get_by_role("link", name="← before").click()
    expect(page.get_by_role("heading", name="shell · sample 38")).to_be_visible()
    page.locator(".related").get_by_role("link", name="draw").click()
    expect(page.get_by_role("heading", name="draw · sample 38")).to_be_visible()
    page.get_by_role("link", name="Data 1").click()
    expect(page.locator(".images img").first).to_have_js_property("naturalWidth", 8)
    page.get_by_role("link", name="Training 1").click()
    expect(page.get_by_text("4 rounds; 4 models taken over")).to_be_visible()
    page.go_back()
    expect(page.locator(".images img").first).to_be_visible()


def _plain(text: str) -> str:
    return re.sub(r"\s+", " ", text.replace("\u202f", "")).strip()


def test_without_the_token_there_is_nothing_to_see_and_with_it_the_address_is_clean(
    browser: Browser, seen: Dashboard
) -> None:
    context = browser.new_context()
    page = context.new_page()
    for address in (seen.base, f"{seen.base}?token=wrong"):
        answer = page.goto(address)
        assert answer is not None and answer.status == 401
        assert "Studies" not in page.inner_text("body") and _axe(page) == []
    assert context.request.get(f"{seen.base}api/studies").status == 401
    page.goto(seen.url)
    expect(page.get_by_role("heading", level=1)).to_have_text("Studies")
    assert page.url == seen.base and "token" not in page.content()
    context.clear_cookies()
    page.get_by_role("link", name="Workers").click()
    expect(page.get_by_text("not signed in any more")).to_be_visible()
    context.close()


def test_pages_follow_a_study_while_it_runs(browser: Browser, tmp_path: Path, home: Path) -> None:
    (tmp_path / "waiting.yaml").write_text(WAITING)
    with dashboard("--root", tmp_path, home=home) as at, _signed_in(browser, at) as visit:
        page = visit.page
        expect(page.get_by_text("There is no study yet")).to_be_visible()
        argv = ["run", "waiting.yaml", "--local", "--workers", "2"]
        with (tmp_path / "run.log").open("wb") as log:
            run = WarmProcess("merlin", argv, cwd=tmp_path, env=os.environ, output=log.fileno())
        page.get_by_role("link", name="waiting", exact=True).click(timeout=60_000)
        chip = page.locator(".study-head .chip")
        expect(chip).to_contain_text("running")
        page.evaluate(LISTEN)
        bar = page.locator(".study-head .bar")
        for sample, label in ((0, "0 % done"), (1, "25.0 % done"), (2, "50.0 % done")):
            expect(bar).to_have_attribute("aria-label", re.compile(label))
            (tmp_path / f"go.{sample}").touch()
        (tmp_path / "go.3").touch()
        expect(chip).to_contain_text("finished")
        expect(bar).to_have_attribute("aria-label", "100 % done: 8 ok")
        expect(page.locator(".readout", has_text="8 ok")).to_be_visible()
        assert run.wait(60) == 0
        wait_until(lambda: any("waiting is finished" in said for said in page.evaluate("spoken")))
        assert len([s for s in page.evaluate("spoken") if s]) < 3, "numbers are not read out"
        assert page.title().startswith("✓ 100 %")
        visit.assert_clean()


def test_a_dashboard_that_goes_away_is_noticed_and_comes_back(
    browser: Browser, studies: Path, home: Path
) -> None:
    with dashboard("--root", studies, home=home) as at, _signed_in(browser, at) as visit:
        page = visit.page
        page.clock.install()
        mark = page.locator("#tools button").first
        expect(mark).to_have_text("Live")
        mark.click()
        expect(mark).to_have_text("Paused")
        mark.click()
        expect(mark).to_have_text("Live")
        at.live.end(signal.SIGINT)
        _until(page, lambda: mark.inner_text() == "Not connected")
        assert page.locator("tbody a").count() > 0  # what was seen stays
        port = urlsplit(at.base).port
        with dashboard("--root", studies, "--port", str(port), home=home):
            _until(page, lambda: mark.inner_text() == "Live")


def _until(page: Page, condition: Any) -> None:
    """Lets the page's time pass until something is so."""

    def is_so() -> bool:
        page.clock.run_for(1000)
        return bool(condition())

    wait_until(is_so)


def test_a_page_whose_modules_did_not_arrive_is_loaded_again(browser: Browser, seen: Dashboard) -> None:
    lost: list[str] = []

    def lose(route: Route) -> None:
        if len(lost) == 3:
            route.continue_()
            return
        lost.append(route.request.url)
        route.abort("connectionreset")

    context = browser.new_context()
    try:
        context.route("**/base/routes.js", lose)
        _sign_in(context, seen)
        assert len(lost) == 3
    finally:
        context.close()


def test_everything_can_be_reached_by_keys(visit: Visit, studies: Path) -> None:
    page = visit.page
    page.keyboard.press("Tab")
    expect(page.locator("#skip")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    page.keyboard.press("/")
    page.keyboard.type("no such study")
    expect(page.get_by_text("No study matches")).to_be_visible()
    page.keyboard.press("Control+A")
    page.keyboard.type("failed")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text(NAME)
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("to the filter")
    assert _axe(page) == []
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.get_by_label("Step of the heat map").select_option("shell")
    expect(page.locator(".readout", has_text="40 tasks; a cell is a task")).to_be_visible()
    page.locator("canvas").locator("xpath=..").focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowDown"):
        page.keyboard.press(key)
    chosen = page.locator(".readout b", has_text="sample").inner_text()
    page.keyboard.press("Enter")
    expect(page.locator("tbody a").first).to_have_text(f"shell · {chosen}")
    for keys, words in (
        ("gf", "Failures by cause"),
        ("go", "Steps"),
        ("gd", "Data sets"),
        ("gr", "Run"),
        ("gs", "Studies"),
    ):
        page.keyboard.type(keys)
        expect(page.get_by_role("heading", name=words, exact=True)).to_be_visible()


def test_the_chosen_colours_stay(visit: Visit) -> None:
    page = visit.page

    def paper() -> str:
        return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    page.emulate_media(color_scheme="light")
    light = paper()
    page.keyboard.press("t")
    page.keyboard.press("t")
    expect(page.locator("#theme")).to_have_attribute("aria-label", "Colours: dark")
    dark = paper()
    assert dark != light
    page.reload()
    expect(page.locator("tbody a").first).to_be_visible()
    assert paper() == dark
    page.keyboard.press("t")
    assert paper() == light


def test_pages_work_below_a_sub_path(browser: Browser, studies: Path, home: Path) -> None:
    words = ["--root", str(studies), "--root-path", "/lab/merlin"]
    with dashboard(*words, home=home, root="/lab/merlin/") as at, _signed_in(browser, at) as visit:
        page = visit.page
        page.locator("tbody a").first.click()
        expect(page.locator(".groups summary").first).to_be_visible()
        assert unquote(page.url) == unquote(f"{at.base}{_study(studies)}")
        page.get_by_role("link", name="Data 1").click()
        expect(page.locator(".images img").first).to_have_js_property("naturalWidth", 8)
        page.reload()
        expect(page.locator(".images img").first).to_be_visible()
        visit.assert_clean()


def test_actions_ask_first_and_are_not_there_without_leave(
    browser: Browser, visit: Visit, studies: Path, home: Path
) -> None:
    visit.go(_study(studies), ".groups summary")
    expect(visit.page.get_by_role("button", name="Rerun")).to_have_count(0)
    with dashboard("--root", studies, "--allow-actions", home=home) as at, _signed_in(browser, at) as other:
        page = other.go(_study(studies), ".groups summary")
        page.get_by_role("button", name="Rerun failed …").click()
        question = page.get_by_role("dialog")
        expect(question).to_contain_text("5 tasks that failed")
        expect(question.get_by_role("button", name="Leave it")).to_be_focused()
        assert _axe(page) == []
        page.keyboard.press("Enter")
        expect(question).to_have_count(0)
        page.get_by_role("button", name="Rerun failed …").click()
        with page.expect_response(re.compile("/actions/rerun-failed")) as answered:
            question.get_by_role("button", name="Rerun them").click()
        assert "x-merlin-csrf" in answered.value.request.headers
        assert answered.value.status in (202, 422), (
            answered.value.text()
        )  # the command fails, as the tasks fail again
        expect(page.locator(".done, dialog .note").filter(has_text="merlin restart").first).to_be_visible()
        expect(page.locator(".reconciled")).to_contain_text("failed")


def test_a_million_samples_are_as_light_as_a_few(browser: Browser, tmp_path: Path, home: Path) -> None:
    _million(tmp_path)
    with dashboard("--root", tmp_path, home=home) as at, _signed_in(browser, at) as visit:
        first_paint, num_nodes = {}, {}
        for name, path, sign in (
            ("studies", "", "tbody a"),
            ("overview", _study(tmp_path), ".groups summary"),
            ("tasks", f"{_study(tmp_path)}/tasks", "tbody tr:nth-child(100)"),
            ("task", f"{_study(tmp_path)}/task/simulate/999999", ".facts"),
            ("failures", f"{_study(tmp_path)}/failures", ".groups summary"),
        ):
            page = visit.go(path, sign)
            first_paint[name] = page.evaluate(
                "performance.getEntriesByName('first-contentful-paint')[0].startTime"
            )
            num_nodes[name] = page.evaluate("document.querySelectorAll('*').length")
        print("first paint, ms:", {name: round(ms) for name, ms in first_paint.items()}, "nodes:", num_nodes)
        assert max(num_nodes.values()) < 3000
        page = visit.go(f"{_study(tmp_path)}/tasks?step=simulate&outcome=failed", "tbody tr:nth-child(100)")
        expect(page.get_by_text("10\u202f000 tasks")).to_be_visible()
        page.get_by_role("link", name="Next page").click()
        expect(page.locator("tbody a").first).to_have_text("simulate · sample 10\u202f000")
        page.get_by_label("Go to a sample").fill("765432")
        page.keyboard.press("Enter")
        expect(page.get_by_text("No task is like this.")).to_be_visible()  # it did not fail
        page.get_by_label("Outcome").select_option("")
        visit.assert_clean()


def _million(folder: Path) -> None:
    """A study whose ledger says that all tasks ended ok but every hundredth; they never ran."""
    from merlin.ledger.records import ChunkRecord
    from merlin.ledger.writer import LedgerWriter
    from merlin.plan.tasks import Outcome
    from merlin.spec.load import load_spec
    from merlin.workspace.options import StudyOptions
    from merlin.workspace.prepare import prepare_study

    (folder / "million.yaml").write_text(MILLION)
    spec = load_spec(folder / "million.yaml", variables={"OUTPUT_PATH": str(folder)})
    workspace = prepare_study(spec, StudyOptions())
    num, chunk = 1_000_000, 10_000
    writer = LedgerWriter(workspace.ledger_dir, "w0")
    for lo in range(0, num, chunk):
        outcomes = np.full(chunk, Outcome.OK, np.uint8)
        outcomes[::100] = Outcome.FAILED
        record = ChunkRecord(
            instance="simulate", lo=lo, hi=lo + chunk, attempt=1, worker="w0", host="node1", started=time.time() - 5,
            outcomes=outcomes, seconds=np.full(chunk, 0.01, np.float32),
            exit_codes=np.where(outcomes == Outcome.FAILED, 3, 0).astype(np.int16),
        )  # fmt: skip
        writer.append(record)
    writer.close()


def test_numbers_and_durations_read_well_and_pictures_are_drawn_right(visit: Visit) -> None:
    """The pure parts of the pages, in the browser that runs them."""
    call = """async ([file, name, ...given]) => {
        const version = document.querySelector("script[type=module]").getAttribute("src").split("/")[1];
        return (await import(`${document.baseURI}static/${version}/${file}`))[name](...given);
    }"""

    def js(file: str, name: str, *given: Any) -> Any:
        return visit.page.evaluate(call, [file, name, *given])

    for name, given, words in (
        ("num", [1234567], "1 234 567"),
        ("duration", [3900], "1 h 5 min"),
        ("duration", [59.7], "1 min"),
        ("duration", [0.42], "420 ms"),
        ("duration", [200_000], "2 d 8 h"),
        ("rate", [0.05], "3/min"),
        ("rate", [1234.4], "1 234/s"),
        ("percent", [999_999, 1_000_000], "99.9 %"),
        ("percent", [1, 1_000_000], "< 0.1 %"),
        ("bytes", [999_950], "1.0 MB"),
        ("brief", [1_200_000], "1.2 M"),
        ("real", [0.000012345], "1.234e-5"),
        ("epochOf", ["no time"], None),
    ):
        found = js("base/format.js", name, *given)
        assert (found.replace("\u202f", " ") if isinstance(found, str) else found) == words, (name, given)
    assert js("charts/heat.js", "layers", {"planned": 1000, "ok": 999, "failed": 1, "skipped": 0}) == [
        ["ok", 0, pytest.approx(0.78)], ["failed", pytest.approx(0.78), 1],
    ]  # fmt: skip
    assert js("charts/scale.js", "ticks", 0, 100, 4) == [0, 50, 100]
    width = js("charts/step_graph.js", "sizes", 6, 2, 1200)["extent"]["x"]
    assert width <= 1200, "six steps in a row fit a screen"
    assert js("pages/overview.js", "piecesOf", "merlin a x, or here: merlin b y") == [
        "merlin a x",
        "merlin b y",
    ]
