"""Which open studies a purge stops."""

from merlin.cli.commands.purge import choose_studies
from merlin.execution.distributed.registry import StudyInfo


def study(workspace, name="grow", queues=("q",)):
    facts = {"study_id": "s", "plan": "p", "session": "1", "published": 0.0}
    return StudyInfo(workspace=str(workspace), name=name, queues=list(queues), **facts)


def test_a_workspace_stands_for_the_study_and_its_extensions(tmp_path):
    mine, other = tmp_path / "grow_1", tmp_path / "grow_2"
    mine.mkdir()
    studies = [study(mine), study(mine / "extensions/001"), study(other), study(other / "extensions/001")]
    assert choose_studies(studies, mine, "grow", ["q"]) == studies[:2]
    assert choose_studies(studies, mine, "grow", ["elsewhere"]) == []
    extension = mine / "extensions/001"
    extension.mkdir(parents=True)
    assert choose_studies(studies, extension, "grow", ["q"]) == studies[1:2]


def test_a_spec_stands_for_all_studies_of_its_name(tmp_path):
    studies = [
        study(tmp_path / "a"),
        study(tmp_path / "a/extensions/001"),
        study(tmp_path / "b", name="other"),
    ]
    assert choose_studies(studies, tmp_path / "spec.yaml", "grow", ["q"]) == studies[:2]
