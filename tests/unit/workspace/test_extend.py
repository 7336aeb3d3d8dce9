"""Extending a study: which samples are new, what must not differ, and what its plan says."""

import re
import textwrap

import numpy as np
import pytest

from merlin.errors import SamplesError, SpecError, UsageError, WorkspaceError
from merlin.plan.plan import StepKind
from merlin.plan.plan_io import plan_digest, read_plan, relocate
from merlin.spec.load import load_spec
from merlin.workspace.directory import extensions, lock_file, members, open_workspace
from merlin.workspace.extend import LOCK_NAME, prepare_extension
from merlin.workspace.options import StudyOptions
from merlin.workspace.prepare import prepare_study
from merlin.workspace.sampling import Design, generate_samples

SPEC = """
description: {{name: grow, description: d}}
env: {{variables: {{N: {num}, FACTOR: {factor}}}}}
study:
- name: mesh
  description: runs once
  run: {{cmd: "make mesh", task_queue: {queue}}}
- name: sim
  description: runs per sample
  run:
    depends: [mesh]
    cmd: |
      load $(mesh.workspace)/mesh
      run $(X) $(Y) $(FACTOR) > $(MERLIN_SAMPLE_ID).txt
- name: collect
  description: the data set
  run:
    depends: [sim_*]
    aggregate: {{samples_per_shard: 8, fields: {{y: {{file: out.json, dtype: {dtype}}}}}}}
- name: report
  description: looks at the data set
  run: {{depends: [collect], cmd: "{report} $(collect.workspace) $(MERLIN_WORKSPACE) $(MERLIN_TIMESTAMP)"}}
merlin:
  samples: {{column_labels: [X, Y], {samples}}}
"""
SOBOL = "generate: {method: sobol, num: $(N), bounds: {X: [0, 1], Y: [0, 2]}, seed: 5}"
TURNED = "{validation: 0.1, train: 0.8, test: 0.1}"
PREP = "- {name: prep, description: runs once, run: {cmd: prepare}}\n- name: sim"
PARAMETERS = "global.parameters: {P: {values: [1, 2], label: P.%%}}\n"
DESIGN = Design(method="sobol", num=50, bounds={"X": (0.0, 1.0), "Y": (0.0, 2.0)}, seed=5)


@pytest.fixture
def spec_of(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def make(num=20, *, samples=SOBOL, factor=2, dtype="float64", report="look", queue="q", change=None):
        text = SPEC.format(num=num, samples=samples, factor=factor, dtype=dtype, report=report, queue=queue)
        (tmp_path / "s.yaml").write_text(change(text) if change else text)
        return load_spec(tmp_path / "s.yaml")

    return make


def extend(spec, study, *, only_new=False, **options):
    return prepare_extension(spec, StudyOptions(**options), study, only_new=only_new)


def rows_of(workspace):
    table = workspace.samples()
    return np.stack(list(table.rows(0, table.num).values()), axis=1)


def test_an_extension_has_the_new_samples_alone(spec_of):
    study = prepare_study(spec_of(20))
    first = extend(spec_of(30), study)
    second = extend(spec_of(50), study)
    assert first.path == study.path / "extensions/001" and second.member == "extensions/002"
    assert [m.path for m in members(second)] == [study.path, first.path, second.path]
    assert [(m.first_sample, m.plan.samples.num) for m in members(study)] == [(0, 20), (20, 10), (30, 20)]
    together = np.concatenate([rows_of(member) for member in members(study)])
    assert np.array_equal(together, generate_samples(DESIGN, ["X", "Y"]))
    sim = second.instance("sim")
    assert (second.sample_id(sim, 0), second.sample_id(second.instance("report"), 0)) == (30, None)
    assert extend(spec_of(50), study) is None
    assert len(extensions(study)) == 2


def test_rows_and_shards_go_on_where_they_ended(spec_of):
    study = prepare_study(spec_of(20))
    placed = []
    for num in (30, 50):
        extension = extend(spec_of(num), study)
        for id in ("collect", "collect.manifest"):
            aggregate = extension.instance(id).aggregate
            placed.append((aggregate.first_row, aggregate.first_shard))
        assert extension.data_set_dir(extension.instance("collect")) == study.path / "collect"
    assert placed == [(20, 3), (20, 3), (30, 5), (30, 5)]


def test_what_ran_once_before_the_samples_is_not_run_again(spec_of):
    study = prepare_study(spec_of(20))
    extension = extend(spec_of(30), study)
    kinds = {instance.id: instance.kind for instance in extension.plan.instances}
    assert kinds == {
        "sim": StepKind.CMD, "collect": StepKind.AGGREGATE, "collect.manifest": StepKind.MANIFEST,
        "report": StepKind.CMD,
    }  # fmt: skip
    sim, report = extension.instance("sim"), extension.instance("report")
    assert sim.edges == () and sim.num_tasks == 10
    assert f"load {study.path}/mesh/mesh" in sim.command
    assert report.command.split() == [
        "look", f"{study.path}/collect", str(extension.path), study.path.name[-15:],
    ]  # fmt: skip


def test_the_plan_moves_with_the_study(spec_of, tmp_path):
    study = prepare_study(spec_of(20))
    extension = extend(spec_of(30), study)
    digest = plan_digest(extension.plan)
    moved = study.path.rename(tmp_path / "elsewhere")
    again = open_workspace(moved / "extensions/001")
    assert plan_digest(again.plan) == digest
    assert f"load {moved}/mesh/mesh" in again.instance("sim").command
    assert again.root == moved and again.samples().num == 10
    assert relocate(again.plan, str(extension.path)) == read_plan(again.plan_path)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"factor": 3}, r"sim.*\n.*- run \$\(X\) \$\(Y\) 2 >.*\n.*\+ run \$\(X\) \$\(Y\) 3 >"),
        ({"dtype": "float32"}, "collect: fields.y.dtype: float64, now float32"),
        ({"change": lambda text: text.replace("samples_per_shard: 8", "samples_per_shard: 4")}, "8, now 4"),
        (
            {"change": lambda text: text.replace("shard: 8", f"shard: 8, splits: {TURNED}")},
            r"collect: order of splits: .*train.*validation.*test",
        ),
        (
            {"change": lambda text: text.replace("make mesh", "make finer mesh")},
            "make mesh, now make finer",
        ),
        ({"change": lambda text: text.replace("$(X) $(Y)", "$(Y)")}, "sim: cmd: "),
        (
            {"change": lambda text: text.replace("- name: sim", PREP).replace("[mesh]", "[mesh, prep]")},
            "sim: depends: mesh, now mesh, prep.*step instance prep is new",
        ),
        (
            {"change": lambda text: text.replace("load $(mesh.workspace)", "load -f $(mesh.workspace)")},
            r"- load \$\(MERLIN_WORKSPACE\)/mesh/mesh",
        ),
        ({"change": lambda text: text.replace("[X, Y]", "[Y, X]")}, "columns are Y, X"),
        (
            {"change": lambda text: text.replace("$(X) $(Y)", "$(X) $(Y) $(P)") + PARAMETERS},
            r"step instance sim is gone.*step instance sim/P.1 is new",
        ),
    ],
)
def test_a_spec_of_another_study_is_refused_and_the_difference_shown(spec_of, change, told):
    study = prepare_study(spec_of(20))
    with pytest.raises(SpecError) as error:
        extend(spec_of(30, **change), study)
    assert re.search(told, str(error.value), re.DOTALL), str(error.value)
    assert not (study.path / "extensions").exists()


def test_a_difference_is_told_once_for_all_instances_of_a_step(spec_of):
    def loading(num, load):
        return spec_of(
            num, change=lambda text: text.replace("$(Y)", "$(Y) $(P)").replace("load", load) + PARAMETERS
        )

    study = prepare_study(loading(20, "load"))
    with pytest.raises(SpecError) as error:
        extend(loading(30, "load -f"), study)
    (told,) = error.value.diagnostics
    assert "sim: cmd: " in told.message and "+ load -f $(MERLIN_WORKSPACE)/mesh/mesh" in told.message


def test_who_runs_a_step_what_is_said_of_a_field_and_what_comes_after_the_data_set_may_change(spec_of):
    study = prepare_study(spec_of(20))
    words = lambda text: text.replace("{file: out.json,", "{file: out.json, description: d, level: 3,")  # noqa: E731
    extension = extend(spec_of(30, report="look again at", queue="other", change=words), study)
    assert extension.instance("report").command.startswith("look again at")


def test_fewer_samples_and_a_grid_are_refused(spec_of):
    study = prepare_study(spec_of(20))
    with pytest.raises(SamplesError, match="num is 10, and the study has 20 samples"):
        extend(spec_of(10), study)
    grid = "generate: {method: grid, num: 25, bounds: {X: [0, 1], Y: [0, 2]}}"
    with pytest.raises(SamplesError, match=r"s.yaml:\d+.*a grid cannot get more points"):
        extend(spec_of(30, samples=grid), study)
    with pytest.raises(SamplesError, match="--new-rows is about samples files"):
        extend(spec_of(30), study, only_new=True)


def test_a_study_without_samples_cannot_grow(spec_of, tmp_path):
    (tmp_path / "t.yaml").write_text(
        "description: {name: t, description: d}\nstudy: [{name: a, description: d, run: {cmd: 'true'}}]\n"
    )
    spec = load_spec(tmp_path / "t.yaml")
    with pytest.raises(UsageError, match="has no samples"):
        extend(spec, prepare_study(spec))


def test_an_extension_that_is_missing_in_between_is_noticed(spec_of):
    study = prepare_study(spec_of(20))
    extend(spec_of(30), study)
    extend(spec_of(40), study)
    (study.path / "extensions/001").rename(study.path / "gone")
    with pytest.raises(WorkspaceError, match="begins with sample 30, and there are 20 before it"):
        extend(spec_of(50), study)
    (study.path / "extensions/002").rename(study.path / "gone too")
    assert extend(spec_of(50), study).plan.samples.num == 30  # the last ones may be given up


def test_two_extend_at_once(spec_of):
    study = prepare_study(spec_of(20))
    with lock_file(study.info / LOCK_NAME, "mine"), pytest.raises(WorkspaceError, match="being extended"):
        extend(spec_of(30), study)
    assert extend(spec_of(30), study) is not None


# ------------------------------------------------------------------ files


def write_csv(path, lo, hi, *, first="0"):
    lines = [f"{first}{i}.50,{2 * i}" for i in range(lo, hi)]
    path.write_text("X,Y\n" + "\n".join(lines) + "\n")


@pytest.fixture
def csv_study(spec_of, tmp_path):
    write_csv(tmp_path / "in.csv", 0, 6)
    spec = spec_of(samples="file: in.csv")
    return spec, prepare_study(spec), tmp_path / "in.csv"


def test_a_file_that_begins_with_the_old_samples_gives_the_rest(csv_study):
    spec, study, file = csv_study
    write_csv(file, 0, 9)  # the user's own file has grown
    extension = extend(spec, study)
    assert extension.samples().text_rows(0, 3) == [("06.50", "12"), ("07.50", "14"), ("08.50", "16")]
    assert extension.first_sample == 6 and not study.plan.samples.file.startswith("merlin_info")
    assert open_workspace(study.path).samples().num == 6  # still its own
    assert extend(spec, study) is None
    write_csv(file, 0, 12)
    assert extend(spec, study).first_sample == 9


def test_new_rows_alone_need_to_be_said(csv_study, tmp_path):
    spec, study, _ = csv_study
    write_csv(tmp_path / "more.csv", 6, 9)
    with pytest.raises(SamplesError, match=r"3 samples, and the study has 6.*\n.*--new-rows"):
        extend(spec, study, samples_file=str(tmp_path / "more.csv"))
    write_csv(tmp_path / "more.csv", 6, 16)
    with pytest.raises(SamplesError, match=r"row 0 is not sample 0 of the study: 06.50, 12 in the file"):
        extend(spec, study, samples_file=str(tmp_path / "more.csv"))
    extension = extend(spec, study, samples_file=str(tmp_path / "more.csv"), only_new=True)
    assert (extension.first_sample, extension.samples().num) == (6, 10)
    with pytest.raises(SamplesError, match=r"its rows are samples 6-15 of the study already"):
        extend(spec, study, samples_file=str(tmp_path / "more.csv"), only_new=True)
    with pytest.raises(SamplesError, match="first 6 rows are samples 0-5"):
        extend(spec, study, samples_file=str(tmp_path / "in.csv"), only_new=True)


def test_old_samples_that_were_changed_in_their_file_are_noticed(csv_study):
    spec, study, file = csv_study
    write_csv(file, 0, 9, first="1")
    with pytest.raises(WorkspaceError, match="its first 6 rows are not those"):
        extend(spec, study)


def test_another_format_with_the_same_numbers_goes_on(csv_study, tmp_path):
    spec, study, _ = csv_study
    rows = np.array([[i + 0.5, 2.0 * i] for i in range(8)])
    np.save(tmp_path / "all.npy", rows)
    extension = extend(spec, study, samples_file=str(tmp_path / "all.npy"))
    assert np.array_equal(rows_of(extension), rows[6:])


def test_numbers_do_not_become_text(csv_study, tmp_path):
    spec, study, _ = csv_study
    (tmp_path / "more.csv").write_text("1.5,steel\n2.5,lead\n")
    with pytest.raises(SamplesError, match="column Y holds text, that of the study numbers"):
        extend(spec, study, samples_file=str(tmp_path / "more.csv"), only_new=True)


def test_mixed_types_of_a_structured_file_are_kept(spec_of, tmp_path):
    dtype = [("X", "<f4"), ("Y", "<i8")]
    rows = np.array([(0.1 * i, i) for i in range(8)], dtype=dtype)
    np.save(tmp_path / "in.npy", rows[:5])
    spec = spec_of(samples="file: in.npy")
    study = prepare_study(spec)
    np.save(tmp_path / "in.npy", rows)
    extension = extend(spec, study)
    assert extension.samples().text_rows(1, 2) == [("0.6", "6")]


GENERATE = """
    import sys, numpy as np
    rng = np.random.default_rng({seed})
    np.save(sys.argv[1], rng.random((int(sys.argv[2]), 2)))
"""
CMD = "generate: {cmd: python3 gen.py $(MERLIN_INFO)/s.npy $(N)}, file: $(MERLIN_INFO)/s.npy"


def write_generator(tmp_path, seed):
    (tmp_path / "gen.py").write_text(textwrap.dedent(GENERATE.format(seed=seed)))


def test_a_command_makes_all_samples_and_the_new_ones_are_taken(spec_of, tmp_path):
    write_generator(tmp_path, 1)
    study = prepare_study(spec_of(5, samples=CMD))
    extension = extend(spec_of(8, samples=CMD), study)
    whole = np.random.default_rng(1).random((8, 2))
    assert np.array_equal(np.concatenate([rows_of(study), rows_of(extension)]), whole)
    assert extend(spec_of(8, samples=CMD), study) is None
    assert not (study.path / "extensions/002").exists()


def test_a_command_with_other_first_samples_is_refused(spec_of, tmp_path):
    write_generator(tmp_path, 1)
    study = prepare_study(spec_of(5, samples=CMD))
    write_generator(tmp_path, 2)
    with pytest.raises(SamplesError, match="row 0 is not sample 0 of the study"):
        extend(spec_of(8, samples=CMD), study)
    assert (study.path / "extensions/001/merlin_info/error.txt").exists()
    assert extensions(study) == []
    extension = extend(spec_of(3, samples=CMD), study, only_new=True)  # a command that makes new ones alone
    assert (extension.plan.extension, extension.first_sample, extension.samples().num) == (2, 5, 3)


def test_a_command_does_not_overwrite_the_samples_of_the_study(spec_of, tmp_path):
    write_generator(tmp_path, 1)
    cmd = "generate: {cmd: python3 gen.py s.npy $(N)}, file: s.npy"
    study = prepare_study(spec_of(5, samples=cmd))
    with pytest.raises(SamplesError, match="would overwrite"):
        extend(spec_of(8, samples=cmd), study)
