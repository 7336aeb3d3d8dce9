"""The files of the dashboard's pages: small, complete, and without a way for data to become markup."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from merlin.dashboard.assets import STATIC

MAX_BYTES = 170_000  # of all files, unpacked; less than half of it travels, and a page is 1 to 8 kB
SCRIPTS = sorted(STATIC.rglob("*.js"))


def _text(path: Path) -> str:
    return path.read_text("utf-8")


def test_all_files_together_are_small() -> None:
    sizes = {path.name: path.stat().st_size for path in STATIC.rglob("*") if path.is_file()}
    assert sum(sizes.values()) < MAX_BYTES, sizes


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: str(path.relative_to(STATIC)))
def test_a_script_imports_what_there_is_and_writes_no_markup(path: Path) -> None:
    text = _text(path)
    for target, names in _imports(text).items():
        found = (path.parent / target).resolve()
        assert found.is_file(), target
        exported = set(
            re.findall(r"^export (?:async )?(?:const|class|function) (\w+)", _text(found), re.MULTILINE)
        )
        # several constants may be exported by one line
        assert names <= exported, f"{target} does not export {names - exported}"
    for name in re.findall(r"\.(innerHTML|outerHTML|insertAdjacentHTML|write|setHTMLUnsafe)\b\s*[=(]", text):
        pytest.fail(f"{path.name} makes markup of text, with {name}")
    assert not re.search(r"\beval\(|new Function|https?://(?!www\.w3\.org/)", text)
    assert len(text.splitlines()) < 400


def _imports(text: str) -> dict[str, set[str]]:
    found = re.findall(r"^import \{([^}]*)\} from \"([^\"]+)\";", text, re.MULTILINE)
    return {target: {name.strip() for name in names.split(",") if name.strip()} for names, target in found}


def test_every_script_and_style_is_used() -> None:
    shell = _text(STATIC / "index.html")
    loaded = set(re.findall(r"static/\{\{version\}\}/([\w/.-]+)", shell))
    waiting = [name for name in loaded if name.endswith(".js")]
    while waiting:
        name = waiting.pop()
        for target in _imports(_text(STATIC / name)):
            found = (STATIC / name).parent.joinpath(target).resolve().relative_to(STATIC.resolve()).as_posix()
            if found not in loaded:
                loaded.add(found)
                waiting.append(found)
    there = {path.relative_to(STATIC).as_posix() for path in STATIC.rglob("*") if path.is_file()}
    assert there - {"index.html"} == loaded


def test_the_shell_has_nothing_that_the_policy_forbids() -> None:
    shell = _text(STATIC / "index.html")
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script>", shell)
    assert '<base href="{{base}}">' in shell and re.search("<main[^>]* tabindex", shell)


def test_every_class_of_a_state_and_an_outcome_has_a_look() -> None:
    styles = "".join(_text(path) for path in (STATIC / "style").glob("*.css"))
    for outcome in ("ok", "failed", "skipped", "missing"):
        assert (
            f".fill-{outcome}" in styles and f".outcome-{outcome}" in styles and f".svg-{outcome}" in styles
        )
    for state in ("running", "stalled", "unknown", "finished", "failed", "stopped", "new", "unreadable"):
        assert f".state-{state}" in styles
