"""Specs are shown as they were written, and nothing in them becomes HTML."""

from __future__ import annotations

from html import unescape
from re import DOTALL, sub

from hypothesis import given
from hypothesis import strategies as st

from merlin.report.spec_text import spec_html


def words_of(html: str) -> str:
    return unescape(sub(r"<[^>]*>", "", html, flags=DOTALL))


@given(st.text(st.characters(exclude_characters="\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029", codec="utf-8")))
def test_every_text_comes_out_as_it_was_but_for_blank_lines_at_its_end(text: str) -> None:
    assert words_of(spec_html(text)) == text.rstrip()


def test_keys_tokens_and_comments_are_told_apart() -> None:
    html = spec_html(
        "study:\n  - name: a  # first\n    run:\n      cmd: |\n        key: $(X) # no\n    other: '#1'\n"
    )
    assert '<span class="k">study</span>:' in html and '<span class="k">name</span>: a' in html
    assert '<span class="c"># first</span>' in html
    assert '        key: <span class="t">$(X)</span>' in html, "the text of a script has no keys"
    assert '<span class="k">other</span>: &#x27;#1&#x27;' in html
