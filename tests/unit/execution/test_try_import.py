"""Functions that cannot be imported are found before a study runs."""

import pytest
from live_processes import live_processes

from merlin.errors import SpecError
from merlin.execution.try_import import import_findings, import_warnings, try_imports
from merlin.spec.load import load_spec

SPEC = """
description: {name: f, description: d}
study:
  - {name: shell, description: d, run: {cmd: echo}}
  - name: sim
    description: d
    run: {function: "MODULE"}
"""


@pytest.fixture
def spec_of(tmp_path):
    def make(function="sim:run", code=None):
        if code is not None:
            (tmp_path / "sim.py").write_text(code)
        (tmp_path / "s.yaml").write_text(SPEC.replace("MODULE", function))
        return load_spec(tmp_path / "s.yaml")

    return make


def test_a_module_beside_the_spec_is_found_whatever_it_says_or_starts(spec_of):
    code = (
        "import threading\nprint('hi')\nthreading.Thread(target=input).start()\ndef run(inputs, context): ..."
    )
    assert import_findings(spec_of(code=code)) == []


@pytest.mark.parametrize(
    ("function", "code", "message", "hint"),
    [
        ("simm:run", "", "ModuleNotFoundError: No module named 'simm'", "modules are looked for in"),
        ("sim:rnu", "def run(): ...", "AttributeError", "did you mean 'run'?"),
        ("sim:run", "import nothing_like_it", "No module named 'nothing_like_it' (", ""),
        ("sim:run", "\n\nboom()", "NameError: name 'boom' is not defined (", ""),
        ("sim:run", "def run(:", "SyntaxError", ""),
        ("sim:run", "run = 3", "not callable", ""),
        ("sim:run", "import sys; sys.exit('no licence')", "SystemExit: no licence", ""),
        ("sim:run", "import os; os._exit(7)", "ends the process (exit code 7)", ""),
        ("sim:run", "import os; os.kill(os.getpid(), 11)", "ends the process (signal 11)", ""),
    ],
)
def test_what_is_wrong_is_told_with_the_line_of_the_spec(spec_of, function, code, message, hint):
    spec = spec_of(function, code)
    (found,) = import_findings(spec)
    assert (found.file, found.line, found.severity, found.code) == (str(spec.path), 7, "error", "import")
    assert "step 'sim'" in found.message
    assert message in found.message
    assert hint in found.hint
    if found.message.endswith(")") and "sim.py:" in found.message:
        assert f"sim.py:{3 if 'boom' in code else 1})" in found.message


def test_a_run_here_is_refused_and_one_elsewhere_is_warned_of(spec_of):
    spec = spec_of("simm:run")
    with pytest.raises(SpecError, match="No module named 'simm'"):
        import_warnings(spec, elsewhere=False)
    assert [d.severity for d in import_warnings(spec, elsewhere=True)] == ["warning"]


def test_an_import_that_takes_long_is_a_warning_and_leaves_no_process(spec_of, tmp_path):
    (found,) = import_findings(spec_of(code="import time\ntime.sleep(600)"), limit_s=0.5)
    assert (found.severity, found.code) == ("warning", "slow-import")
    assert not [process for process in live_processes() if str(tmp_path) in process.line]


def test_one_that_ends_the_process_does_not_hide_the_others(tmp_path):
    (tmp_path / "a.py").write_text("def run(): ...")
    (tmp_path / "b.py").write_text("import os; os._exit(0)")
    (tmp_path / "c.py").write_text("oops")
    found = try_imports(["a:run", "b:run", "c:run", "a:run"], str(tmp_path))
    assert list(found) == ["b:run", "c:run"]


def test_a_module_that_copies_the_process_or_writes_everywhere_confuses_no_answer(tmp_path):
    (tmp_path / "a.py").write_text("import os\nos.fork()\ndef run(): ...")
    (tmp_path / "b.py").write_text(
        "import os, sys\n"
        "os.write(int(sys.argv[1]), b'junk')\n"
        "os.write(int(sys.argv[1]), b'[1]')\n"
        "def run(): ..."
    )
    (tmp_path / "c.py").write_text("oops")
    assert list(try_imports(["a:run", "b:run", "c:run"], str(tmp_path))) == ["c:run"]


def test_answers_of_any_length_are_read(tmp_path):
    names = [f"no_{'x' * 200}:f{number}" for number in range(200)]
    found = try_imports(names, str(tmp_path), limit_s=10.0)
    assert list(found) == names and not any(trouble.is_slow for trouble in found.values())
