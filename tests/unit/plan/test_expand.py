"""From spec to plan: instances, directories, parameters, samples, edges and filled-in commands."""

import textwrap
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from merlin.base.text import path_safe
from merlin.batch.local import Local
from merlin.errors import SpecError
from merlin.plan.dependencies import topological_order
from merlin.plan.expand import make_plan
from merlin.plan.launch import Launchers, asked_processes, declare_vlauncher, fill_launchers
from merlin.plan.parameters import combinations
from merlin.plan.plan import StepKind
from merlin.plan.plan_io import plan_to_json
from merlin.spec.load import load_spec

WORKSPACE = Path("/data/s_20260102-030405")
SAMPLES = "merlin: {samples: {column_labels: [X0, X1], file: /data/s.npy}}"
PARAMETERS = """
global.parameters:
  GREET: {values: [hello, hola], label: GREET.%%}
  WORLD: {values: [world, mundo], label: WORLD.%%}
"""


@pytest.fixture
def plan_of(tmp_path):
    def make(*parts, num_samples=30, launcher=""):
        body = "\n".join(textwrap.dedent(part) for part in parts)
        path = tmp_path / "s.yaml"
        path.write_text(f"description: {{name: s, description: d}}\n{body}\n")
        spec = load_spec(path)
        return make_plan(
            spec,
            workspace=WORKSPACE,
            num_samples=num_samples,
            samples_file="/data/s.npy",
            combos=combinations(spec.document),
            created="2026-01-02T03:04:05+00:00",
            study_id="1",
            seed=0,
            launchers=Launchers(Local(launcher)),
        )

    return make


def by_id(plan):
    return {instance.id: instance for instance in plan.instances}


def edges(instance):
    return [(edge.source, edge.kind, edge.group) for edge in instance.edges]


def test_a_step_is_expanded_by_the_parameters_it_uses_only(plan_of):
    plan = plan_of(
        """
        study:
          - {name: last, description: d, run: {cmd: done, depends: [greet_*]}}
          - {name: greet, description: d, run: {cmd: "echo $(GREET) $(WORLD.label)"}}
          - {name: next, description: d, run: {cmd: next, depends: [greet]}}
        """,
        PARAMETERS,
    )
    found = by_id(plan)
    combos = ["GREET.hello.WORLD.world", "GREET.hola.WORLD.mundo"]
    assert list(found) == [*(f"greet/{c}" for c in combos), "last", *(f"next/{c}" for c in combos)]
    assert found["greet/" + combos[1]].command == "echo hola WORLD.mundo"
    assert found["greet/" + combos[1]].script_name == "greet_GREET.hola.WORLD.mundo"
    assert edges(found["last"]) == [(f"greet/{c}", "all", "greet_*") for c in combos]
    assert edges(found["next/" + combos[0]]) == [(f"greet/{combos[0]}", "all", "greet")]


def test_a_step_goes_on_with_failures_as_it_says_or_else_as_the_study_says(plan_of):
    steps = """
        study:
          - {name: silent, run: {cmd: "echo $(X0)"}}
          - {name: skips, run: {cmd: "echo $(X0)", on_failure: skip}}
          - {name: goes_on, run: {cmd: "echo $(X0)", on_failure: continue}}
          - {name: made, run: {function: "m:f", depends: [silent]}}
          - {name: data, run: {depends: [silent], aggregate: {from: silent, fields: {y: {file: y.npy}}}}}
        """
    samples = "samples: {column_labels: [X0, X1], file: /data/s.npy}"
    plain, all_go_on = (
        plan_of(steps, f"merlin: {{{key}{samples}}}") for key in ("", "on_failure: continue, ")
    )
    going_on = [{i.step for i in plan.instances if i.on_failure == "continue"} for plan in (plain, all_go_on)]
    assert going_on == [{"goes_on"}, {"silent", "goes_on", "made"}]


def test_a_step_runs_per_sample_if_its_own_text_uses_a_sample(plan_of):
    plan = plan_of(
        """
        study:
          - {name: sim, description: d, run: {cmd: "echo $(X0)"}}
          - {name: post, description: d, run: {cmd: "echo $(MERLIN_SAMPLE_ID)", depends: [sim]}}
          - {name: low, description: d, run: {cmd: "echo $(merlin_sample_path)"}}
          - {name: again, description: d, run: {cmd: "true", restart: "echo $(MERLIN_SAMPLE_VECTOR)"}}
          - {name: names, description: d, run: {cmd: "echo $(MERLIN_SAMPLE_NAMES)"}}
          - {name: once, description: d, run: {cmd: "ls $(sim.workspace)", depends: [sim, post]}}
          - {name: code, description: d, run: {function: "m:f"}}
        """,
        SAMPLES,
    )
    found = by_id(plan)
    assert {name for name, i in found.items() if i.per_sample} == {"sim", "post", "low", "again", "code"}
    assert {i.num_tasks for i in found.values() if i.per_sample} == {30}
    assert edges(found["post"]) == [("sim", "same", "sim")]
    assert found["post"].same_workspaces == {"sim": "sim"}
    assert edges(found["once"]) == [("sim", "all", "sim"), ("post", "all", "post")]
    assert found["sim"].command == "echo $(X0)"
    assert found["low"].command == "echo $(MERLIN_SAMPLE_PATH)"
    assert found["again"].restart == "echo $(X0) $(X1)"
    assert found["names"].command == "echo X0 X1"
    assert found["once"].command == f"ls {WORKSPACE}/sim"


def test_workspaces_of_other_steps_are_filled_in(plan_of):
    plan = plan_of(
        """
        study:
          - {name: a, description: d, run: {cmd: "echo $(GREET)"}}
          - {name: b, description: d, run: {cmd: "cat $(a.workspace)/f $(WORKSPACE)/g", depends: [a]}}
          - {name: c, description: d, run: {cmd: "ls $(a.workspace)", depends: [a_*]}}
        """,
        PARAMETERS,
    )
    found = by_id(plan)
    assert found["b/GREET.hola"].command == f"cat {WORKSPACE}/a/GREET.hola/f $(WORKSPACE)/g"
    assert found["c"].command == f"ls {WORKSPACE}/a"


def test_what_is_the_directory_of_a_sample_in_upstream_is_it_here(plan_of):
    plan = plan_of(
        """
        study:
          - name: a
            run: {cmd: "ls $(WORKSPACE)/$(MERLIN_SAMPLE_PATH)/x", restart: "ls $(WORKSPACE)/$(merlin_sample_path)"}
          - {name: b, run: {cmd: "ls $(WORKSPACE)/$(MERLIN_GLOB_PATH) $(b.workspace)", depends: [a_*]}}
        """,
        SAMPLES,
    )
    a, b = plan.instances
    assert (a.command, a.restart) == ("ls $(WORKSPACE)/x", "ls $(WORKSPACE)")
    assert (b.command, b.per_sample) == (f"ls $(WORKSPACE)/*/*/ {WORKSPACE}/b", False)


def test_a_parameter_may_name_a_step_or_another_parameter(plan_of):
    plan = plan_of(
        """
        study:
          - {name: hello, run: {cmd: echo}}
          - {name: b, run: {cmd: "ls $($(P).workspace) $($(Q)) $($(Q).label)", depends: [hello]}}
        global.parameters: {P: {values: [hello], label: P.%%}, Q: {values: [P], label: Q.%%}}
        """,
    )
    assert plan.instances[1].command == f"ls {WORKSPACE}/hello hello P.hello"


def test_referring_to_a_workspace_takes_its_parameters_on(plan_of):
    plan = plan_of(
        """
        study:
          - {name: b, description: d, run: {cmd: "cat $(a.workspace)", depends: [z]}}
          - {name: z, description: d, run: {cmd: "true"}}
          - {name: a, description: d, run: {cmd: "echo $(GREET)"}}
        """,
        PARAMETERS,
    )
    assert [i.id for i in plan.instances if i.step == "b"] == ["b/GREET.hello", "b/GREET.hola"]


def test_study_variables_and_exit_codes_are_filled_in(plan_of, tmp_path):
    plan = plan_of(
        """
        env: {variables: {SCRIPTS: $(MERLIN_INFO)/scripts, N: 3}}
        study:
          - name: a
            description: d
            run:
              cmd: |
                $(SCRIPTS)/x $(SPECROOT) $(MERLIN_WORKSPACE) $(MERLIN_TIMESTAMP) $(OUTPUT_PATH)
                ls $(MERLIN_GLOB_PATH) $(MERLIN_SPEC_ARCHIVED_COPY) $(date) $(MERLIN_PATHS_ALL)
                exit $(MERLIN_RETRY)
        """,
        SAMPLES,
    )
    assert plan.instances[0].command.splitlines() == [
        f"{WORKSPACE}/merlin_info/scripts/x {tmp_path} {WORKSPACE} 20260102-030405 /data",
        f"ls */*/ {WORKSPACE}/merlin_info/s.expanded.yaml $(date) $(MERLIN_PATHS_ALL)",
        "exit 104",
    ]
    assert plan.variables["SCRIPTS"] == f"{WORKSPACE}/merlin_info/scripts"


AGGREGATE = """
study:
  - {name: sim, description: d, run: {cmd: "run $(X0) $(GREET)"}}
  - name: collect
    description: d
    run:
      depends: [DEPENDS]
      aggregate:
        samples_per_shard: 10
        fields: {a: {file: out.json, key: a}, b: {file: "*.out", regex: "b=(.*)"}}
  - {name: train, description: d, run: {cmd: "ls $(collect.workspace)", depends: [collect]}}
"""


def test_an_aggregate_has_one_task_per_shard_and_a_manifest(plan_of):
    plan = plan_of(AGGREGATE.replace("DEPENDS", "sim"), SAMPLES, PARAMETERS)
    found = by_id(plan)
    collect, manifest = found["collect/GREET.hola"], found["collect/GREET.hola.manifest"]
    assert (collect.kind, collect.num_tasks, collect.per_sample) == (StepKind.AGGREGATE, 3, False)
    assert edges(collect) == [("sim/GREET.hola", "block", "sim")]
    assert collect.aggregate.sources == ("sim/GREET.hola",)
    assert (manifest.kind, manifest.num_tasks, manifest.step) == (StepKind.MANIFEST, 1, "collect")
    assert edges(manifest) == [("collect/GREET.hola", "all", "collect")]
    assert found["sim/GREET.hola"].feeds == ("collect/GREET.hola",)
    assert edges(found["train/GREET.hola"]) == [("collect/GREET.hola.manifest", "all", "collect")]
    assert found["train/GREET.hola"].command == f"ls {WORKSPACE}/collect/GREET.hola"


def test_an_aggregate_over_all_combinations_is_one_data_set(plan_of):
    plan = plan_of(AGGREGATE.replace("DEPENDS", "sim_*"), SAMPLES, PARAMETERS, num_samples=31)
    collect = by_id(plan)["collect"]
    assert collect.aggregate.sources == ("sim/GREET.hello", "sim/GREET.hola")
    assert collect.num_tasks == 7
    assert [edge.kind for edge in collect.edges] == ["block", "block"]
    assert by_id(plan)["sim/GREET.hello"].feeds == ("collect",)


def test_a_field_without_source_is_the_output_of_its_name(plan_of):
    plan = plan_of(
        """
        study:
          - {name: sim, description: d, run: {function: "m:f"}}
          - name: collect
            description: d
            run: {depends: [sim], aggregate: {fields: {a: {kind: series, shape: [3]}, b: {output: c}}}}
        """,
        SAMPLES,
    )
    fields = by_id(plan)["collect"].aggregate.fields
    assert [(f.name, f.shape, f.file, f.output) for f in fields] == [
        ("a", (3,), None, "a"),
        ("b", (), None, "c"),
    ]


def test_a_function_step_gets_every_parameter_unless_it_names_some(plan_of):
    plan = plan_of(
        """
        study:
          - {name: all, description: d, run: {function: "m:f"}}
          - {name: one, description: "for $(WORLD)", run: {function: "m:f"}}
        """,
        PARAMETERS,
    )
    assert [i.params for i in plan.instances] == [
        {"GREET": "hello", "WORLD": "world"},
        {"GREET": "hola", "WORLD": "mundo"},
        {"WORLD": "world"},
        {"WORLD": "mundo"},
    ]
    assert [i.num_tasks for i in plan.instances] == [1, 1, 1, 1]


def test_equal_combinations_are_planned_once_and_clashing_labels_refused(plan_of):
    study = 'study: [{name: a, description: d, run: {cmd: "echo $(P)"}}]'
    same = "global.parameters: {P: {values: [1, 1], label: P.%%}, Q: {values: [1, 2], label: Q.%%}}"
    assert [i.id for i in plan_of(study, same).instances] == ["a/P.1"]
    clash = "global.parameters: {P: {values: ['a/b', ab], label: P.%%}}"
    with pytest.raises(SpecError) as caught:
        plan_of(study, clash)
    assert caught.value.diagnostics[0].line > 0


def test_sources_come_first_in_shell_scripts_and_not_in_others(plan_of, tmp_path):
    plan = plan_of(
        """
        env: {sources: [env.sh, "module load gcc"]}
        study:
          - {name: a, description: d, run: {cmd: make}}
          - {name: b, description: d, run: {cmd: "print(1)", shell: /usr/bin/env python3}}
        """
    )
    assert plan.instances[0].command == f". {tmp_path}/env.sh\nmodule load gcc\nmake"
    assert plan.instances[1].command == "print(1)"


def test_resources_from_parameters_are_numbers_again(plan_of):
    plan = plan_of(
        """
        study: [{name: a, description: d, run: {cmd: "$(LAUNCHER) x", procs: $(P), nodes: 2}}]
        global.parameters: {P: {values: [1, 4], label: P.%%}}
        """,
        launcher="mpirun",
    )
    assert [i.resources for i in plan.instances] == [{"nodes": 2, "procs": 1}, {"nodes": 2, "procs": 4}]
    assert [i.command for i in plan.instances] == [" x", "mpirun -np 4 x"]


@pytest.mark.parametrize(
    ("run", "values", "resources"),
    [
        ("gpus: $(P)", "[0.5]", {"gpus": 0.5}),
        ("exclusive: $(P)", "[yes]", {"exclusive": True}),
        ("batch: {submit: $(P), bank: $(P)}", "['1']", {"batch.submit": True, "batch.bank": 1}),
        ("reservation: $(P)", "['007']", {"reservation": "007"}),
    ],
)
def test_resources_from_parameters_have_the_types_of_written_ones(plan_of, run, values, resources):
    study = f"study: [{{name: a, run: {{cmd: x, {run}}}}}]"
    plan = plan_of(study, f"global.parameters: {{P: {{values: {values}}}}}")
    assert plan.instances[0].resources == resources


@pytest.mark.parametrize(
    ("run", "value", "message"),
    [
        ("procs: $(P)", "0", "run.procs: must be at least 1"),
        ("gpus: $(P)", "-1", "run.gpus: must be at least 0"),
        ("gpus: $(P)", "x", "run.gpus: 'x' is not a number"),
        ("exclusive: {launcher: $(P)}", "x", "'x' is neither true nor false"),
        ("walltime: $(P)", "soon", "walltime 'soon' is not a time"),
    ],
)
def test_resources_from_parameters_are_checked_as_written_ones(plan_of, run, value, message):
    study = f"study: [{{name: a, run: {{cmd: x, {run}}}}}]"
    with pytest.raises(SpecError, match=message) as caught:
        plan_of(study, f"global.parameters: {{P: {{values: [{value}]}}}}")
    assert caught.value.diagnostics[0].col == study.index("$(P)") + 1


def test_a_step_has_the_batch_settings_of_the_study_unless_it_has_its_own(plan_of):
    plan = plan_of(
        """
        batch: {type: slurm, bank: physics, queue: pbatch, nodes: 4, launch_args: of workers}
        study:
          - {name: a, description: d, run: {cmd: x, nodes: 2}}
          - {name: b, description: d, run: {cmd: x, batch: {type: local, bank: $(P), launch_args: --mpi=pmix}}}
        global.parameters: {P: {values: [chemistry], label: P.%%}}
        """
    )
    a, b = plan.instances
    assert a.resources == {
        "batch.type": "slurm",
        "batch.bank": "physics",
        "batch.queue": "pbatch",
        "nodes": 2,
    }
    assert b.resources == {
        "batch.type": "local",
        "batch.bank": "chemistry",
        "batch.queue": "pbatch",
        "batch.launch_args": "--mpi=pmix",
    }


def test_a_scheduler_that_only_a_parameter_names_must_exist(plan_of):
    parameters = "global.parameters: {P: {values: [slurm, slrum], label: P.%%}}"
    for study, message in (
        ("study: [{name: a, run: {cmd: x, batch: {type: $(P)}}}]", "run.batch.type: 'slrum' is not allowed"),
        ('study: [{name: a, run: {cmd: "x $(P)"}}]\nbatch: {type: $(P)}', "there is no scheduler 'slrum'"),
    ):
        with pytest.raises(SpecError, match=f"step 'a': {message}"):
            plan_of(study, parameters)


@pytest.mark.parametrize(
    ("text", "launcher", "filled"),
    [
        ("$(LAUNCHER) x", "mpirun", "mpirun -np 8 x"),
        ("$(LAUNCHER) x", "mpirun --oversubscribe", "mpirun --oversubscribe -np 8 x"),
        ("$(LAUNCHER) x", "", " x"),
        ("$(LAUNCHER)[1n, 2p] x; $(LAUNCHER)[1p] y", "mpirun", "mpirun -np 2 x;  y"),
        ("$(LAUNCHER)[4p,2n] x", "mpirun", "mpirun -np 4 x"),
        ("$(LAUNCHER)[1,1] x; $(LAUNCHER)[2, 16] y", "mpirun", " x; mpirun -np 16 y"),
        ("$(LAUNCHER)[1,2] x", "", " x"),
        ("$(LAUNCHER)[$(X0)p] x", "mpirun", "mpirun -np $(X0) x"),
        ("MERLIN_PROCS=3\n$(VLAUNCHER) x", "mpirun", "MERLIN_PROCS=3\nmpirun -np ${MERLIN_PROCS} x"),
        ("MERLIN_PROCS=1\n$(VLAUNCHER) x", "mpirun", "MERLIN_PROCS=1\n x"),
        ("# MERLIN_PROCS=3\n$(VLAUNCHER) x", "mpirun", "# MERLIN_PROCS=3\n x"),
    ],
)
def test_launchers_without_a_scheduler(text, launcher, filled):
    assert fill_launchers(text, {"procs": 8}, Launchers(Local(launcher))) == filled


@pytest.mark.parametrize(
    ("text", "most"),
    [
        ("x", 1),
        ("$(LAUNCHER) x", 8),
        ("$(LAUNCHER)[2p] x; $(LAUNCHER)[1,3] y", 3),
        ("$(LAUNCHER)[$(X0)p] x", 1),
        ("$(VLAUNCHER) x", 8),
        ("MERLIN_PROCS=3\n$(VLAUNCHER) x\nMERLIN_PROCS=5\n$(VLAUNCHER) y", 5),
    ],
)
def test_the_processes_that_launchers_ask_for(text, most):
    assert asked_processes(text, {"procs": 8}) == most


def test_the_plan_does_not_grow_with_the_samples(plan_of):
    study = 'study: [{name: a, description: d, run: {cmd: "ls $(X0) $(MERLIN_PATHS_ALL)"}}]'
    small = plan_to_json(plan_of(study, SAMPLES, num_samples=10))
    large = plan_to_json(plan_of(study, SAMPLES, num_samples=10**8))
    assert abs(len(large) - len(small)) < 60


@settings(deadline=None)
@given(st.data())
def test_topological_order_respects_edges_and_prefers_the_given_order(data):
    num = data.draw(st.integers(1, 12))
    names = [f"s{i}" for i in range(num)]
    ranks = data.draw(st.permutations(range(num)))
    depends = {
        name: [
            other for other, r in zip(names, ranks, strict=True) if r < ranks[i] and data.draw(st.booleans())
        ]
        for i, name in enumerate(names)
    }
    order = topological_order(depends)
    assert sorted(order) == sorted(names)
    assert all(order.index(need) < order.index(name) for name, needs in depends.items() for need in needs)
    assert topological_order({name: [] for name in names}) == names


def test_edges_lead_back_to_earlier_instances_only(plan_of):
    plan = plan_of(AGGREGATE.replace("DEPENDS", "sim_*"), SAMPLES, PARAMETERS)
    seen = set()
    for instance in plan.instances:
        assert {edge.source for edge in instance.edges} <= seen
        seen.add(instance.id)


def test_a_circle_is_an_error():
    with pytest.raises(ValueError, match="circle"):
        topological_order({"a": ["b"], "b": ["a"]})


@pytest.mark.parametrize(
    ("text", "shell", "declared"),
    [
        ("x", "/bin/bash", ""),
        (
            "$(VLAUNCHER) x",
            "/bin/bash",
            "MERLIN_GPUS=0\nMERLIN_CORES=2\nMERLIN_PROCS=8\nMERLIN_NODES=1\n",
        ),
        (
            "  export MERLIN_PROCS=3 MERLIN_GPUS=1\n$(VLAUNCHER) x",
            "/bin/tcsh",
            "set MERLIN_CORES=2\nset MERLIN_NODES=1\n",
        ),
    ],
)
def test_what_a_vlauncher_reads_is_declared_before_the_command(text, shell, declared):
    resources = {"procs": 8, "cores per task": 2}
    assert declare_vlauncher(text, resources, shell) == declared + text


def test_variables_are_filled_into_the_values_and_labels_of_parameters(plan_of, tmp_path):
    plan = plan_of(
        """
        study:
          - {name: a, run: {cmd: "cat $(DECK) $(DECK.label)"}}
          - {name: f, run: {function: "m:f"}}
        """,
        "env: {dependencies: {paths: [{name: DECKS, path: $(SPECROOT)/decks}]}}",
        "global.parameters: {DECK: {values: [$(SPECROOT)/a.txt, $(DECKS)/b.txt], label: [a, 'b in $(DECKS)']}}",
    )
    a, b = f"{tmp_path}/a.txt", f"{tmp_path}/decks/b.txt"
    scripts = [i.command for i in plan.instances if i.step == "a"]
    assert scripts == [f"cat {a} a", f"cat {b} b in {tmp_path}/decks"]
    assert [i.params for i in plan.instances] == [{"DECK": a}, {"DECK": b}] * 2
    assert plan.instances[1].id == "a/" + path_safe(f"b in {tmp_path}/decks")


@pytest.mark.parametrize("rest", ["cmd: echo $(P)", "cmd: x, restart: echo $(P)", 'function: "m:f"'])
def test_a_label_may_be_as_long_as_names_of_files(plan_of, rest):
    study = f"study: [{{name: s, run: {{{rest}}}}}]"
    most = 255 - len("P.") - (0 if "function" in rest else len("s_.out"))
    most -= len(".restart") if "restart" in rest else 0
    assert plan_of(study, f"global.parameters: {{P: {{values: [{'x' * most}]}}}}").instances
    with pytest.raises(SpecError, match="256 bytes") as caught:
        plan_of(study, f"global.parameters: {{P: {{values: [{'x' * (most + 1)}]}}}}")
    assert "shorter labels" in caught.value.diagnostics[0].hint


def test_sources_are_a_part_of_the_scripts_and_use_parameters_as_these_do(plan_of):
    plan = plan_of(
        """
        env: {sources: ["export D=$(a.workspace) P=$(P)"]}
        study:
          - {name: a, run: {cmd: "echo $(P)"}}
          - {name: b, run: {cmd: x, depends: [a_*]}}
          - {name: c, run: {cmd: x, shell: python3}}
        """,
        "global.parameters: {P: {values: [1, 2]}}",
    )
    found = by_id(plan)
    assert list(found) == ["a/P.1", "a/P.2", "b/P.1", "b/P.2", "c"]
    assert found["b/P.2"].command == f"export D={WORKSPACE}/a P=2\nx"


def test_a_batch_setting_from_a_parameter_needs_steps_that_use_it(plan_of):
    parts = "batch: {type: slurm, bank: $(P)}", "global.parameters: {P: {values: [1]}}"
    assert (
        plan_of('study: [{name: a, run: {cmd: "x $(P)"}}]', *parts).instances[0].resources["batch.bank"] == 1
    )
    with pytest.raises(SpecError, match="step 'a' does not use this parameter"):
        plan_of("study: [{name: a, run: {cmd: x}}]", *parts)


def test_an_expression_that_a_value_of_a_parameter_breaks_is_an_error_in_its_place(plan_of):
    fields = "{y: {file: y.npy}, z: {expression: y * $(P)}}"
    with pytest.raises(SpecError, match=r"cannot read 'y \* 10 kV'") as caught:
        plan_of(
            "study:",
            "- {name: a, run: {cmd: x}}",
            f"- {{name: b, run: {{depends: [a], aggregate: {{fields: {fields}}}}}}}",
            "global.parameters: {P: {values: [10 kV]}}",
        )
    assert caught.value.diagnostics[0].line == 4


def test_a_label_that_names_no_directory_is_refused(plan_of):
    with pytest.raises(SpecError, match=r"the label '\.\.' of P gives step s no directory of its own"):
        plan_of(
            'global.parameters: {P: {values: [..], label: "%%"}}',
            "study: [{name: s, description: d, run: {cmd: echo $(P)}}]",
        )


def test_no_step_is_called_as_the_end_of_a_data_set(plan_of):
    aggregate = "aggregate: {from: sim, fields: {y: {file: y.npy}}}"
    steps = (
        "{name: sim, description: d, run: {cmd: echo $(X0)}}",
        f"{{name: data, description: d, run: {{depends: [sim], {aggregate}}}}}",
        "{name: data.manifest, description: d, run: {cmd: x}}",
    )
    for order in (steps, steps[::-1]):
        with pytest.raises(SpecError, match=r"'data\.manifest' is a step, and is the end of the data set"):
            plan_of(SAMPLES, f"study: [{', '.join(order)}]")
