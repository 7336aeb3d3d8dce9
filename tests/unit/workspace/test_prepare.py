"""Preparing a study: directories, provenance, samples, dependencies, and what is left when it fails."""

import os
import shutil
import subprocess
import textwrap

import numpy as np
import pytest

from merlin.errors import SamplesError, SpecError
from merlin.spec.load import load_spec
from merlin.workspace.directory import find_workspaces, open_workspace
from merlin.workspace.options import StudyOptions
from merlin.workspace.prepare import plan_only, prepare_study

STUDY = 'study: [{name: a, description: d, run: {cmd: "echo $(X0)"}}]'


@pytest.fixture
def spec_of(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def make(*parts, name="hello.yaml"):
        body = "\n".join(textwrap.dedent(part) for part in parts)
        (tmp_path / name).write_text(f"description: {{name: my study, description: d}}\n{body}\n")
        return load_spec(tmp_path / name)

    return make


def samples(text):
    return f"merlin: {{samples: {{column_labels: [X0, X1], {text}}}}}"


def the_only_workspace(tmp_path):
    found = list(tmp_path.glob("my_study_*"))
    assert len(found) == 1
    return found[0]


def test_a_workspace_has_upstreams_name_and_provenance(spec_of, tmp_path):
    spec = spec_of("env: {variables: {N: 3}}", 'study: [{name: a, description: d, run: {cmd: "echo $(N)"}}]')
    workspace = prepare_study(spec)
    assert workspace.path.parent == tmp_path
    assert workspace.path.name[:9] == "my_study_" and len(workspace.path.name) == len(
        "my_study_20260102-030405"
    )
    names = {path.name for path in workspace.info.iterdir()}
    copies = {"hello.orig.yaml", "hello.partial.yaml", "hello.expanded.yaml"}
    assert names == {*copies, "provenance.json", "plan.json", "ledger"}
    assert (workspace.info / "hello.orig.yaml").read_text() == spec.text
    assert "echo 3" in (workspace.info / "hello.expanded.yaml").read_text()
    assert open_workspace(workspace.path).plan == workspace.plan
    assert load_spec(workspace.info / "hello.expanded.yaml").document.study[0].run.cmd == "echo 3"


def test_two_studies_in_one_second_get_two_workspaces(spec_of):
    spec = spec_of("study: [{name: a, description: d, run: {cmd: 'true'}}]")
    made = [prepare_study(spec).path for _ in range(3)]
    assert len(set(made)) == 3
    assert [w.path for w in find_workspaces(spec)] == sorted(made, reverse=True)


def test_the_output_path_may_be_relative_and_new(spec_of, tmp_path):
    spec = spec_of(
        "env: {variables: {OUTPUT_PATH: ./studies/new}}", "study: [{name: a, description: d, run: {cmd: x}}]"
    )
    assert prepare_study(spec).path.parent == tmp_path / "studies" / "new"


def test_a_built_in_method_makes_the_samples(spec_of):
    generate = "generate: {method: sobol, num: 40, bounds: {X0: [0, 1], X1: [2, 3]}, seed: 5}"
    spec = spec_of(STUDY, samples(generate))
    assert plan_only(spec).samples.num == 40
    workspace = prepare_study(spec)
    assert (workspace.plan.samples.file, workspace.plan.samples.num) == ("merlin_info/samples.npy", 40)
    assert workspace.samples().rows(0, 40)["X1"].min() >= 2
    again = prepare_study(spec)
    assert (again.info / "samples.npy").read_bytes() == (workspace.info / "samples.npy").read_bytes()


def test_the_generate_command_runs_in_the_current_directory_and_leaves_its_files(spec_of, tmp_path):
    command = "echo out; echo err >&2; pwd > where; printf '1,2\\n3,4\\n' > $(MERLIN_INFO)/s.csv"
    spec = spec_of(
        STUDY,
        f"""
        merlin:
          samples:
            column_labels: [X0, X1]
            file: $(MERLIN_INFO)/s.csv
            generate: {{cmd: "{command.replace(chr(92), chr(92) * 2)}"}}
    """,
    )
    assert plan_only(spec).samples.num == 0
    workspace = prepare_study(spec)
    assert workspace.plan.samples.num == 2
    assert workspace.samples().text_rows(1, 2) == [("3", "4")]
    assert (tmp_path / "where").read_text().strip() == str(tmp_path)
    assert (workspace.info / "cmd.out").read_text() == "out\n"
    assert (workspace.info / "cmd.err").read_text() == "err\n"
    assert str(workspace.info) in (workspace.info / "cmd.sh").read_text()


@pytest.mark.parametrize(
    ("command", "words"),
    [("echo oh no >&2; exit 3", ["exit code 3", "oh no"]), ("true", ["did not make", "s.npy"])],
)
def test_a_failing_generate_command_leaves_its_reason_and_no_plan(spec_of, tmp_path, command, words):
    spec = spec_of(STUDY, samples(f'file: $(MERLIN_INFO)/s.npy, generate: {{cmd: "{command}"}}'))
    with pytest.raises(SamplesError) as caught:
        prepare_study(spec)
    finding = caught.value.diagnostics[0]
    assert finding.line > 0
    workspace = the_only_workspace(tmp_path)
    kept = (workspace / "merlin_info" / "error.txt").read_text()
    for word in words:
        assert word in finding.message and word in kept
    assert not (workspace / "merlin_info" / "plan.json").exists()
    assert find_workspaces(spec) == []


def test_an_existing_file_is_used_where_it_lies_and_nothing_is_generated(spec_of, tmp_path):
    np.save(tmp_path / "given.npy", np.ones((7, 2)))
    spec = spec_of(STUDY, samples("file: given.npy, generate: {cmd: exit 1}"))
    workspace = prepare_study(spec)
    assert (workspace.plan.samples.file, workspace.plan.samples.num) == (str(tmp_path / "given.npy"), 7)
    assert plan_only(spec).samples.num == 7


def test_a_samples_file_of_the_command_line_is_copied(spec_of, tmp_path):
    np.save(tmp_path / "mine.npy", np.ones((5, 2)))
    spec = spec_of(STUDY, samples("file: $(MERLIN_INFO)/s.npy, generate: {cmd: exit 1}"))
    options = StudyOptions(samples_file="mine.npy")
    workspace = prepare_study(spec, options)
    assert workspace.plan.samples.file == "merlin_info/mine.npy"
    assert workspace.samples().num == 5 == plan_only(spec, options).samples.num


@pytest.mark.parametrize("pattern", ["s?.npy", "s*.npy", "?[x]/s1.npy"])
def test_a_pattern_on_the_command_line_is_read_where_its_files_are(spec_of, tmp_path, pattern):
    (tmp_path / "ax").mkdir()
    for name in ("s1.npy", "s2.npy", "ax/s1.npy"):
        np.save(tmp_path / name, np.ones((5, 2)))
    spec = spec_of(STUDY, samples("file: x.npy"))
    options = StudyOptions(samples_file=pattern)
    assert prepare_study(spec, options).plan.samples.num == (5 if "/" in pattern else 10)


def test_what_a_failed_command_has_written_is_not_used_by_the_next_run(spec_of, tmp_path):
    spec = spec_of(STUDY, samples("file: s.csv, generate: {cmd: 'echo 1,2 > s.csv; exit 3'}"))
    for _ in range(2):
        with pytest.raises(
            SamplesError, match=r"exit code 3, and what it had written is .*s\.csv\.failed now"
        ):
            prepare_study(spec)
    assert not (tmp_path / "s.csv").exists()


def test_a_missing_file_points_to_its_line_in_the_spec(spec_of, tmp_path):
    spec = spec_of(STUDY, "merlin:\n  samples:\n    column_labels: [X0]\n    file: no.npy")
    for prepare in (plan_only, prepare_study):
        with pytest.raises(SamplesError) as caught:
            prepare(spec)
        finding = caught.value.diagnostics[0]
        assert (finding.file, finding.line) == (str(tmp_path / "hello.yaml"), 6)
        assert "no.npy" in finding.message


def test_bad_rows_stop_the_study(spec_of, tmp_path):
    (tmp_path / "bad.csv").write_text("1,2\n3,nan\n")
    with pytest.raises(SamplesError, match=r"bad.csv:2:3: error: row 1, column X1: nan is not finite"):
        prepare_study(spec_of(STUDY, samples("file: bad.csv")))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.csv", "hello.yaml"]


def test_planning_writes_nothing(spec_of, tmp_path):
    spec = spec_of(
        STUDY, samples("generate: {method: uniform, num: 100000000, bounds: {X0: [0, 1], X1: [0, 1]}}")
    )
    plan = plan_only(spec)
    assert plan.instances[0].num_tasks == 10**8
    assert [path.name for path in tmp_path.iterdir()] == ["hello.yaml"]


def test_path_dependencies_are_tokens_and_must_exist(spec_of, tmp_path):
    study = 'study: [{name: a, description: d, run: {cmd: "ls $(DATA)"}}]'
    spec = spec_of("env: {dependencies: {paths: [{name: DATA, path: $(SPECROOT)/data}]}}", study)
    with pytest.raises(SpecError, match="DATA does not exist"):
        prepare_study(spec)
    (tmp_path / "data").mkdir()
    assert prepare_study(spec).plan.instances[0].command == f"ls {tmp_path / 'data'}"


@pytest.mark.parametrize("path", ["tools", "./x/../tools", "$(HERE)/tools"])
def test_relative_dependencies_count_from_the_current_directory(spec_of, tmp_path, path):
    (tmp_path / "tools").mkdir()
    dependencies = f"{{paths: [{{name: TOOLS, path: {path}}}]}}"
    env = f"env: {{variables: {{HERE: ., EXE: $(TOOLS)/run}}, dependencies: {dependencies}}}"
    spec = spec_of(env, 'study: [{name: a, description: d, run: {cmd: "$(EXE) $(TOOLS)"}}]')
    (instance,) = prepare_study(spec).plan.instances
    assert instance.command == f"{tmp_path}/tools/run {tmp_path}/tools"


@pytest.fixture
def repository(tmp_path):
    source = tmp_path / "source"
    commit = ["-C", str(source), "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty"]
    for command in (
        ["init", "-q", str(source)],
        [*commit, "-m", "x"],
        ["-C", str(source), "tag", "v1"],
        [*commit, "-m", "y"],
        ["-C", str(source), "tag", "v2"],
    ):
        subprocess.run(["git", *command], check=True)
    return source


NEEDS_GIT = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


@NEEDS_GIT
def test_a_spec_of_maestro_has_its_clone_in_every_workspace(spec_of, tmp_path, repository):
    git = f"{{name: CODE, path: $(OUTPUT_PATH), url: {repository}, tag: v1}}"
    spec = spec_of(
        f"env: {{variables: {{OUTPUT_PATH: ./out}}, dependencies: {{git: [{git}]}}}}",
        'study: [{name: a, description: d, run: {cmd: "ls $(CODE) $(OUTPUT_PATH)"}}]',
    )
    for _ in range(2):
        workspace = prepare_study(spec)
        assert workspace.path.parent == tmp_path / "out"
        assert workspace.plan.instances[0].command == f"ls {workspace.path}/CODE {workspace.path}"
        assert (workspace.path / "CODE" / ".git").is_dir()
    again = prepare_study(load_spec(workspace.info / "hello.partial.yaml"))
    assert again.plan.instances[0].command == f"ls {again.path}/CODE {again.path}"


@NEEDS_GIT
def test_a_clone_of_an_earlier_run_is_used_again(spec_of, tmp_path, repository):
    def spec(tag, url=repository):
        git = f"{{name: CODE, path: clones, url: {url}, tag: {tag}}}"
        study = 'study: [{name: a, description: d, run: {cmd: "ls $(CODE)"}}]'
        return spec_of(f"env: {{dependencies: {{git: [{git}]}}}}", study, "merlin: {}")

    prepare_study(spec("v1"))
    mine = tmp_path / "clones" / "CODE" / "mine"
    mine.write_text("")
    assert prepare_study(spec("v1")).plan.instances[0].command == f"ls {tmp_path}/clones/CODE"
    assert mine.exists()
    with pytest.raises(SpecError, match="not at v2"):
        prepare_study(spec("v2"))
    with pytest.raises(SpecError, match=f"a clone of {repository}, not of"):
        prepare_study(spec("v1", tmp_path / "other"))
    shutil.rmtree(mine.parent / ".git")
    with pytest.raises(SpecError, match="not a clone"):
        prepare_study(spec("v1"))


@NEEDS_GIT
def test_a_repository_beside_the_user_is_recognised(spec_of, tmp_path, repository, monkeypatch):
    monkeypatch.chdir(tmp_path)
    git = f"{{name: CODE, path: clones, url: ./{repository.name}}}"
    study = 'study: [{name: a, description: d, run: {cmd: "ls $(CODE)"}}]'
    spec = spec_of(f"env: {{dependencies: {{git: [{git}]}}}}", study, "merlin: {}")
    for _ in range(2):
        prepare_study(spec)


@NEEDS_GIT
def test_a_version_that_does_not_exist_leaves_no_clone(spec_of, tmp_path, repository):
    git = f"{{name: CODE, path: clones, url: {repository}, tag: v9}}"
    study = 'study: [{name: a, description: d, run: {cmd: "ls $(CODE)"}}]'
    with pytest.raises(SpecError, match=f"git -C {tmp_path}/clones/CODE checkout .*v9"):
        prepare_study(spec_of(f"env: {{dependencies: {{git: [{git}]}}}}", study, "merlin: {}"))
    assert list((tmp_path / "clones").iterdir()) == []


@NEEDS_GIT
def test_a_clone_that_has_no_room_is_refused_by_its_name(spec_of, tmp_path, repository, monkeypatch):
    rename = os.rename

    def full(old, new):
        if "/clones/" in str(old):
            raise OSError(28, "No space left on device")
        rename(old, new)

    git = f"{{name: CODE, path: clones, url: {repository}}}"
    study = 'study: [{name: a, description: d, run: {cmd: "ls $(CODE)"}}]'
    spec = spec_of(f"env: {{dependencies: {{git: [{git}]}}}}", study, "merlin: {}")
    with monkeypatch.context() as patch:
        patch.setattr("os.rename", full)
        with pytest.raises(SpecError, match=f"{tmp_path}/clones/CODE: No space left on device; make room"):
            prepare_study(spec)
    assert list((tmp_path / "clones").iterdir()) == []
    (tmp_path / "clones").rmdir()
    (tmp_path / "clones").write_text("a file")
    with pytest.raises(SpecError, match=f"{tmp_path}/clones: File exists; mend that"):
        prepare_study(spec)


@NEEDS_GIT
def test_a_clone_that_another_run_makes_meanwhile_is_used(spec_of, tmp_path, repository, monkeypatch):
    from merlin.workspace import acquire

    def run(command):
        done = original(command)
        if "clone" in command:
            shutil.copytree(command[-1], tmp_path / "clones" / "CODE")
        return done

    original = acquire._run
    monkeypatch.setattr(acquire, "_run", run)
    git = f"{{name: CODE, path: clones, url: {repository}}}"
    study = 'study: [{name: a, description: d, run: {cmd: "ls $(CODE)"}}]'
    prepare_study(spec_of(f"env: {{dependencies: {{git: [{git}]}}}}", study, "merlin: {}"))
    assert [path.name for path in (tmp_path / "clones").iterdir()] == ["CODE"]


@NEEDS_GIT
def test_git_dependencies_are_cloned(spec_of, tmp_path):
    source = tmp_path / "source"
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (
        ["init", "-q", str(source)],
        ["-C", str(source), *identity, "commit", "-q", "--allow-empty", "-m", "x"],
    ):
        subprocess.run(["git", *command], check=True)
    study = 'study: [{name: a, description: d, run: {cmd: "ls $(CODE)"}}]'
    git = f"{{name: CODE, path: $(OUTPUT_PATH), url: {source}}}"
    spec = spec_of(f"env: {{dependencies: {{git: [{git}]}}}}", study, "merlin: {resources: {overlap: false}}")
    workspace = prepare_study(spec)
    assert workspace.plan.instances[0].command == f"ls {tmp_path / 'CODE'}"
    assert (tmp_path / "CODE" / ".git").is_dir()
    broken = spec_of(
        f"env: {{dependencies: {{git: [{git.replace('CODE', 'B').replace('source', 'no')}]}}}}",
        study.replace("CODE", "B"),
    )
    with pytest.raises(SpecError, match="git clone"):
        prepare_study(broken)


def test_the_expanded_provenance_holds_the_parameters_of_a_generator_and_the_values_of_vars(tmp_path):
    (tmp_path / "pgen.py").write_text(
        "from maestrowf.datastructures.core import ParameterGenerator\n"
        "def get_custom_generator(env, **kwargs):\n"
        "    made = ParameterGenerator()\n"
        "    made.add_parameter('P', [0.25, 0.75], 'P.%%')\n"
        "    return made\n"
    )
    (tmp_path / "demo.yaml").write_text(
        "description: {name: demo, description: d}\n"
        f"env: {{variables: {{N: 1, OUTPUT_PATH: {tmp_path}}}}}\n"
        "study: [{name: a, description: d, run: {cmd: 'echo $(P) $(N)'}}]\n"
        "global.parameters: {P: {values: [0.5], label: P.%%}}\n"
    )
    spec = load_spec(tmp_path / "demo.yaml", variables={"N": "30"})
    workspace = prepare_study(spec, StudyOptions(pgen=str(tmp_path / "pgen.py")))
    again = load_spec(workspace.info / "demo.expanded.yaml")
    assert list(again.document.parameters["P"].values) == [0.25, 0.75]
    assert again.variables["N"] == 30
    assert "0.5" not in (workspace.info / "demo.expanded.yaml").read_text()
    assert str(workspace.path) in (workspace.info / "demo.partial.yaml").read_text()
    rerun = {instance.id for instance in plan_only(again).instances}
    assert rerun == {instance.id for instance in workspace.plan.instances} == {"a/P.0.25", "a/P.0.75"}
