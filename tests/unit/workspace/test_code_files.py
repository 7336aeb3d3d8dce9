"""Which files are a step's code, what the plan records of them, and what is said of those that are not there."""

import hashlib
import os
import socket
import subprocess
import sys
import textwrap

import pytest

from merlin.errors import SpecError
from merlin.plan.code_changes import code_changes
from merlin.plan.plan_io import read_plan
from merlin.spec.load import load_spec
from merlin.workspace import code_files, file_patterns
from merlin.workspace.checking import check_study
from merlin.workspace.code_files import script_words
from merlin.workspace.directory import open_workspace
from merlin.workspace.extend import prepare_extension
from merlin.workspace.module_source import module_file
from merlin.workspace.options import StudyOptions
from merlin.workspace.prepare import plan_only, prepare_study

HEAD = "description: {name: s, description: d}\n"
SAMPLES = "merlin: {samples: {column_labels: [X], generate: {method: sobol, num: 4, bounds: {X: [0, 1]}}}}\n"


def sha(text):
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The directory of the spec; studies are made elsewhere."""
    root, elsewhere = tmp_path / "specs", tmp_path / "elsewhere"
    root.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    return root


@pytest.fixture
def spec_of(place):
    def make(run, rest="", head=HEAD):
        body = textwrap.indent(textwrap.dedent(run).strip(), "    ")
        text = f"{head}study:\n- name: a\n  description: d\n  run:\n{body}\n{textwrap.dedent(rest)}"
        (place / "s.yaml").write_text(text)
        return load_spec(place / "s.yaml")

    return make


def put(path, text="text"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def code(spec):
    return plan_only(spec).code["a"]


def findings(place):
    return check_study(place / "s.yaml", {}, StudyOptions())[1]


def only_finding(place):
    (found,) = findings(place)
    return found


# --------------------------------------------------------------------------------------- files:


def test_files_are_recorded_by_their_names_below_the_spec(spec_of, place, tmp_path):
    put(place / "physics/model.py", "a")
    put(place / "physics/deep/er/eos.py", "b")
    put(place / "deck [1].txt", "c")
    outside = put(tmp_path / "tables/opacity.txt", "d")
    spec = spec_of(f"""
        cmd: run
        files: ["physics/**/*.py", "deck [1].txt", ../tables/opacity.txt, $(SPECROOT)/physics/model.py, {outside}]
    """)
    assert code(spec) == {
        str(outside): sha("d"),
        "deck [1].txt": sha("c"),
        "physics/deep/er/eos.py": sha("b"),
        "physics/model.py": sha("a"),
    }
    assert findings(place) == []


def test_a_single_entry_needs_no_brackets_and_may_use_variables_and_parameters(spec_of, place):
    for name in ("deck_1.txt", "deck_2.txt", "deck_3.txt"):
        put(place / "in" / name, name)
    rest = """
        env: {variables: {FOLDER: in}}
        global.parameters: {P: {values: [1, 3], label: P.%%}}
    """
    spec = spec_of("{cmd: echo $(P), files: $(FOLDER)/deck_$(P).txt}", rest)
    assert list(code(spec)) == ["in/deck_1.txt", "in/deck_3.txt"]


def test_variables_in_values_of_parameters_are_filled_in(spec_of, place):
    put(place / "decks/a.txt", "a")
    spec = spec_of(
        'cmd: cat "$(DECK)"\nfiles: ["$(DECK)"]',
        "global.parameters: {DECK: {values: [$(SPECROOT)/decks/a.txt]}}",
    )
    assert code(spec) == {"decks/a.txt": sha("a")}
    assert findings(place) == []


def test_wildcards_pass_over_what_is_hidden_compiled_or_part_of_a_study(spec_of, place):
    for name in (
        "a.py",
        "sub/b.py",
        ".git/c.py",
        ".hidden.py",
        "__pycache__/d.py",
        "old/merlin_info/plan.json",
    ):
        put(place / name)
    put(place / "old/e.py")
    spec = spec_of('{cmd: run, files: ["**/*.py"]}')
    assert list(code(spec)) == ["a.py", "sub/b.py"]
    assert list(code(spec_of('{cmd: run, files: ["*/e.py", a.py]}'))) == ["a.py"]
    assert list(code(spec_of('{cmd: run, files: [".h*", "old/*.py"]}'))) == [".hidden.py", "old/e.py"]
    assert list(code(spec_of('{cmd: run, files: ["sub/**"]}'))) == ["sub/b.py"]


def test_a_directory_may_have_wildcards_in_its_name(place):
    odd = put(place / "run [1]*/in/a.txt")
    put(place / "run 1/in/b.txt")
    assert file_patterns.named_files(place / "run [1]*/*/*.txt") == [odd]
    assert file_patterns.named_files(place / "run [1]*/**") == [odd]


def test_circles_of_links_end(spec_of, place):
    put(place / "in/a.txt")
    (place / "in/loop").symlink_to(place / "in", target_is_directory=True)
    (place / "in/b.txt").symlink_to("b.txt")
    (place / "in/c.txt").symlink_to("a.txt")
    assert list(code(spec_of('{cmd: run, files: ["in/**", "*/*/a.txt"]}'))) == [
        "in/a.txt",
        "in/c.txt",
        "in/loop/a.txt",
    ]
    spec_of("{cmd: cat in/b.txt, files: in/b.txt}")
    assert "cannot be a file (Too many levels of symbolic links)" in only_finding(place).message


@pytest.mark.parametrize(
    ("entry", "message", "hint"),
    [
        ("modle.py", "'modle.py' does not exist", "did you mean 'model.py'?"),
        ("gone/x.py", "'gone/x.py' does not exist", "counts from the directory of the spec"),
        ("gone/*.py", "'gone/*.py' matches no file", "counts from the directory of the spec"),
        ("model.py/x", "'model.py/x' does not exist", ""),
        ("folder", "'folder' is a directory", "folder/* or folder/**"),
        ("fold*", "'fold*' matches no file", ""),
        ("dangling", "'dangling' does not exist", ""),
        ("socket", "'socket' is not a regular file", ""),
        ('"a\\0b"', "cannot be a path", ""),
        ("x" * 300, "cannot be a file (File name too long)", ""),
        ("$(WORKSPACE)/x", "has $(WORKSPACE) in it, which has no value before the study begins", ""),
    ],
)
def test_an_entry_without_a_file_is_an_error_in_its_place(spec_of, place, monkeypatch, entry, message, hint):
    put(place / "model.py")
    (place / "folder").mkdir()
    (place / "dangling").symlink_to("nowhere")
    monkeypatch.chdir(place)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind("socket")
    spec = spec_of(f"""
        cmd: run
        files:
        - model.py
        - {entry}
    """)
    found = only_finding(place)
    assert (found.severity, found.line, found.col, found.code) == ("error", 9, 7, "files")
    assert message in found.message and found.message.startswith("files of step 'a': ")
    assert hint in found.hint
    assert list(code(spec)) == ["model.py"]
    with pytest.raises(SpecError) as caught:
        prepare_study(spec)
    assert len(caught.value.diagnostics) == 1
    assert not list(place.glob("s_*"))  # nothing is begun
    listening.close()


def test_too_many_matches_are_an_error_and_not_a_long_wait(spec_of, place, monkeypatch):
    folder = place / "many"
    folder.mkdir()
    for i in range(10_000):
        (folder / f"{i}.txt").touch()
    spec = spec_of('{cmd: run, files: ["many/*.txt"]}')
    found = only_finding(place)
    assert found.message == "files of step 'a': 'many/*.txt' matches more than 1,000 files"
    assert found.severity == "error" and found.line == 6 and found.hint
    assert code(spec) == {}
    monkeypatch.setattr(file_patterns, "MAX_ENTRIES", 5_000)
    spec_of('{cmd: run, files: ["many/*.nothing"]}')
    assert "more than 5,000 names" in only_finding(place).message


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_that_cannot_be_read_is_a_warning(spec_of, place):
    put(place / "secret.txt").chmod(0)
    spec = spec_of("{cmd: cat secret.txt, files: secret.txt}")
    found = only_finding(place)
    assert found.severity == "warning" and "Permission denied" in found.message
    assert prepare_study(spec).plan.code == {"a": {}}


def test_a_file_that_cannot_be_opened_is_a_warning(spec_of, place, monkeypatch):
    """As the test above, for root."""
    secret = put(place / "secret.txt")
    put(place / "b.txt", "b")
    usual = type(secret).open

    def refusing(self, *args, **kwargs):
        if self == secret:
            raise PermissionError(13, "Permission denied")
        return usual(self, *args, **kwargs)

    monkeypatch.setattr(type(secret), "open", refusing)
    spec = spec_of("{cmd: cat secret.txt, files: '*.txt'}")
    found = only_finding(place)
    assert (found.severity, found.line) == ("warning", 6)
    assert "'secret.txt' cannot be read (Permission denied)" in found.message
    assert prepare_study(spec).plan.code == {"a": {"b.txt": sha("b")}}


def test_a_file_of_a_repository_that_is_not_cloned_yet_is_no_error(spec_of, place, tmp_path):
    git = "env: {dependencies: {git: [{name: REPO, path: %s, url: u}]}}\n" % (tmp_path / "clones")
    spec_of("{cmd: run, files: $(REPO)/src/main.c}", git)
    assert findings(place) == []
    put(tmp_path / "clones/REPO/README")
    spec_of("{cmd: run, files: $(REPO)/src/main.c}", git)
    assert "does not exist" in only_finding(place).message


def test_a_file_that_a_repository_turns_out_not_to_have_is_an_error(spec_of, place, tmp_path):
    subprocess.run(["git", "init", "--quiet", "-b", "main", str(tmp_path / "origin")], check=True)
    put(tmp_path / "origin/main.c", "c")
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["add", "."], [*identity, "commit", "--quiet", "-m", "m"]):
        subprocess.run(["git", "-C", str(tmp_path / "origin"), *words], check=True)
    git = f"""
        env: {{dependencies: {{git: [{{name: REPO, path: {tmp_path / "clones"}, url: {tmp_path / "origin"}}}]}}}}
    """
    with pytest.raises(SpecError, match=r"gone\.c' does not exist"):
        prepare_study(spec_of("{cmd: run, files: $(REPO)/gone.c}", git))
    plan = prepare_study(spec_of("{cmd: run, files: $(REPO)/main.c}", git)).plan
    assert plan.code == {"a": {str(tmp_path / "clones/REPO/main.c"): sha("c")}}


def test_the_archived_spec_names_the_same_files(spec_of, place):
    put(place / "deck.txt", "1")
    workspace = prepare_study(spec_of("{cmd: run, files: '*.txt'}"))
    archived = load_spec(workspace.info / "s.expanded.yaml")
    assert code(archived) == {str(place / "deck.txt"): sha("1")}


def test_files_may_be_large(spec_of, place):
    with (place / "large.bin").open("wb") as file:
        file.truncate(code_files.MAX_BYTES + 1)
    digest = code(spec_of("{cmd: cat large.bin, files: large.bin}"))["large.bin"]
    state = hashlib.sha256()
    for _ in range(64):
        state.update(bytes(1 << 20))
    state.update(b"\0")
    assert digest == state.hexdigest()
    assert code(spec_of("{cmd: cat large.bin}")) == {}


def test_names_that_are_no_text_survive_the_plan(spec_of, place):
    name = os.fsdecode(b"\xff.txt")
    put(place / name)
    workspace = prepare_study(spec_of("{cmd: run, files: '*.txt'}"))
    assert list(workspace.plan.code["a"]) == [name]
    assert read_plan(workspace.plan_path).code == workspace.plan.code
    assert open_workspace(workspace.path).digest == workspace.digest


# ----------------------------------------------------------------------------------------- cmd:


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("python $SPEC/model.py 'a b.txt' --deck=decks/a.txt", ["model.py", "a b.txt", "decks/a.txt"]),
        ("cp a.txt b.txt && cat<c.txt|wc", ["a.txt", "b.txt", "c.txt"]),
        ("run > out.txt 2>> err.txt >& all.txt; cat d.txt", ["d.txt"]),
        ("run a.txt # and not b.txt, don't", ["a.txt"]),
        ("echo ${#x} a.txt", ["a.txt"]),
        ('python -c \'open("a.txt")', ["a.txt"]),
        ("print(\"don't", []),
    ],
)
def test_words_of_a_script_that_may_be_files(line, words):
    found = [word.rpartition("$SPEC/")[2] for word in script_words(line)]
    assert [word for word in found if word.endswith((".txt", ".py")) and "=" not in word] == words


def test_files_that_a_command_names_are_code(spec_of, place, tmp_path):
    for name in ("model.py", "lib/env.sh", "in/deck 1.txt", "in/P2.txt", "again.sh", "out.txt", "unused.py"):
        put(place / name, name)
    put(tmp_path / "outside.txt")
    run = """
        cmd: |
          cd $(SPECROOT)
          python $(SPECROOT)/model.py --x $(X) \\
            "in/deck 1.txt" --deck=in/P$(P).txt in ../outside.txt model.py gone.txt > out.txt
          cat $(X)/model.py <<EOF
          don't stop
          EOF
        restart: ./again.sh
    """
    rest = f"""
        env: {{sources: [lib/env.sh]}}
        global.parameters: {{P: {{values: [1, 2], label: P.%%}}}}
        {SAMPLES}"""
    plan = plan_only(spec_of(run, rest))
    names = ["again.sh", "in/P2.txt", "in/deck 1.txt", "lib/env.sh", "model.py"]
    assert plan.code == {"a": {name: sha(name) for name in names}}


def test_files_in_workspaces_are_not_code(spec_of, place):
    put(place / "studies/old_20260101-000000/a/out.txt")
    put(place / "studies/old_20260101-000000/merlin_info/plan.json")
    spec = spec_of("cmd: cat $(SPECROOT)/studies/old_20260101-000000/a/out.txt")
    assert code(spec) == {}


def test_a_command_names_no_more_than_a_hundred(spec_of, place):
    names = [f"f{i}.txt" for i in range(150)]
    for name in names:
        put(place / name)
    assert len(code(spec_of(f"cmd: cat {' '.join(names)}"))) == code_files.MAX_FILES == 100


def test_hostile_commands_do_no_harm(spec_of, place):
    put(place / "a.txt")
    (place / "loop").symlink_to("loop")
    words = ["loop", "loop/a.txt", "'", "\\\\", "x" * 5_000, "/", ".", "..", "~", "a.txt/", "a.txt"]
    lines = "\n".join(f"          {line}" for line in [*words, "y" * 100_000])
    assert list(code(spec_of(f"cmd: |\n{lines}"))) == ["a.txt"]


# ------------------------------------------------------------------------------------- function:


def test_the_module_of_a_function_is_code_and_is_not_imported(spec_of, place):
    put(place / "my_package/__init__.py", "raise SystemExit('imported')")
    put(place / "my_package/inner/simulate.py", "raise SystemExit('imported')")
    put(place / "my_package/other.py")
    digest = sha("raise SystemExit('imported')")
    assert code(spec_of("function: 'my_package.inner.simulate:run'")) == {
        "my_package/inner/simulate.py": digest
    }
    assert code(spec_of("function: 'my_package:run'")) == {"my_package/__init__.py": digest}
    assert code(spec_of("function: 'my_package.gone:run'")) == {}
    assert code(spec_of("function: 'my_package.other.more:run'")) == {}
    assert code(spec_of("function: 'no_such_module_anywhere:run'")) == {}
    assert not [name for name in sys.modules if name.startswith("my_package")]


def test_modules_are_looked_for_where_workers_look(place, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "on_path"))
    here = put(tmp_path / "elsewhere/sought.py")
    assert module_file("sought", str(place)) is None  # the current directory is not one of them
    here.unlink()
    on_path = put(tmp_path / "on_path/sought.py")
    assert module_file("sought", str(place)) == on_path
    assert module_file("json.decoder", str(place)).name == "decoder.py"
    beside = put(place / "sought.py")
    assert module_file("sought", str(place)) == beside
    assert module_file("sys", str(place)) is None


def test_parts_of_a_package_may_lie_in_several_places(place, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "on_path"))
    put(place / "parts/one/a.py")
    other = put(tmp_path / "on_path/parts/two/b.py")
    assert module_file("parts.one.a", str(place)) == place / "parts/one/a.py"
    assert module_file("parts.two.b", str(place)) == other


# ----------------------------------------------------------------------------------- two plans


def test_a_change_is_noticed_between_two_plans(spec_of, place):
    put(place / "simulate.py", "1")
    put(place / "in/a.txt")
    put(place / "in/b.txt")
    spec = spec_of("{function: 'simulate:run', files: ['in/*.txt']}", SAMPLES)
    old = read_plan(prepare_study(spec).plan_path)
    assert code_changes(old, plan_only(spec)) == {}
    put(place / "simulate.py", "2")
    put(place / "in/c.txt")
    (place / "in/b.txt").unlink()
    assert code_changes(old, plan_only(spec)) == {
        "a": ["in/b.txt is gone", "in/c.txt is new", "simulate.py has changed"]
    }


def test_every_step_has_a_record(spec_of, place):
    rest = "- {name: b, description: d, run: {cmd: echo}}\n"
    assert plan_only(spec_of("cmd: echo", rest)).code == {"a": {}, "b": {}}


def test_an_extension_has_a_record_of_its_own(spec_of, place):
    put(place / "deck.txt", "1")
    run = "{cmd: run $(X), files: deck.txt}"
    study = prepare_study(spec_of(run, SAMPLES))
    put(place / "deck.txt", "2")
    more = spec_of(run, SAMPLES.replace("num: 4", "num: 8"))
    extension = prepare_extension(more, StudyOptions(), study)
    assert code_changes(study.plan, extension.plan) == {"a": ["deck.txt has changed"]}
    (place / "deck.txt").unlink()
    with pytest.raises(SpecError, match="does not exist"):
        prepare_extension(spec_of(run, SAMPLES.replace("num: 4", "num: 9")), StudyOptions(), study)
