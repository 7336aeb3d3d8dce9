"""Specs that are right: what the document says about them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from merlin.errors import SpecError
from merlin.spec.load import Spec, load_spec

HEAD = "description: {name: demo, description: a demo}\n"


def load(tmp_path: Path, text: str, **options: object) -> Spec:
    path = tmp_path / "demo.yaml"
    path.write_text(text, encoding="utf-8")
    return load_spec(path, **options)  # type: ignore[arg-type]


def step(body: str) -> str:
    return HEAD + "study:\n- name: one\n  run:\n" + "".join(f"    {line}\n" for line in body.splitlines())


def test_the_smallest_spec_gets_upstreams_defaults(tmp_path: Path) -> None:
    document = load(tmp_path, step("cmd: echo hi")).document
    run = document.study[0].run
    assert (run.cmd, run.shell, run.task_queue, run.max_retries, run.retry_delay) == (
        "echo hi",
        "/bin/bash",
        "merlin",
        30,
        1.0,
    )
    assert (run.depends, run.on_failure, run.canary, run.crash_limit, run.timeout) == (
        (),
        "skip",
        10,
        3,
        None,
    )
    assert document.merlin.samples is None
    assert document.merlin.resources.workers["default_worker"].steps == ("all",)
    assert document.batch.type == "local"


@pytest.mark.parametrize(
    ("written", "command"),
    [
        ("cmd: true", "true"),
        ("cmd: 5", "5"),
        ("cmd: 0x1F", "0x1F"),
        ("cmd: echo a: b", "echo a: b"),
        ("cmd: echo a:", "echo a:"),
        ("cmd: echo a: b # a comment", "echo a: b"),
        ("cmd: echo a: b\n  and more", "echo a: b and more"),
        ("cmd: 'echo a: b'", "echo a: b"),
        ("cmd: |\n  echo a: b\n  echo c", "echo a: b\necho c\n"),
    ],
)
def test_a_command_is_the_text_as_written(tmp_path: Path, written: str, command: str) -> None:
    assert load(tmp_path, step(written)).document.study[0].run.cmd == command


def test_a_command_with_a_colon_does_not_move_what_follows(tmp_path: Path) -> None:
    spec = load(tmp_path, step("cmd: echo a: b\nrestart: echo c: d\ndepends: []\ntask_queue: q"))
    assert spec.document.study[0].run.restart == "echo c: d"
    assert spec.position("study", 0, "run", "task_queue") == (8, 17)


def test_null_blocks_are_as_good_as_none(tmp_path: Path) -> None:
    text = (
        step("cmd: echo\ndepends:")
        + "env:\nbatch:\nuser:\nglobal.parameters:\nmerlin:\n  resources:\n  samples:\n"
    )
    document = load(tmp_path, text).document
    assert document.parameters == {}
    assert document.env.variables == {}
    assert document.merlin.samples is None


def test_merge_keys_and_anchors_are_followed(tmp_path: Path) -> None:
    text = (
        HEAD
        + "user:\n  run: &base\n    cmd: echo $(N)\n    max_retries: 3\n    task_queue: q\n"
        + "env: {variables: {N: 4}}\n"
        + "study:\n- name: a\n  run:\n    <<: *base\n    task_queue: other\n"
    )
    run = load(tmp_path, text).document.study[0].run
    assert (run.cmd, run.max_retries, run.task_queue) == ("echo 4", 3, "other")


def test_aliases_of_aliases_do_not_make_a_text_endless(tmp_path: Path) -> None:
    bomb = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 20))
    with pytest.raises(SpecError, match=r"aliases .* make too much of this text"):
        load(tmp_path, bomb + step("cmd: echo"))


def test_variables_become_numbers_where_numbers_are_wanted(tmp_path: Path) -> None:
    text = (
        step("cmd: echo $(X)\nmax_retries: $(N)\nprocs: $(N)\ntimeout: $(T)")
        + "env: {variables: {N: 7, T: 0:01:30}}\n"
        + "merlin: {samples: {column_labels: [X], generate: "
        + "{method: uniform, num: $(N), bounds: {X: [-1, 1e-3]}}}}\n"
    )
    spec = load(tmp_path, text)
    run = spec.document.study[0].run
    samples = spec.document.merlin.samples
    assert (run.max_retries, run.procs, run.timeout) == (7, 7, 90.0)
    assert samples is not None and samples.generate is not None
    assert samples.generate.num == 7
    assert samples.generate.bounds == {"X": (-1.0, 0.001)}
    assert samples.file == "$(MERLIN_INFO)/samples.npy"


def test_keys_may_hold_variables(tmp_path: Path) -> None:
    text = (
        step("cmd: echo")
        + "env: {variables: {WHO: demo_worker}}\n"
        + "merlin: {resources: {workers: {$(WHO): {steps: [one]}}}}\n"
    )
    assert list(load(tmp_path, text).document.merlin.resources.workers) == ["demo_worker"]


def test_variables_may_make_the_names_of_others(tmp_path: Path) -> None:
    values = (
        "MODEL: small, small_steps: 10, PICK: $($(MODEL)_steps)$(MODE), mode: a, k_a: max_retries, WHAT: INFO"
    )
    text = step("cmd: echo $($(MODEL)_steps) $(PICK) $(MERLIN_$(WHAT))\n$(k_$(MODE)): 3") + (
        f"env: {{variables: {{{values}}}}}\n"
        + "merlin: {samples: {column_labels: [X], file: a.npy, generate: {cmd: make $($(MODEL)_steps)}}}\n"
    )
    document = load(tmp_path, text).document
    run, samples = document.study[0].run, document.merlin.samples
    assert (run.cmd, run.max_retries) == ("echo 10 10a $(MERLIN_INFO)", 3)
    assert samples is not None and samples.generate is not None
    assert samples.generate.cmd == "make 10"


@pytest.mark.parametrize(
    "values", ['date: "$(DATE)"', 'a: "$(B)", b: "$(A)"', 'date: "$(DATE)", b: "$(date)"']
)
def test_a_name_in_capitals_makes_no_circle(tmp_path: Path, values: str) -> None:
    load(tmp_path, step("cmd: echo") + f"env: {{variables: {{{values}}}}}\n")


def test_workers_know_the_directory_of_the_spec(tmp_path: Path) -> None:
    text = (
        step("cmd: echo")
        + "batch: {worker_launch: $(SPECROOT)/launch}\n"
        + "merlin: {resources: {workers: {w: {args: --config $(SPECROOT)/c.py}}}}\n"
    )
    spec = load(tmp_path, text)
    assert spec.document.batch.worker_launch == f"{tmp_path}/launch"
    assert spec.document.merlin.resources.workers["w"].args == f"--config {tmp_path}/c.py"
    assert "$(SPECROOT)/launch" in spec.partial_yaml()


def test_steps_without_a_worker_go_to_the_default_worker(tmp_path: Path) -> None:
    text = (
        HEAD
        + "study:\n- {name: a, run: {cmd: x}}\n- {name: b, run: {cmd: x}}\n"
        + "merlin: {resources: {workers: {w: {steps: [a]}}}}\n"
    )
    workers = load(tmp_path, text).document.merlin.resources.workers
    assert workers["default_worker"].steps == ("b",)


def test_parameters_keep_their_yaml_types(tmp_path: Path) -> None:
    text = (
        step("cmd: echo $(P) $(P.label)")
        + 'global.parameters: {P: {values: [1, 2.50, "3", a], label: P.%%}}\n'
    )
    parameter = load(tmp_path, text).document.parameters["P"]
    assert parameter.values == (1, 2.5, "3", "a")
    assert [type(value) for value in parameter.values] == [int, float, str, str]


def test_a_variable_may_hold_the_list_of_values(tmp_path: Path) -> None:
    text = (
        step("cmd: echo $(P) $(VALUES)")
        + "env: {variables: {VALUES: [1, 1.0e-5, -2.5e-7, 1e-5, a]}}\n"
        + "global.parameters: {P: {values: $(VALUES), label: P.%%}}\n"
    )
    document = load(tmp_path, text).document
    assert document.parameters["P"].values == (1, 1e-5, -2.5e-7, "1e-5", "a")
    assert document.study[0].run.cmd == "echo $(P) [1, 1e-05, -2.5e-07, '1e-5', 'a']"


def test_resources_are_named_as_in_yaml(tmp_path: Path) -> None:
    text = step(
        "cmd: echo $(P)\nnodes: $(P)\nprocs: 4\ncores per task: 2\nexclusive: true\n"
        "batch: {type: flux}\nwalltime: 1:30:00\nslurm: --mem=1G"
    ) + ("global.parameters: {P: {values: [1], label: P.%%}}\n")
    assert load(tmp_path, text).document.study[0].run.resources == {
        "nodes": "$(P)",
        "procs": 4,
        "cores per task": 2,
        "walltime": "1:30:00",
        "exclusive": True,
        "slurm": "--mem=1G",
        "batch.type": "flux",
    }


@pytest.mark.parametrize(
    ("written", "limit"), [("5%", 0.05), ("12", 12.0), ("0.1", 0.1), ("100%", None), ("0", 0.0)]
)
def test_failure_limits_are_shares_or_counts(tmp_path: Path, written: str, limit: float | None) -> None:
    assert (
        load(tmp_path, step(f"cmd: x\nmax_failures: {written}")).document.study[0].run.max_failures == limit
    )


@pytest.mark.parametrize(
    ("written", "seconds"), [("90", 90.0), ("1.5", 1.5), ("01:00:00", 3600.0), ("2:30", 150.0), ("5m", 300.0)]
)
def test_time_spans_have_several_forms(tmp_path: Path, written: str, seconds: float) -> None:
    assert load(tmp_path, step(f"cmd: x\ntimeout: {written}")).document.study[0].run.timeout == seconds


def test_an_aggregate_fills_in_its_source_and_outputs(tmp_path: Path) -> None:
    text = HEAD + (
        "study:\n"
        "- {name: sim, run: {function: 'model:run'}}\n"
        "- name: data\n"
        "  run:\n"
        "    depends: [sim_*]\n"
        "    aggregate:\n"
        "      fields: {energy: , image: {kind: image, shape: [8, 8], dtype: float32, axes: [y, x]}}\n"
    )
    block = load(tmp_path, text).document.study[1].run.aggregate
    assert block is not None
    assert block.from_ == "sim"
    assert block.fields["energy"].output == "energy"
    assert block.fields["image"].shape == (8, 8)
    assert block.samples_per_shard == 1000


def test_path_and_column_are_other_words_for_key(tmp_path: Path) -> None:
    text = HEAD + (
        "study:\n- {name: sim, run: {cmd: x}}\n"
        "- name: data\n  run:\n    depends: [sim]\n    aggregate:\n      fields:\n"
        "        a: {file: o.h5, path: /a}\n        b: {file: o.csv, column: b}\n"
        "        c: {file: o.json, key: c.d}\n"
    )
    block = load(tmp_path, text).document.study[1].run.aggregate
    assert block is not None
    assert [field.key for field in block.fields.values()] == ["/a", "b", "c.d"]


def test_command_line_variables_win_and_need_not_be_in_env(tmp_path: Path) -> None:
    text = step("cmd: echo $(N) $(ITER)") + "env: {variables: {N: 4}}\n"
    spec = load(tmp_path, text, variables={"N": "9", "ITER": "2"})
    assert spec.document.study[0].run.cmd == "echo 9 2"
    assert spec.variables == {"N": 9, "ITER": 2}


def test_a_samples_file_on_the_command_line_replaces_generation(tmp_path: Path) -> None:
    text = (
        step("cmd: echo $(X)")
        + "merlin: {samples: {generate: {cmd: make}, file: a.npy, column_labels: [X]}}\n"
    )
    samples = load(tmp_path, text, samples_file="other.csv").document.merlin.samples
    assert samples is not None
    assert samples.generate is None
    assert samples.file == str(Path.cwd() / "other.csv")


def test_samples_may_come_from_an_existing_file_alone(tmp_path: Path) -> None:
    text = step("cmd: echo $(X)") + "merlin: {samples: {generate: , file: a.npy, column_labels: [X]}}\n"
    samples = load(tmp_path, text).document.merlin.samples
    assert samples is not None
    assert (samples.file, samples.generate, samples.column_labels) == ("a.npy", None, ("X",))


def test_the_shell_of_the_batch_block_is_that_of_the_steps(tmp_path: Path) -> None:
    assert (
        load(tmp_path, step("cmd: x") + "batch: {shell: /bin/sh}\n").document.study[0].run.shell == "/bin/sh"
    )


def test_documents_cannot_be_changed(tmp_path: Path) -> None:
    document = load(tmp_path, step("cmd: x")).document
    with pytest.raises(ValueError, match="frozen"):
        document.study[0].run.cmd = "y"  # type: ignore[misc]


def test_errors_are_raised_together(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        load(tmp_path, step("cmd: $(NOPE_A)\ndepend: x\nprocs: many"))
    assert [d.line for d in caught.value.diagnostics] == [5, 6, 7]


def test_importing_the_loader_is_light() -> None:
    code = (
        "import sys, merlin.spec.load; print([m for m in ('numpy', 'pydantic', 'click') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
