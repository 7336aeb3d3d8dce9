"""Specs that are wrong: what is found, where, and what is suggested."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from merlin.errors import Diagnostic
from merlin.spec.load import check_spec

HEAD = "description: {name: demo, description: a demo}\n"


def check(tmp_path: Path, text: str, **variables: str) -> list[Diagnostic]:
    path = tmp_path / "demo.yaml"
    path.write_text(text, encoding="utf-8")
    spec, diagnostics = check_spec(path, variables=variables)
    assert (spec is None) == any(d.severity == "error" for d in diagnostics)
    return diagnostics


def only(diagnostics: list[Diagnostic]) -> Diagnostic:
    assert len(diagnostics) == 1, "\n".join(d.render() for d in diagnostics)
    return diagnostics[0]


def study(text: str, rest: str = "") -> str:
    return HEAD + "study:\n" + textwrap.dedent(text).strip("\n") + "\n" + textwrap.dedent(rest)


def run(body: str, rest: str = "") -> str:
    return study("- name: one\n  run:\n" + textwrap.indent(textwrap.dedent(body).strip("\n"), "    "), rest)


def samples(body: str) -> str:
    return run(
        "cmd: echo",
        "merlin:\n  samples:\n" + textwrap.indent(textwrap.dedent(body).strip("\n"), "    ") + "\n",
    )


@pytest.mark.parametrize(
    ("text", "line", "col", "code", "hint"),
    [
        (run("cmd: x\ndependz: [a]"), 6, 5, "unknown-key", "did you mean 'depends'?"),
        (run("cmd: x\ncmd: y"), 6, 5, "duplicate-key", "line 5"),
        (run("cmd: x\nmax_retries: many"), 6, 18, "value", "whole number"),
        (run("cmd: x\nbatch: {tasks_per_job: 0}"), 6, 28, "value", ""),
        (run("cmd: x\nbatch: {submit: perhaps}"), 6, 21, "value", "true"),
        (run("cmd: x\nnodes: 0"), 6, 12, "value", ""),
        (run("cmd: x\non_failure: skp"), 6, 17, "value", "did you mean 'skip'?"),
        (run("cmd: x\ntimeout: soon"), 6, 14, "value", "HH:MM:SS"),
        (run("cmd: x\ntimeout: 00:00"), 6, 14, "value", "leave it out"),
        (run("cmd: x", "env: {variables: hello}\n"), 6, 18, "type", "'hello'"),
        (run("cmd: x", "env: {labels: [A, B]}\n"), 6, 15, "type", ""),
        (
            run("cmd: x", f"env: {{dependencies: {{paths: [{{name: D, path: /{'x' * 256}}}]}}}}\n"),
            6,
            46,
            "value",
            "",
        ),
        (run("cmd: x\nexclusive: maybe"), 6, 16, "value", "true or false"),
        (run("cmd: [a]"), 5, 10, "value", ""),
        (run("function: simulate"), 5, 15, "value", "module:callable"),
        (run("cmd: x\nfunction: 'a:b'"), 6, 5, "step-kind", "exactly one"),
        (run("function: 'a:b'\nrestart: x"), 6, 5, "step-kind", ""),
        (run("function: 'a:b'\ntimeout: 5"), 6, 5, "step-kind", ""),
        (run("function: 'a:b'\nshell: python3"), 6, 5, "step-kind", ""),
        (run("shell: /bin/sh"), 4, 3, "step-kind", "cmd"),
        (study("- name: one\n  run: {}"), 4, 3, "step-kind", "cmd"),
        (run("cmd: x\nbatch: {type: flx}"), 6, 19, "value", "did you mean 'flux'?"),
        (run("cmd: x", "batch: {type: slrum}\n"), 6, 15, "value", "did you mean 'slurm'?"),
        (run("cmd: x", "env: {variables: {T: nosuch}}\nbatch: {type: $(T)}\n"), 7, 15, "value", "lsf-srun"),
        (run("cmd: ''"), 5, 5, "empty", ""),
        (run("cmd: x", "env:\n  variabels: {A: 1}\n"), 7, 3, "unknown-key", "did you mean 'variables'?"),
        (run("cmd: x", "samples: {file: a}\n"), 6, 1, "unknown-key", "merlin"),
        (run("cmd: x", "env: {variables: {MERLIN_INFO: 1}}\n"), 6, 19, "reserved", ""),
        (run("cmd: x", "global.parameters: {P: {values: [1], label: P}}\n"), 6, 45, "label", "P.%%"),
        (
            run(
                "cmd: x",
                "global.parameters: {P: {values: [1], label: P.%%}, Q: {values: [1, 2], label: Q.%%}}\n",
            ),
            6,
            64,
            "parameter-length",
            "same number",
        ),
        (
            run("cmd: x", "env: {variables: {P: 3}}\nglobal.parameters: {P: {values: [1], label: P.%%}}\n"),
            7,
            21,
            "name-clash",
            "rename",
        ),
        (
            run("cmd: x", "merlin: {resources: {workers: {w: {steps: [oen]}}}}\n"),
            6,
            44,
            "missing-step",
            "'one'",
        ),
        (run("cmd: x", "merlin: 5\n"), 6, 9, "type", ""),
        (study("- name: a\n  run: echo"), 4, 8, "type", ""),
        (study("- name: a/b\n  run: {cmd: x}"), 3, 9, "bad-name", ""),
        (study("- {name: a, run: {cmd: x}}\n- {name: a, run: {cmd: x}}"), 4, 10, "duplicate-step", "line 3"),
        (
            study("- {name: r a, run: {cmd: x}}\n- {name: r_a, run: {cmd: x}}"),
            4,
            10,
            "duplicate-step",
            "differ",
        ),
        (study("- {name: 模拟, run: {cmd: x}}"), 3, 10, "bad-name", "a to z"),
        (study("- {name: merlin info, run: {cmd: x}}"), 3, 10, "bad-name", ""),
        (study('- {name: a, run: {cmd: x, task_queue: "a,b"}}'), 3, 39, "bad-name", "comma"),
        (study("- name: a\n  cmd: x\n  run: {cmd: x}"), 4, 3, "unknown-key", "under run"),
        (
            study("- {name: abc, run: {cmd: x}}\n- {name: b, run: {cmd: x, depends: [abd]}}"),
            4,
            37,
            "missing-step",
            "abc",
        ),
        (study("- {name: a, run: {cmd: x, depends: [a]}}"), 3, 37, "cycle", ""),
        (study("- {name: a, run: {cmd: x, depends: ''}}"), 3, 36, "missing-step", "leave it out"),
        (
            study("- {name: a, run: {cmd: x}}\n- {name: b, run: {cmd: x, depends: [a_*, '']}}"),
            4,
            42,
            "missing-step",
            "",
        ),
        (study("- {name: a, description: ' ', run: {cmd: x}}"), 3, 13, "empty", "leave the key out"),
        (run("cmd: x\nwalltime: string"), 6, 15, "value", "HH:MM:SS"),
        (run("cmd: x", "batch: {walltime: soon}\n"), 6, 19, "value", "HH:MM:SS"),
        (
            study("- {name: a, run: {cmd: x}}\n- {name: b, run: {cmd: x, depends: [a_*, a*]}}"),
            4,
            42,
            "duplicate-depends",
            "",
        ),
    ],
)
def test_an_error_is_found_at_its_place(
    tmp_path: Path, text: str, line: int, col: int, code: str, hint: str
) -> None:
    found = only(check(tmp_path, text))
    assert (found.line, found.col, found.code) == (line, col, code), found.render()
    assert hint in found.hint
    assert found.render().startswith(f"{tmp_path / 'demo.yaml'}:{line}:{col}: error: ")


@pytest.mark.parametrize("kind", ["local", "slurm", "flux", "lsf", "lsf-srun", "pbs", "$(T)"])
def test_every_scheduler_of_upstream_is_allowed(tmp_path: Path, kind: str) -> None:
    text = run("cmd: x", f"env: {{variables: {{T: flux}}}}\nbatch: {{type: {kind}}}\n")
    assert check(tmp_path, text) == []


@pytest.mark.parametrize("time", ["10 minutes", "1:2:3:4:5", "-5", "0", "nan", "0x10", "1e400", "٣"])
def test_what_is_no_walltime_is_an_error(tmp_path: Path, time: str) -> None:
    found = check(tmp_path, run(f"cmd: x\nwalltime: {time}", f"batch: {{walltime: {time}}}\n"))
    assert [(d.severity, d.line, d.code) for d in found] == [("error", 6, "value"), ("error", 7, "value")]


@pytest.mark.parametrize(
    ("body", "rest", "where", "hint"),
    [
        ("cmd: x", "batch: {wallltime: 60}\n", "in batch has", "did you mean 'walltime'?"),
        ("cmd: x\nbatch: {typ: slurm}", "", "in batch of step 'one'", "did you mean 'type'?"),
        (
            "cmd: x\nbatch: {submit: true, tasks_per_jb: 5}",
            "",
            "in batch of step 'one'",
            "did you mean 'tasks_per_job'?",
        ),
        ("cmd: x\nbatch: {sumbit: true}", "", "in batch of step 'one'", "did you mean 'submit'?"),
        (
            "cmd: x\nbatch: {walltime: 60}",
            "",
            "in batch of step 'one'",
            "write it one level higher, under run",
        ),
        (
            "cmd: x",
            "merlin: {resources: {workers: {w: {batch: {bnk: b}}}}}\n",
            "in batch of worker 'w'",
            "did you mean 'bank'?",
        ),
    ],
)
def test_a_slip_in_a_batch_block_is_a_warning(
    tmp_path: Path, body: str, rest: str, where: str, hint: str
) -> None:
    found = only(check(tmp_path, run(body, rest)))
    assert (found.severity, found.code, found.hint) == ("warning", "unknown-key", hint)
    assert where in found.message
    assert found.line >= 5


@pytest.mark.parametrize(
    ("body", "rest"),
    [
        ("cmd: x\nbatch: {my_key: 1}", "batch: {my_own: 1}\n"),
        ("cmd: x", "merlin: {resources: {workers: {w: {batch: {my_own: 1}}}}}\n"),
    ],
)
def test_keys_of_ones_own_in_a_batch_block_are_legal(tmp_path: Path, body: str, rest: str) -> None:
    assert check(tmp_path, run(body, rest)) == []


@pytest.mark.parametrize("time", ["60", "'00:10'", "10:00:00", "1-12:00:00", "1-12", "30m", "inf", "$(T)"])
def test_a_walltime_may_be_what_any_scheduler_takes(tmp_path: Path, time: str) -> None:
    text = run(f"cmd: x\nwalltime: {time}", f"env: {{variables: {{T: 60}}}}\nbatch: {{walltime: {time}}}\n")
    assert check(tmp_path, text) == []


def test_a_function_may_repeat_the_shell_of_the_study(tmp_path: Path) -> None:
    assert check(tmp_path, run("function: 'a:b'\nshell: /bin/sh", "batch: {shell: /bin/sh}\n")) == []


@pytest.mark.parametrize(
    ("lines", "line", "col"),
    [
        ("cmd: echo hi\n  depends: [a]", 6, 7),
        ("cmd: echo a: b\n  cores per task: 4", 6, 7),
        ("cmd: echo hi\n    && echo\n\n  depends:\n    - a", 8, 7),
        ("restart: echo hi\n  procs: 1\ncmd: x", 6, 7),
    ],
)
def test_a_key_indented_below_a_command_is_not_a_part_of_it(
    tmp_path: Path, lines: str, line: int, col: int
) -> None:
    found = only(check(tmp_path, run(lines)))
    key = lines.partition(":")[0]
    assert (found.line, found.col, found.code) == (line, col, "yaml"), found.render()
    assert f"read as part of the command of {key!r}" in found.message
    assert f"indent it like {key};" in found.hint
    assert f"{key}: |" in found.hint


def test_a_slip_in_a_key_of_the_description_is_a_warning(tmp_path: Path) -> None:
    text = "description: {name: a, descriptoin: x, author: me}\nstudy: [{name: s, run: {cmd: x}}]\n"
    found = only(check(tmp_path, text))
    assert (found.severity, found.line, found.col) == ("warning", 1, 24)
    assert found.hint == "did you mean 'description'?"
    assert check(tmp_path, text.replace("author", "description")) == []


@pytest.mark.parametrize(
    ("body", "line", "col", "code"),
    [
        ("file: a.npy\ncolumn_labels: [X, X]", 9, 24, "duplicate-column"),
        ("file: a.npy\ncolumn_labels: [MERLIN_SAMPLE_ID]", 9, 21, "reserved"),
        ("file: a.npy\ncolumn_labels: []", 9, 5, "empty"),
        ("file: a.npy", 7, 3, "missing"),
        ("generate: {method: sobol, num: 8, bounds: {X: [0, 1]}}\ncolumn_labels: []", 9, 5, "empty"),
        ("column_labels: [X]", 7, 3, "missing"),
        ("generate: {cmd: x}\ncolumn_labels: [X]", 7, 3, "missing"),
        ("generate: {method: sobol, num: 8}\ncolumn_labels: [X]", 8, 5, "missing"),
        ("generate: {method: sobol, num: 8, bounds: {X: [1, 0]}}\ncolumn_labels: [X]", 8, 51, "bounds"),
        (
            "generate: {method: sobol, num: 8, bounds: {X: [0, 1], Z: [0, 1]}}\ncolumn_labels: [X]",
            8,
            59,
            "bounds",
        ),
        ("generate: {method: sobol, num: 8, bounds: {X: [0, 1]}}\ncolumn_labels: [X, Y]", 8, 39, "bounds"),
        ("generate: {method: sobol, num: 8, bounds: {X: [0]}}\ncolumn_labels: [X]", 8, 51, "value"),
        ("generate: {method: normal, num: 8, bounds: {X: [0, -1]}}\ncolumn_labels: [X]", 8, 52, "bounds"),
        ("generate: {method: sobol, num: [8], bounds: {X: [0, 1]}}\ncolumn_labels: [X]", 8, 36, "samples"),
        ("generate: {method: sobl, num: 8, bounds: {X: [0, 1]}}\ncolumn_labels: [X]", 8, 24, "value"),
        ("file: a.npy\ncolumn_labels: [X]\nlevel_max_dirs: 1", 10, 21, "value"),
        ("generate: {cmd: x}\nfile: $(MERLIN_INFO)/a.txt\ncolumn_labels: [X]", 9, 11, "samples"),
    ],
)
def test_samples_are_checked(tmp_path: Path, body: str, line: int, col: int, code: str) -> None:
    found = only(check(tmp_path, samples(body)))
    assert (found.line, found.col, found.code) == (line, col, code), found.render()


@pytest.mark.parametrize(
    ("field", "code"),
    [
        ("{}", "field-source"),
        ("{file: a.npy, output: a}", "field-source"),
        ("{file: a.txt}", "field-source"),
        ("{file: result}", "field-source"),
        ("{file: a.npy, kind: image}", "shape"),
        ("{file: a.npy, shape: [3]}", "shape"),
        ("{file: a.npy, kind: series, shape: [3], axes: [t, u]}", "shape"),
        ("{file: a.npy, dtype: flot64}", "dtype"),
        ("{file: a.npy, kind: picture}", "value"),
        ("{file: a.txt, regex: 'E=(.*)', key: e}", "field-source"),
        ("{file: a.json, compression: lz5}", "value"),
    ],
)
def test_fields_of_an_aggregate_are_checked(tmp_path: Path, field: str, code: str) -> None:
    text = study(
        f"""
        - {{name: sim, run: {{cmd: x}}}}
        - name: data
          run:
            depends: [sim]
            aggregate:
              fields:
                e: {field}
        """
    )
    found = only(check(tmp_path, text))
    assert (found.line, found.code) == (9, code), found.render()


def test_an_aggregate_collects_from_a_step_it_waits_for(tmp_path: Path) -> None:
    text = study(
        """
        - {name: sim, run: {function: "m:f"}}
        - name: data
          run:
            aggregate:
              from: sim
              splits: {train: 0.5, "": 0.2}
              fields: {e: {file: a.json}}
        """
    )
    assert [(d.line, d.code) for d in check(tmp_path, text)] == [
        (7, "aggregate-from"),
        (8, "splits"),  # their sum
        (8, "splits"),  # the name
        (9, "field-source"),
    ]


def test_a_cycle_is_printed_whole(tmp_path: Path) -> None:
    text = study(
        """
        - {name: a, run: {cmd: x, depends: [c_*]}}
        - {name: b, run: {cmd: x, depends: [a]}}
        - {name: c, run: {cmd: x, depends: [b]}}
        """
    )
    found = only(check(tmp_path, text))
    assert "a -> c -> b -> a" in found.message
    assert (found.line, found.col) == (3, 37)


def test_variables_in_a_circle_are_printed_whole(tmp_path: Path) -> None:
    found = only(check(tmp_path, run("cmd: $(A)", "env:\n  variables:\n    A: $(B)\n    B: x$(A)\n")))
    assert "variable A refers to itself: A -> B -> A" in found.message
    assert found.line == 8


@pytest.mark.parametrize(
    "command",
    [
        "echo $(date) $(ls | wc -l) $((1+2)) ${HOME} $(pwd) $(nproc)",
        "awk '{print $(NF)}' f",
        "echo 1\n# $(NOT_THERE)",
        r'echo "\$(NOT_THERE)"',
        "$(LAUNCHER) x $(MERLIN_SUCCESS) $(WORKSPACE) $(MERLIN_GLOB_PATH) $(OUTPUT_PATH) $(one.workspace)",
        "echo $(P) $(P.label) $(X) $(MERLIN_SAMPLE_VECTOR) $(V) $(v)",
        "echo $(merlin_sample_id) $(merlin_sample_path) $(merlin_sample_vector)",
    ],
)
def test_known_tokens_and_the_shells_own_are_left_alone(tmp_path: Path, command: str) -> None:
    rest = """
        env: {variables: {V: 1, v: 2}}
        global.parameters: {P: {values: [1], label: P.%%}}
        merlin: {samples: {file: a.npy, column_labels: [X]}}
        """
    assert check(tmp_path, run("cmd: |\n" + textwrap.indent(command, "  "), rest)) == []


@pytest.mark.parametrize(
    "command",
    [
        "sed -i 's/^CXX = $(MPICXX)/CXX = $(SERCXX)/' ./Makefile",
        "cat > Makefile <<'EOF'\n  all: $(OBJECTS)\nEOF",
        "cat > Makefile <<EOF\nall: \\$(OBJECTS)\nEOF",
    ],
)
def test_what_the_shell_does_not_run_is_text(tmp_path: Path, command: str) -> None:
    assert check(tmp_path, run("cmd: |\n" + textwrap.indent(command, "  "))) == []


@pytest.mark.parametrize("shell", ["python3", "/usr/bin/env python3", "perl"])
def test_the_script_of_another_interpreter_is_text(tmp_path: Path, shell: str) -> None:
    assert check(tmp_path, run(f'cmd: print("$(MPICXX)")\nshell: {shell}')) == []
    assert check(tmp_path, run('cmd: print("$(MPICXX)")', f"batch: {{shell: {shell}}}\n")) == []
    found = only(check(tmp_path, run(f'cmd: print("$(nowhere.workspace)")\nshell: {shell}')))
    assert found.severity == "warning"


def test_text_that_looks_like_a_slip_is_a_warning(tmp_path: Path) -> None:
    text = run("cmd: echo '$(N_SAMPLE)'", "env: {variables: {N_SAMPLES: 1}}\n")
    found = only(check(tmp_path, text))
    assert (found.severity, found.hint) == ("warning", "did you mean $(N_SAMPLES)?")


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        ("""awk 'BEGIN {print $(XX) * 2}'""", "did you mean $(X)?"),
        ("""awk -F ',' '{\nif ($(P2) > 1) print $(NF)}' f""", "did you mean $(P)?"),
        ("""gawk 'BEGIN {print $(LENGTH)}'""", "did you mean $(X) or $(P) or $(N_CORES)?"),
        ("""python3 -c 'print($(XX))'""", "did you mean $(X)?"),
    ],
)
def test_a_short_name_that_a_program_would_swallow_is_a_warning(
    tmp_path: Path, command: str, hint: str
) -> None:
    rest = """
        env: {variables: {N_CORES: 1, small: 2}}
        global.parameters: {P: {values: [1], label: P.%%}}
        merlin: {samples: {file: a.npy, column_labels: [X]}}
        """
    found = only(check(tmp_path, run("cmd: |\n" + textwrap.indent(f"{command}; echo $(X)", "  "), rest)))
    assert (found.severity, found.code, found.hint) == ("warning", "token", hint)
    assert found.line >= 6


@pytest.mark.parametrize("name", ["$(Y)", "$(temprature)"])
def test_a_slip_for_a_column_that_nothing_else_uses_is_an_error(tmp_path: Path, name: str) -> None:
    """The study would run, and its data set would be wrong."""
    column = {"$(Y)": "X"}.get(name, "temperature")
    rest = f"merlin: {{samples: {{file: a.npy, column_labels: [{column}]}}}}\n"
    command = f"""cmd: awk 'BEGIN {{print {name} * 2}}'"""
    found = only(check(tmp_path, run(command, rest)))
    assert (found.severity, found.hint) == ("error", f"did you mean $({column})?")
    assert found.message == f"{name} is not defined, and no step uses $({column})"
    (found,) = check(tmp_path, run(f"{command}; echo $({column})", rest))
    assert found.severity == "warning"


@pytest.mark.parametrize(
    "command",
    [
        "sed -i 's/^CXX = $(MPICXX)/CXX = $(SERCXX)/' ./Makefile; awk '{print $(NF), $(NR)}' f",
        "cat > Makefile <<'EOF'\n  all: $(OBJECTS)\nEOF",
        "awk '{print $1}' f; echo 'Use $(CFLAGS)'",
    ],
)
def test_what_other_programs_call_so_is_no_slip(tmp_path: Path, command: str) -> None:
    rest = "env: {variables: {N_CORES: 1}}\nmerlin: {samples: {file: a.npy, column_labels: [X]}}\n"
    assert check(tmp_path, run("cmd: |\n" + textwrap.indent(command, "  "), rest)) == []


@pytest.mark.parametrize(
    ("command", "severity"),
    [("x", "warning"), ("echo '$(LABEL)'", None), ("echo $(LABEL)", "error"), ("echo $(label)", None)],
)
def test_a_label_matters_where_it_is_used(tmp_path: Path, command: str, severity: str | None) -> None:
    rest = "env: {variables: {INNER: $(GREETING)}, labels: {LABEL: $(INNER).txt}}\n"
    found = [d for d in check(tmp_path, run(f"cmd: {command}", rest)) if "GREETING" in d.message]
    if command == "echo $(label)":
        severity = "warning"  # nothing uses LABEL
    assert [d.severity for d in found] == ([severity] if severity else [])


@pytest.mark.parametrize(
    ("command", "escape"),
    [
        ("echo $(MPICXX)", r'"\$(MPICXX)"'),
        ('echo "$(MPICXX)"', r"write \$(MPICXX);"),
        ("cat <<E\n  $(MPICXX)\n  E", r"write \$(MPICXX);"),
    ],
)
def test_an_undefined_token_names_the_ways_out(tmp_path: Path, command: str, escape: str) -> None:
    text = run("cmd: |\n  " + command)
    found = only(check(tmp_path, text))
    assert found.severity == "error"
    assert "--allow-undefined" in found.hint and escape in found.hint
    spec, diagnostics = check_spec(tmp_path / "demo.yaml", allow_undefined=True)
    assert spec is not None and [d.severity for d in diagnostics] == ["warning"]


def test_an_escape_outside_of_quotes_is_told(tmp_path: Path) -> None:
    found = only(check(tmp_path, run(r"cmd: echo \$(NOT_THERE)")))
    assert (found.severity, found.hint) == ("warning", r'for the text itself write "\$(NOT_THERE)"')


@pytest.mark.parametrize(
    "dependencies",
    [
        "{paths: [{name: A, path: /}, {name: A, path: /}]}",
        "{paths: [{name: A, path: /}], git: [{name: A, path: /, url: x}]}",
        "{paths: [{name: B, path: /}]}",
        "{paths: [{name: SPECROOT, path: /}]}",
    ],
)
def test_a_dependency_has_a_name_of_its_own(tmp_path: Path, dependencies: str) -> None:
    text = run("cmd: x", f"env: {{variables: {{B: 1}}, dependencies: {dependencies}}}\n")
    assert only(check(tmp_path, text)).code in ("name-clash", "reserved")


def test_undefined_tokens_are_found_inside_a_block_of_text(tmp_path: Path) -> None:
    text = run(
        "cmd: |\n  echo $(N_SAMPLES)\n\n  echo é $(N_SAMPLE) $(tow.workspace)",
        "env: {variables: {N_SAMPLES: 1}}\n",
    )
    text = text.replace("- name: one", "- {name: two, run: {cmd: x}}\n- name: one")
    first, second = check(tmp_path, text)
    assert (first.line, first.col, first.text) == (9, 14, "$(N_SAMPLE)")
    assert first.hint.startswith("did you mean $(N_SAMPLES)?")
    assert (second.line, second.col) == (9, 26)
    assert second.hint.startswith("did you mean $(two.workspace)?")


@pytest.mark.parametrize(
    ("token", "severity", "message"),
    [
        ("$(N_$(P))", "error", "$(N_$(P)) is left as it is: $(N_1) is filled in before $(P) is"),
        ("$(P$(X))", "warning", "$(P$(X)) is left as it is: $(P2) is filled in before $(X) is"),
        (
            "$($(X).workspace)",
            "warning",
            "$($(X).workspace) is left as it is: $(one.workspace) is filled in before",
        ),
        ("$(M_$(MODE))", "error", "$(M_FAST) is not defined"),
        ("$(m_$(MODE))", "warning", "$(m_FAST) is left to the shell, which knows no such command"),
    ],
)
def test_a_name_that_is_made_of_others_is_checked(
    tmp_path: Path, token: str, severity: str, message: str
) -> None:
    rest = """
        env: {variables: {N_1: 1, MODE: FAST}}
        global.parameters: {P: {values: [1], label: P.%%}, P2: {values: [1], label: P2.%%}}
        merlin: {samples: {file: a.npy, column_labels: [X]}}
        """
    found = only(check(tmp_path, run(f"cmd: |\n  # {token}\n  echo $(P) $(X) {token}", rest)))
    assert (found.severity, found.line) == (severity, 7 if "left as it is" in message else 5)
    assert found.message.startswith(message)


@pytest.mark.parametrize(
    "script",
    [
        "RUN_IT() { echo; }\n$($(CAP))",
        "alias hi=ls; $($(LOW))",
        "cat <<'EOF'\n$(N_$(P))\nEOF",
        "awk '$(N_$(P))'",
    ],
)
def test_what_the_script_defines_or_does_not_run_is_left_alone(tmp_path: Path, script: str) -> None:
    rest = """
        env: {variables: {N_1: 1, CAP: RUN_IT, LOW: hi}}
        global.parameters: {P: {values: [1], label: P.%%}}
        """
    indented = script.replace("\n", "\n  ")
    assert check(tmp_path, run(f"cmd: |\n  {indented}\n  echo $(P) $(N_1)", rest)) == []


@pytest.mark.parametrize("token", ["$($(P))", "$(P$(P2))", "$($(P).label)", "$(x$(P))", "$(MERLIN_$(P))"])
def test_a_name_that_parameters_make_may_be_anything_else(tmp_path: Path, token: str) -> None:
    parameters = "{P: {values: [1], label: P.%%}, P2: {values: [1], label: P2.%%}}"
    rest = f"env: {{variables: {{N_1: 1}}}}\nglobal.parameters: {parameters}\n"
    assert check(tmp_path, run(f"cmd: echo {token}", rest)) == []


def test_an_undefined_token_outside_commands_is_always_an_error(tmp_path: Path) -> None:
    found = only(check(tmp_path, run("cmd: x\ntask_queue: q_$(date)")))
    assert (found.line, found.col, found.code) == (6, 19, "token")


def test_a_capitals_name_of_a_program_is_only_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "SIMULATE"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = only(check(tmp_path, run("cmd: echo $(SIMULATE)")))
    assert found.severity == "warning"


def test_a_misspelt_lower_case_name_is_a_warning(tmp_path: Path) -> None:
    text = run("cmd: echo $(temprature)", "merlin: {samples: {file: a.npy, column_labels: [temperature]}}\n")
    found = only(check(tmp_path, text))
    assert (found.severity, found.hint) == ("warning", "did you mean $(temperature)?")


@pytest.mark.parametrize("block", ["variables", "labels"])
def test_a_token_in_place_of_a_block_of_variables_is_an_error(tmp_path: Path, block: str) -> None:
    found = check(tmp_path, run("cmd: x", f'env: {{{block}: "$(X)"}}\n'))
    assert [each.code for each in found] == ["type", "token"]


@pytest.mark.parametrize(
    ("value", "hint"), [("1e-3", "0.001"), ("-5E10", "-50000000000.0"), (".5e-9", ""), ("2e-09", "2.0e-09")]
)
def test_a_number_that_is_text_in_yaml_is_a_warning_where_it_is_no_text(
    tmp_path: Path, value: str, hint: str
) -> None:
    for quoted, body in ((value, "cmd: echo $(P)"), (f"'{value}'", "function: 'm:f'")):
        assert check(tmp_path, run(body, f"global.parameters: {{P: {{values: [{quoted}]}}}}\n")) == []
    found = check(tmp_path, run("function: 'm:f'", f"global.parameters: {{P: {{values: [{value}]}}}}\n"))
    assert [f"for a number write {hint}, " in each.hint for each in found] == [True] * bool(hint)


def test_sample_tokens_need_samples(tmp_path: Path) -> None:
    assert "needs samples" in only(check(tmp_path, run("cmd: echo $(MERLIN_SAMPLE_ID)"))).message


def test_sample_tokens_cannot_size_a_job(tmp_path: Path) -> None:
    rest = "merlin: {samples: {file: a.npy, column_labels: [X]}}\n"
    found = only(check(tmp_path, run("cmd: echo\nprocs: $(X)", rest)))
    assert (found.line, found.col) == (6, 12)


def test_a_workspace_that_is_not_waited_for_is_a_warning(tmp_path: Path) -> None:
    text = study("- {name: a, run: {cmd: x}}\n- {name: b, run: {cmd: ls $(a.workspace)}}")
    found = only(check(tmp_path, text))
    assert (found.severity, found.line, found.code) == ("warning", 4, "no-dependency")


def test_a_step_whose_name_no_directory_can_have_is_an_error(tmp_path: Path) -> None:
    found = only(check(tmp_path, study(f"- {{name: {'é' * 101}, run: {{cmd: x}}}}")))
    assert (found.severity, found.line, found.code) == ("error", 3, "bad-name")
    assert "202 bytes" in found.message


@pytest.mark.parametrize(
    ("shell", "hint"),
    [("/bin/bahs", "'/bin/bash'"), ("\"'/opt/my julia' -O3\"", "workers of other machines")],
)
def test_an_interpreter_that_is_not_here_is_a_warning(tmp_path: Path, shell: str, hint: str) -> None:
    for text in (run(f"cmd: x\nshell: {shell}"), run("cmd: x", f"batch: {{shell: {shell}}}\n")):
        found = only(check(tmp_path, text))
        assert (found.severity, found.code) == ("warning", "shell")
        assert hint in found.hint


def test_sources_that_are_not_there_and_shells_that_read_none_are_warnings(tmp_path: Path) -> None:
    (tmp_path / "env.sh").touch()
    sources = "env: {sources: [env.sh, $(SPECROOT)/env.sh, evn.sh, module load gcc, $(a.workspace)/a.sh]}\n"
    steps = "{name: a, run: {cmd: x}}, {name: b, run: {cmd: x, shell: SHELL}}, {name: c, run: {cmd: x, shell: python3}}"
    text = f"{HEAD}study: [{steps}]\n{sources}"
    assert len(check(tmp_path, text.replace("SHELL", "bash -x"))) == 1
    found = [each for each in check(tmp_path, text.replace("SHELL", "/bin/tcsh")) if each.code == "sources"]
    missing, unread = found[::-1]
    assert {each.severity + each.code for each in (missing, unread)} == {"warningsources"}
    assert missing.col == sources.index("evn.sh") + 1
    assert "the scripts of 'b' do not read" in unread.message


SAMPLES = "merlin: {samples: {file: a.npy, column_labels: [X]}}\n"


@pytest.mark.parametrize(
    ("use", "hint"),
    [
        ("cat $(a.workspace)/out.json", "all of them are $(a.workspace)/$(MERLIN_GLOB_PATH)/out.json"),
        (
            "ls $(a.workspace); cat $(X) $(a.workspace)/out.json",
            "did you mean $(a.workspace)/$(MERLIN_SAMPLE_PATH)/out.json?",
        ),
    ],
)
def test_a_file_beside_the_directories_of_samples_is_a_warning(tmp_path: Path, use: str, hint: str) -> None:
    text = study(
        f"- {{name: a, run: {{cmd: echo $(X)}}}}\n- name: b\n  run: {{depends: [a], cmd: '{use}'}}", SAMPLES
    )
    found = only(check(tmp_path, text))
    assert (found.severity, found.hint) == ("warning", hint)


@pytest.mark.parametrize(
    "use",
    [
        "cat $(a.workspace)/$(MERLIN_SAMPLE_PATH)/out.json",
        "cat $(a.workspace)/$(MERLIN_GLOB_PATH)/out.json",
        "cat $(a.workspace)/*.json",
        "cat $(a.workspace)/out.json/all",
        "cat $(a.workspace)/shared.json",
        "echo > $(a.workspace)/all.csv; cat $(a.workspace)/all.csv",
        "'echo # $(a.workspace)/out.json'",
    ],
)
def test_other_paths_in_a_step_of_samples_are_none(tmp_path: Path, use: str) -> None:
    first = "- {name: a, run: {cmd: echo $(X) >> $(a.workspace)/shared.json}}"
    text = study(f"{first}\n- name: b\n  run: {{depends: [a_*], cmd: {use}}}", SAMPLES)
    assert check(tmp_path, text) == []


def test_an_error_in_an_anchor_is_shown_once_where_it_is_written(tmp_path: Path) -> None:
    text = HEAD + (
        "user:\n  run: &base\n    cmd: echo $(NOPE_A)\n"
        "study:\n- {name: a, run: {<<: *base}}\n- {name: b, run: {<<: *base}}\n"
    )
    found = only(check(tmp_path, text))
    assert (found.line, found.col) == (4, 15)


def test_the_user_block_is_free(tmp_path: Path) -> None:
    assert check(tmp_path, run("cmd: x", "user: {anything: [goes, {here: $(NOPE)}]}\n")) == []


@pytest.mark.parametrize(
    ("text", "line", "col", "code", "word"),
    [
        ("", 1, 1, "empty", "empty"),
        ("- a\n", 1, 1, "type", "mapping"),
        ("description:\n\tname: x\n", 2, 1, "tab", "tab"),
        ("description: [a\n", 1, 14, "yaml", "not closed"),
        ('description:\n  name: "a\n  b: c\n', 2, 9, "yaml", "a quote is not closed"),
        ("a: b: c\n", 1, 5, "yaml", "': '"),
        ("a: *b\n", 1, 4, "yaml", "anchor"),
        ("a: &b [*b]\n", 1, 4, "yaml", "inside itself"),
        ("a: 1\n---\nb: 1\n", 2, 1, "yaml", "one YAML document"),
        ('cmd: "a" b\n', 1, 10, "yaml", "key was expected"),
        ("a: <<\n<<: 5\n", 2, 5, "yaml", "mapping to merge"),
    ],
)
def test_bad_yaml_has_a_place_and_an_explanation(
    tmp_path: Path, text: str, line: int, col: int, code: str, word: str
) -> None:
    found = next(d for d in check(tmp_path, text) if d.code == code)
    assert (found.line, found.col) == (line, col), found.render()
    assert word in found.message


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    _, (missing,) = check_spec(tmp_path / "none.yaml")
    assert "No such file" in missing.message
    path = tmp_path / "latin.yaml"
    path.write_bytes("a: 1\nb: é\n".encode("latin-1"))
    _, (encoding,) = check_spec(path)
    assert (encoding.line, encoding.col, encoding.code) == (2, 4, "encoding")


@pytest.mark.parametrize(
    ("name", "code"), [("N_SAMPLE", "unknown-variable"), ("P", "not-a-variable"), ("WORKSPACE", "reserved")]
)
def test_command_line_variables_are_checked(tmp_path: Path, name: str, code: str) -> None:
    rest = "env: {variables: {N_SAMPLES: 1}}\nglobal.parameters: {P: {values: [1], label: P.%%}}\n"
    found = only(check(tmp_path, run("cmd: x", rest), **{name: "3"}))
    assert (found.file, found.code) == ("command line", code)


def test_steps_of_one_name_give_one_message_whatever_else_they_say(tmp_path: Path) -> None:
    text = study(
        """
        - {name: a, run: {cmd: x}}
        - {name: b, run: {cmd: x, depends: [a]}}
        - {name: a, run: {cmd: y, depends: [a]}}
        - {name: a, run: {cmd: z, depends: [b, a]}}
        """
    )
    found = only(check(tmp_path, text))
    assert (found.line, found.code) == (5, "duplicate-step")
    assert "3 times" in found.message
    assert "line 3, 6" in found.hint


def test_many_errors_come_in_one_go_ordered_by_place(tmp_path: Path) -> None:
    text = study(
        """
        - name: a
          run: {cmd: "echo $(NOPE_A)", nodes: x, depend: [b]}
        - name: a
          run: {cmd: x, depends: [c]}
        """,
        "merlin: {samples: {column_labels: [X, X], file: f}}\nbatch: {account: 1, que: x}\n",
    )
    found = check(tmp_path, text)
    assert [d.code for d in found] == [
        *(
            "token",
            "value",
            "unknown-key",
            "duplicate-step",
            "missing-step",
            "duplicate-column",
            "unknown-key",
        )
    ]
    assert [d.severity for d in found] == ["error"] * 6 + ["warning"]


def test_an_aggregate_cannot_have_batch_jobs_of_its_own(tmp_path: Path) -> None:
    text = study(
        """
        - name: one
          run: {function: "a:b", batch: {submit: true}}
        - name: two
          run:
            depends: [one_*]
            aggregate: {fields: {y: {dtype: float32, shape: []}}}
            batch: {submit: true}
        """,
        "merlin: {samples: {column_labels: [X], file: f.csv}}\n",
    )
    found = [d for d in check(tmp_path, text) if d.code == "step-kind"]
    assert [(d.line, d.text) for d in found] == [(9, "submit")]
