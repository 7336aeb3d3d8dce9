"""The `merlin` command: finds the command, runs it, turns errors into messages and exit codes."""

from __future__ import annotations

import atexit
import codecs
import gc
import os
import sys
import threading
import traceback
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path

import click

from merlin import __version__
from merlin.base.files import remedy, written_name
from merlin.base.processes import give_way
from merlin.base.text import count
from merlin.cli.lazy import LazyGroup
from merlin.cli.pacing import paced
from merlin.errors import ConfigError, MerlinError, SpecError

# name -> (module under merlin.cli.commands, attribute, help line); the help page is drawn from it alone
COMMANDS: dict[str, tuple[str, str, str]] = {
    "run": ("run", "run", "Run a study: expand the spec, run every task, build the data sets."),
    "restart": ("restart", "restart", "Finish a study that was stopped; nothing finished runs again."),
    "history": ("history", "history", "Show the revisions of a study that was updated; go back by one."),
    "rerun": ("rerun", "rerun", "Run tasks again that you choose, and all that depends on them."),
    "run-workers": ("workers", "run_workers", "Start the workers that a spec asks for."),
    "stop-workers": ("workers", "stop_workers", "Stop workers, all or some."),
    "query-workers": ("workers", "query_workers", "List the live workers and what they run."),
    "workers": ("worker_jobs", "workers", "Let workers come by themselves, in batch jobs."),
    "queue-info": ("queue_info", "queue_info", "Show how full the queues are and who serves them."),
    "monitor": ("monitor", "monitor", "Watch a study that workers run, to its end."),
    "metrics": ("metrics", "metrics", "Print numbers of studies for Prometheus, or write them into a file."),
    "notify": ("notify", "notify", "Show whom a study tells of what, and try it with a test message."),
    "cancel": ("cancel", "cancel", "End a study on all workers and kill what runs of it."),
    "purge": ("purge", "purge", "Empty the queues of a spec, so that nothing of it waits any more."),
    "validate": ("spec", "validate", "Check a spec and show every problem with its place."),
    "plan": ("spec", "plan", "Show what a spec will run and write, without running it."),
    "samples": ("samples", "samples", "Generate a samples file."),
    "list": ("list", "list_all", "List your studies with their state, the newest first."),
    "status": ("status", "status", "Show how far a study is."),
    "dashboard": ("dashboard", "dashboard", "Show studies in a browser, while they run and afterwards."),
    "detailed-status": ("detailed_status", "detailed_status", "Show a study task by task, with filters."),
    "explain": ("explain", "explain", "Say why something does not run, and what to do about it."),
    "failures": ("failures", "failures", "Explain the failures of a study, grouped by cause."),
    "logs": ("logs", "logs", "Show what tasks have printed: a sample's, or all that failed."),
    "timeline": ("timeline", "timeline", "Write who ran what when, for Perfetto, Chrome or OpenTelemetry."),
    "cost": ("cost", "cost", "Show the core-hours of a study by step, and those that were of no use."),
    "report": ("report", "report", "Write a study as one HTML page, to read, to print and to send."),
    "sql": ("sql", "sql", "Ask a study anything, in SQL."),
    "shards": ("shards", "shards", "Describe, verify and plot data sets."),
    "train": ("train", "train", "Train a model on a data set: one trainer, or a tournament of many."),
    "evaluate": ("trained", "evaluate", "Measure a trained model on held-out samples, and write a report."),
    "predict": ("trained", "predict", "Predict a file of samples with a trained model."),
    "export-model": ("trained", "export_model", "Write a trained model as ONNX or TorchScript."),
    "example": ("example", "example", "List the studies that come with Merlin, or copy one of them."),
    "schema": ("spec", "schema", "Print the JSON Schema of specs, for editors."),
    "config": ("config", "config", "Make, choose, show and check the configuration of the servers."),
    "server": ("server", "server", "Run a private Redis: start, stop, status."),
    "doctor": ("doctor", "doctor", "Check everything that a study on workers needs."),
    "completion": ("completion", "completion", "Print what lets a shell complete merlin's words."),
    "info": ("info", "info", "Show versions and paths, for bug reports."),
}

_RUN = ("run", "restart", "rerun", "run-workers", "train", "evaluate", "predict")  # those that run something

_LOOK = (  # those that read what a study has recorded, whatever else computes here
    "list", "status", "detailed-status", "explain", "failures", "logs", "timeline", "cost", "report", "sql",
    "metrics",
)  # fmt: skip

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


@click.group(
    cls=LazyGroup,
    package="merlin.cli.commands",
    lazy_commands=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(__version__, "-v", "--version", message="%(version)s")
@click.option(
    "-lvl",
    "--level",
    type=click.Choice(LEVELS, case_sensitive=False),
    default="INFO",
    show_default=True,
    help="How much to log; DEBUG also shows the traceback of an error.",
)
@click.pass_context
def cli(ctx: click.Context, level: str) -> None:
    """Merlin: one YAML spec becomes an ensemble, the ensemble becomes a verified data set."""
    import logging

    ctx.obj = level.upper()
    logging.basicConfig(level=ctx.obj, format="%(levelname)s %(name)s: %(message)s")
    if ctx.obj != "DEBUG":
        for name in ("maestrowf", "numexpr"):  # they report what they lack, and how many cores they use
            logging.getLogger(name).setLevel(logging.WARNING)


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point; never returns."""
    args = list(sys.argv[1:] if argv is None else argv)
    has_no_words = not args and "_MERLIN_COMPLETE" not in os.environ
    if has_no_words:
        args = ["--help"]
    debug = _wants_debug(args)
    _prepare_streams()
    gc.set_threshold(50_000, 20, 50)  # modules make many objects that stay; looking at them again takes time
    if "_MERLIN_COMPLETE" in os.environ:
        from merlin.cli.completing.shells import register

        register()
    try:
        code = _exit_code_of(args)
        if sys.stdout is not None:  # None: closed by the caller, as by `>&-`
            sys.stdout.flush()
        if has_no_words:
            code = 1  # nothing was asked for; upstream's scripts look at it
    except click.ClickException as error:
        error.show()
        if hint := _hint_for_several(error.message, args):
            _say(hint)
        code = error.exit_code
        _answer_program(args, error, code)
    except (click.Abort, KeyboardInterrupt):
        _say("stopped")
        code = 130
    except BrokenPipeError:
        _drop_stdout()
        code = 1  # as click itself ends when a command meets it
    except MerlinError as error:
        code = _explain(error, args, debug)
        _answer_program(args, error, code)
    except OSError as error:
        code = _environment_failed(error, args, debug)
    except Exception as error:  # noqa: BLE001  the outermost frame: nobody above could explain it
        code = _unexpected(error, args, debug)
    sys.exit(code if isinstance(code, int) else 0)


def _exit_code_of(args: Sequence[str]) -> object:
    """Run the command; with standalone_mode off, click returns the code of ctx.exit() and raises everything else."""
    try:
        return cli.main(args=args, prog_name="merlin", standalone_mode=False)
    except SystemExit as end:  # what was printed has to be written before this counts: the disk may be full
        if isinstance(end.code, str):  # said by code of the user
            _say(end.code)
            return 1
        return end.code


def command() -> None:
    """The program `merlin`: `main`, and an end that does not spend a tenth of a second on taking objects apart."""
    code = 0
    is_look = (name := _command_of(sys.argv[1:])) in _LOOK
    if is_look:
        give_way()
    try:
        with paced(name) if is_look else nullcontext():
            main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    except KeyboardInterrupt:  # during the wait of a look
        code = 130
    if threading.active_count() > 1 or "torch" in sys.modules:  # other threads have to end first
        sys.exit(code)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            with suppress(OSError, ValueError):
                stream.flush()
    os._exit(code)


def _command_of(args: Sequence[str]) -> str:
    """The name of the command; "" if there is none."""
    return next((word for word in args if word in COMMANDS), "")


def _prepare_streams() -> None:
    """Give closed standard streams a place, and let characters that the terminal lacks become `?`.

    A file opened while descriptor 1 is closed would get that number, and with it what is printed.
    """
    while (fd := os.open(os.devnull, os.O_RDWR)) < 3:
        os.set_inheritable(fd, True)
    os.close(fd)
    codecs.register_error("merlin", _in_place_of)
    instead = {"strict": "replace", "surrogateescape": "merlin"}  # the second in the locales C and POSIX
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and hasattr(stream, "reconfigure") and stream.errors in instead:
            stream.reconfigure(errors=instead[stream.errors])


def _in_place_of(error: UnicodeError) -> tuple[bytes, int]:
    """What is written for characters that a terminal lacks: the bytes of names that are no text, else `?`."""
    assert isinstance(error, UnicodeEncodeError)
    lacks = error.object[error.start : error.end]
    return bytes(ord(c) - 0xDC00 if "\udc80" <= c <= "\udcff" else ord("?") for c in lacks), error.end


def _wants_debug(args: Sequence[str]) -> bool:
    """True if `-lvl DEBUG` stands before the command, read by hand because click may be what fails."""
    for i, word in enumerate(args):
        if word in COMMANDS:
            return False
        if word in ("-lvl", "--level"):
            return i + 1 < len(args) and args[i + 1].upper() == "DEBUG"
        if word.upper() == "--LEVEL=DEBUG":
            return True
    return False


def _hint_for_several(message: str, args: Sequence[str]) -> str:
    """Explain extra arguments that come from a pattern such as `study_*`, for which the shell puts all workspaces."""
    if "unexpected extra argument" not in message:
        return ""
    from merlin.workspace.directory import INFO_DIR

    num = sum((Path(word) / INFO_DIR).is_dir() for word in args)
    return f"these are {num} workspaces; name one of them, or the spec for the newest" if num > 1 else ""


def _say(text: str) -> None:
    try:
        print(f"merlin: {text}", file=sys.stderr, flush=True)
    except BrokenPipeError:
        _drop_stdout()


def _explain(error: MerlinError, args: Sequence[str], debug: bool) -> int:
    """Print a known error and return its exit code."""
    if debug:
        traceback.print_exception(error)
    if isinstance(error, SpecError | ConfigError) and error.diagnostics:
        for diagnostic in error.diagnostics:
            print(diagnostic.render(), file=sys.stderr)
        num = sum(d.severity == "error" for d in error.diagnostics)
        runs = _command_of(args) in _RUN
        _say(f"{count(num, 'error')}{'; nothing was run' if runs else ''}")
    else:
        _say(f"error: {_with_notes(error)}")
    return error.exit_code


def _with_notes(error: MerlinError) -> str:
    """The message, and what was added to it on its way."""
    return "; ".join((str(error), *getattr(error, "__notes__", ())))


def _answer_program(args: Sequence[str], error: click.ClickException | MerlinError, code: int) -> None:
    """With --json, print the error on stdout, too, where a program waits for a document."""
    if "--json" not in args:
        return
    from merlin.cli.output import print_json

    message = error.format_message() if isinstance(error, click.ClickException) else _with_notes(error)
    diagnostics = {"diagnostics": error.diagnostics} if isinstance(error, SpecError | ConfigError) else {}
    print_json({"error": message, **diagnostics, "exit_code": code})


def _unexpected(error: Exception, args: Sequence[str], debug: bool) -> int:
    """Print an error that nobody foresaw; the traceback goes to a file, or to stderr with -lvl DEBUG."""
    import tempfile

    message = f"internal error: {type(error).__name__}: {error}"
    if debug:
        traceback.print_exception(error)
        _say(message)
        return 1
    with tempfile.NamedTemporaryFile(
        "w", prefix="merlin-error-", suffix=".txt", delete=False, encoding="utf-8"
    ) as file:
        file.write(f"merlin {__version__} on Python {sys.version.split()[0]}\ncommand: {list(args)!r}\n\n")
        traceback.print_exception(error, file=file)
    _say(f"{message}\n  This is a bug. Please report it with the traceback saved in {file.name}")
    return 1


def _environment_failed(error: OSError, args: Sequence[str], debug: bool) -> int:
    """A full disk, a missing permission: not a bug, as long as the operating system says what it is."""
    if error.errno is None or error.strerror is None:
        return _unexpected(error, args, debug)
    if debug:
        traceback.print_exception(error)
    where = f": {written_name(error.filename)}" if isinstance(error.filename, str | bytes) else ""
    todo = "; ".join(getattr(error, "__notes__", ())) or remedy(error, "")
    try:
        sys.stdout.flush()
    except (OSError, AttributeError):
        _drop_stdout()  # it is stdout itself that fails
    _say(f"error: {error.strerror}{where}{todo and f'; {todo}'} (-lvl DEBUG shows more)")
    return 1


def _drop_stdout() -> None:
    """Point stdout at nothing, so that the interpreter's last flush is quiet too."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)
