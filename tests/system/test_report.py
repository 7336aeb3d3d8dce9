"""`merlin report` of a study that ran, in a browser that has no network."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from browser import CHROMIUM, FLAGS, RULES_OF_COLOURS
from commands import SCIENCE, run_merlin

SPEC = """\
description: {name: springs, description: Damped springs}
study:
  - name: simulate
    run: {function: "springs:simulate"}
  - name: collect
    run:
      depends: [simulate]
      aggregate: {fields: {swing: {units: m}, place: {kind: series, shape: [16], axes: [time]}}}
merlin:
  samples:
    generate: {method: sobol, num: 200, seed: 3, bounds: {STIFFNESS: [1, 80], DAMPING: [0.05, 4]}}
    column_labels: [STIFFNESS, DAMPING]
"""
FUNCTION = """\
import numpy as np


def simulate(inputs, context):
    stiff = inputs["STIFFNESS"] > 70
    if stiff.any():
        raise RuntimeError("the step is too long <b>for a stiff spring</b>")
    time = np.linspace(0, 6, 16)
    place = np.exp(-inputs["DAMPING"][:, None] * time) * np.cos(np.sqrt(inputs["STIFFNESS"])[:, None] * time)
    return {"swing": -place.min(axis=1), "place": place}
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    (folder / "springs.yaml").write_text(SPEC)
    (folder / "springs.py").write_text(FUNCTION)
    ran = run_merlin("run", "springs.yaml", "--local", cwd=folder)
    assert ran.returncode == 1, ran.stderr  # some samples fail
    (workspace,) = folder.glob("springs_*")
    wrote = run_merlin("report", workspace, cwd=folder, loaded=SCIENCE)
    assert wrote.returncode == 0 and wrote.stdout.startswith("report.html  "), wrote.stderr
    return folder / "report.html"


def test_the_report_of_a_study_is_small_and_says_what_became_of_it(report: Path) -> None:
    text = report.read_text()
    assert len(text) < 3_000_000
    words = " ".join(re.sub(r"<[^>]*>", " ", text).split())
    assert re.search(r"planned 20\d = ok \d+ \+ failed \d+ \+ skipped 0 \+ missing 0", words)
    for known in (
        "Coverage of the inputs",
        "too long &lt;b&gt;for a stiff spring",
        "springs.yaml",
        "merlin run springs.yaml --local",
    ):
        assert known in text or known in words, known
    assert "With STIFFNESS from 7" in words, "the failures lie where the springs are stiff"


@pytest.mark.skipif(CHROMIUM is None and not os.environ.get("CI"), reason="needs Debian's chromium")
def test_a_browser_shows_it_without_network_scripts_and_barriers(report: Path, tmp_path: Path) -> None:
    from axe_playwright_python.sync_playwright import Axe
    from playwright.sync_api import sync_playwright

    asked: list[str] = []
    said: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(color_scheme="light", viewport={"width": 1160, "height": 900})
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: said.append(message.text))
        page.goto(report.as_uri())
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert [url for url in asked if not url.startswith(("data:", report.as_uri()))] == [] and said == []
        page.pdf(path=tmp_path / "report.pdf", format="A4")
        page = browser.new_context(color_scheme="light", bypass_csp=True).new_page()
        page.goto(report.as_uri())
        options: dict[str, object] = {"resultTypes": ["violations"]}
        found = Axe().run(page, options=options).response["violations"]
        page.emulate_media(color_scheme="dark")
        options["runOnly"] = RULES_OF_COLOURS
        found += Axe().run(page, options=options).response["violations"]
        assert not found, [(each["id"], each["nodes"][0]["html"][:200]) for each in found]
        browser.close()
    num_pages = len(re.findall(rb"/Type\s*/Page\b", (tmp_path / "report.pdf").read_bytes()))
    assert 3 <= num_pages <= 12
