"""The block `notify`: what is refused, where, what the plan makes of it, and that it keeps no secret."""

from __future__ import annotations

import sys
from pathlib import Path

import jsonschema
import pytest
import yaml
from msgspec.structs import replace

from merlin.errors import Diagnostic
from merlin.plan.plan_io import plan_from_json, plan_to_json, relocate
from merlin.spec.load import check_spec, load_spec
from merlin.spec.schema import json_schema
from merlin.workspace.prepare import plan_only, prepare_study

SPEC = """\
description: {name: demo, description: d}
env: {variables: {ROOM: lab}}
study:
- name: sim
  run: {cmd: echo $(X) $(P)}
merlin: {samples: {generate: {method: uniform, num: 3, bounds: {X: [0, 1]}}, column_labels: [X]}}
global.parameters: {P: {values: [1], label: P.%%}}
notify:
"""


def written(folder: Path, *entries: str) -> Path:
    path = folder / "demo.yaml"
    path.write_text(SPEC + "".join(f"- {entry}\n" for entry in entries))
    return path


def findings(folder: Path, entry: str) -> list[Diagnostic]:
    return check_spec(written(folder, entry))[1]


def test_apprise_is_missed_before_the_study_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = "{when: end, apprise: $HOOK}"
    assert findings(tmp_path, entry) == []
    monkeypatch.setitem(sys.modules, "apprise", None)
    (found,) = findings(tmp_path, entry)
    assert (found.severity, found.col) == ("warning", 15) and "merlin-ensembles[notify]" in found.hint


@pytest.mark.parametrize(
    ("entry", "col", "message", "hint"),
    [
        ("{when: fialed, cmd: x}", 10, "'fialed' is not allowed", "did you mean 'failed'?"),
        ("{when: [end, stal], cmd: x}", 16, "'stal' is not allowed", "did you mean 'stall'?"),
        ("{when: [], cmd: x}", 4, "when names no event", ""),
        ("{cmd: x}", 3, "notify[0] has no when", "One or several of end, finished"),
        ("{when: end}", 3, "notify[0] tells nobody", "cmd, webhook, mail, apprise"),
        ("{when: end, cmd: x, mail: a@b}", 23, "has both cmd and mail", "make it two entries"),
        ("{when: end, webhok: 'https://a'}", 15, "unknown key 'webhok'", "did you mean 'webhook'?"),
        ("{when: end, cmd: x, above: 5%}", 23, "above goes with failures", "add failures to when"),
        ("{when: [end, failures], cmd: x, after: 5m}", 35, "after goes with stall", "add stall"),
        ("{when: failures, above: lots, cmd: x}", 27, "'lots' is not a number", '12) or a share'),
        ("{when: stall, after: soon, cmd: x}", 24, "not a time span", "HH:MM:SS"),
        ("{when: end, webhook: me@site}", 24, "not an address for webhook", "https://"),
        ("{when: end, webhook: 'ftp://site'}", 24, "not an address for webhook", "https://"),
        ("{when: end, mail: me}", 21, "not a mail address", "name@host"),
        ("{when: end, mail: [a@b, 'c@d, e@f']}", 27, "not a mail address", ""),
        ("{when: end, apprise: slack}", 24, "not an address for apprise", "service://"),
        ("{when: end, cmd: 'echo $(X)'}", 20, "$(X) differs from task to task", "$(MERLIN_WORKSPACE)"),
        ("{when: end, cmd: 'cd $(sim.workspace)'}", 20, "differs from task to task", ""),
        ("{when: end, cmd: 'echo $(ROOMS)'}", 26, "$(ROOMS) is not defined", "did you mean $(ROOM)"),
    ],
)  # fmt: skip
def test_a_slip_is_found_where_it_stands(
    tmp_path: Path, entry: str, col: int, message: str, hint: str
) -> None:
    errors = [d for d in findings(tmp_path, entry) if d.severity == "error"]
    assert len(errors) == 1, "\n".join(d.render() for d in errors)
    assert (errors[0].line, errors[0].col) == (9, col), errors[0].render()
    assert message in errors[0].message
    assert hint in errors[0].hint


@pytest.mark.parametrize(
    "entry",
    [
        "{when: end, apprise: 'slack://a/b/c'}",
        "{when: end, webhook: 'https://hooks.site/T0000AAAA/b0123456789abcdefghijkl'}",
        "{when: end, webhook: 'https://user:word@site/x'}",
    ],
)
def test_an_address_that_may_hold_a_secret_gets_a_warning(tmp_path: Path, entry: str) -> None:
    (warning,) = findings(tmp_path, entry)
    assert (warning.severity, warning.code) == ("warning", "secret")
    assert "$NAME" in warning.hint
    assert "word" not in warning.render()


@pytest.mark.parametrize(
    "entry",
    [
        "{when: end, cmd: \"mail -s $(MERLIN_WORKSPACE) me $(date) $HOME '~'\"}",
        "{when: [finished, failed, stopped, failures, stall, refused], above: 12, after: '01:00:00', mail: [a@b, c@d]}",
        "{when: refused, webhook: $HOOK}",
        "{when: end, webhook: 'http://localhost:8080/$(ROOM)/${TOKEN}'}",
        "{when: end, apprise: [$ONE, 'tgram://$TWO']}",
    ],
)
def test_what_the_reader_accepts_the_schema_accepts_too(tmp_path: Path, entry: str) -> None:
    path = written(tmp_path, entry)
    assert check_spec(path)[1] == []
    jsonschema.validate(yaml.safe_load(path.read_text()), json_schema())


@pytest.mark.parametrize(
    "entry", ["{when: nonsense, cmd: x}", "{when: end}", "{when: end, cmd: x, mail: a@b}"]
)
def test_what_the_reader_refuses_the_schema_refuses_too(tmp_path: Path, entry: str) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(yaml.safe_load(written(tmp_path, entry).read_text()), json_schema())


def test_the_plan_keeps_the_rules_and_they_move_with_the_workspace(tmp_path: Path) -> None:
    spec = load_spec(
        written(
            tmp_path,
            "{when: [end, stall], after: 10m, cmd: 'ls $(MERLIN_INFO) $(ROOM)'}",
            "{when: failures, above: 5%, mail: [a@b, c@d]}",
            "{when: failures, above: 100%, mail: a@b}",
        )
    )
    plan = plan_only(spec)
    first, second, third = plan.notify
    assert first.when == ("finished", "failed", "stopped", "stall")
    assert (first.channel, first.after_s) == ("cmd", 600.0)
    assert first.to == (f"ls {plan.workspace}/merlin_info lab",)
    assert (second.channel, second.to, second.above) == ("mail", ("a@b", "c@d"), 0.05)
    assert third.above is None
    assert plan_from_json(plan_to_json(plan)) == plan
    assert relocate(plan, "/elsewhere").notify[0].to == ("ls /elsewhere/merlin_info lab",)
    assert relocate(replace(plan, notify=()), "/elsewhere").notify == ()


def test_no_secret_of_the_environment_comes_into_the_workspace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOK", "https://site/s3cret")
    monkeypatch.setenv("APP", "slack://s3cret")
    monkeypatch.setenv("ME", "s3cret@site")
    monkeypatch.chdir(tmp_path)
    spec = load_spec(
        written(
            tmp_path,
            "{when: end, webhook: $HOOK}",
            "{when: end, apprise: [$APP, '${APP}']}",
            "{when: end, mail: $ME}",
            "{when: end, cmd: 'curl $HOOK'}",
        )
    )
    workspace = prepare_study(spec)
    assert [rule.to for rule in workspace.plan.notify] == [
        ("$HOOK",),
        ("$APP", "${APP}"),
        ("$ME",),
        ("curl $HOOK",),
    ]
    texts = [path.read_text("utf-8", "replace") for path in workspace.path.rglob("*") if path.is_file()]
    assert len(texts) >= 4
    assert not [text for text in texts if "s3cret" in text]
