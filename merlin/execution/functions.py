"""Function steps: a Python callable runs a whole chunk in the worker; no process and no file per sample."""

from __future__ import annotations

import importlib
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import reduce
from typing import Any, TextIO, cast

import numpy as np
from numpy.typing import NDArray

from merlin.execution.context import FunctionContext, Inputs
from merlin.execution.journal import ChunkJournal, Outputs
from merlin.execution.shell import machine_error
from merlin.execution.waiting import Waiter
from merlin.ledger.records import Failure
from merlin.plan.layout import LOGS
from merlin.plan.plan import StepInstance
from merlin.plan.tasks import Chunk
from merlin.workspace.directory import Workspace

TAIL_CHARS = 2048
Function = Callable[[Inputs, FunctionContext], dict[str, Any]]
Ids = NDArray[np.int64]


class _BadResult(Exception):
    """The function returned something that is not a dict of arrays with one row per sample."""


class FunctionRunner:
    """Calls functions; each is imported once per worker."""

    def __init__(self, workspace: Workspace, worker: str) -> None:
        self._workspace, self._worker = workspace, worker
        self._functions: dict[str, Function | BaseException] = {}  # or the error of its import
        self._logs: dict[str, TextIO] = {}  # instance id -> its log

    def run(self, instance: StepInstance, chunk: Chunk, journal: ChunkJournal, waiter: Waiter) -> None:
        """Run the chunk with one call; if that raises, with one call per sample."""
        ids = np.asarray(chunk.task_ids(), np.int64)
        call = _Call(self._workspace, instance, chunk)
        with self._captured(instance):
            function = self._load(str(instance.function))
            if isinstance(function, BaseException):
                cause = f"cannot import {instance.function}: {cause_of(function)}"
                for task in chunk.task_ids():
                    failure = Failure(task=task, cause=cause, exit_code=1, tail=_tail(function))
                    journal.fail(failure, started=time.time(), seconds=0.0)
                return
            if not chunk.isolate and _run_together(function, call, ids, journal):
                return
            _run_one_by_one(function, call, ids, journal, waiter)

    def close(self) -> None:
        for log in self._logs.values():
            log.close()
        self._logs.clear()

    def _load(self, name: str) -> Function | BaseException:
        if name not in self._functions:
            try:
                self._functions[name] = import_function(name, self._workspace.plan.spec_root)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - the module is the user's
                self._functions[name] = error
        return self._functions[name]

    @contextmanager
    def _captured(self, instance: StepInstance) -> Iterator[None]:
        """Send the output of the function, from Python or from native code, to ``<instance>/logs/<worker>.out``."""
        log = self._log(instance)
        _flush_streams()
        saved = os.dup(1), os.dup(2)
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        try:
            with redirect_stdout(log), redirect_stderr(log):
                yield
        finally:
            log.flush()
            _flush_streams()
            for fd, target in zip(saved, (1, 2), strict=True):
                os.dup2(fd, target)
                os.close(fd)

    def _log(self, instance: StepInstance) -> TextIO:
        if instance.id not in self._logs:
            folder = self._workspace.instance_dir(instance) / LOGS
            folder.mkdir(parents=True, exist_ok=True)
            # line buffering keeps the order relative to the output of native code
            self._logs[instance.id] = open(folder / f"{self._worker}.out", "a", buffering=1)  # noqa: SIM115
        return self._logs[instance.id]


class _Call:
    """Prepares the two arguments of a call and checks its result."""

    def __init__(self, workspace: Workspace, instance: StepInstance, chunk: Chunk) -> None:
        self.chunk = chunk
        self._workspace, self._instance = workspace, instance
        self._columns = workspace.samples().rows(chunk.lo, chunk.hi) if instance.per_sample else {}
        self._ragged: frozenset[str] = frozenset()
        if instance.feeds:
            from merlin.shards.writing.outputs import ragged_outputs

            self._ragged = ragged_outputs(workspace, instance)

    def checked(self, result: object, n: int) -> Outputs:
        """The function's result as arrays with n rows. In a ragged output each row is an object, its items.

        Raises _BadResult.
        """
        if not isinstance(result, dict):
            raise _BadResult(f"returned {type(result).__name__}; return a dict of arrays, one row per sample")
        arrays: Outputs = {}
        for name, value in result.items():
            if not isinstance(name, str):
                raise _BadResult(f"returned the key {name!r}; names of outputs are text")
            try:
                array = _items(value, n) if name in self._ragged else np.asarray(value)
            except ValueError as error:
                raise _BadResult(
                    f"{name!r} has rows that do not make an array ({_one_line(error)})"
                ) from error
            if array.ndim == 0 or array.shape[0] != n:
                raise _BadResult(
                    f"{name!r} has shape {array.shape}; its first axis must be {n}, one row per sample"
                )
            arrays[name] = array
        return arrays

    def arguments(self, ids: Ids) -> tuple[Inputs, FunctionContext]:
        """The inputs and the context of a call. Inputs are copies, so a call that writes into them does no harm."""
        index = ids - self.chunk.lo
        inputs: Inputs = {label: column[index] for label, column in self._columns.items()}
        instance, plan = self._instance, self._workspace.plan
        inputs.update(instance.params)
        first = self._workspace.first_sample if instance.per_sample else 0
        context = FunctionContext(
            sample_ids=ids + first,
            seed=plan.seed,
            workspace=self._workspace.path,
            instance=instance.id,
            step=instance.step,
            params=dict(instance.params),
            variables=dict(plan.variables),
            chunk=(first + self.chunk.lo, first + self.chunk.hi),
            attempt=self.chunk.attempt,
        )
        return inputs, context


def _run_together(function: Function, call: _Call, ids: Ids, journal: ChunkJournal) -> bool:
    """Make one call for all samples. Returns False if it failed and the samples must be tried one by one."""
    started, clock = time.time(), time.perf_counter()
    try:
        outputs = call.checked(function(*call.arguments(ids)), len(ids))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the function is the user's
        _raise_if_machine(error)
        return False
    seconds = time.perf_counter() - clock
    journal.end_all(np.ones(len(ids), bool), ids, started=started, seconds=seconds)
    journal.flush(_rows_of_chunk(outputs, ids, call.chunk))
    return True


def _run_one_by_one(function: Function, call: _Call, ids: Ids, journal: ChunkJournal, waiter: Waiter) -> None:
    """Make one call per sample, so that only bad samples fail.

    In a chunk that has killed a worker before, each sample is committed alone, so that the next crash loses only its
    own sample.
    """
    chunk, kept = call.chunk, _SampleOutputs(call.chunk)
    for i in ids:
        if waiter.stopped:
            break
        started, clock = time.time(), time.perf_counter()
        try:
            result = call.checked(function(*call.arguments(np.array([i]))), 1)
            kept.add(int(i), result)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the function is the user's
            _raise_if_machine(error)
            failure = Failure(task=int(i), cause=cause_of(error), exit_code=1, tail=_tail(error))
            journal.fail(failure, started=started, seconds=time.perf_counter() - clock)
        else:
            one = np.array([i])
            journal.end_all(np.ones(1, bool), one, started=started, seconds=time.perf_counter() - clock)
        if chunk.isolate:
            journal.flush(kept.outputs)
    journal.flush(kept.outputs)


class _SampleOutputs:
    """The outputs of single samples, as arrays with one row per task of the chunk."""

    def __init__(self, chunk: Chunk) -> None:
        self._lo, self._num = chunk.lo, chunk.hi - chunk.lo
        self.outputs: Outputs | None = None

    def add(self, task: int, result: Outputs) -> None:
        """Keep a sample's result. Names and shapes must be those of the samples before."""
        if self.outputs is None:
            self.outputs = {
                name: np.zeros((self._num, *value.shape[1:]), value.dtype) for name, value in result.items()
            }
        if result.keys() != self.outputs.keys():
            raise _BadResult(f"returned {sorted(result)} where other samples gave {sorted(self.outputs)}")
        for name, value in result.items():
            kept = self.outputs[name]
            if value.shape[1:] != kept.shape[1:]:
                raise _BadResult(
                    f"{name!r} has shape {value.shape[1:]} where other samples have {kept.shape[1:]}"
                )
            if value.dtype != kept.dtype:
                kept = self.outputs[name] = kept.astype(np.result_type(kept.dtype, value.dtype))
        for name, value in result.items():
            self.outputs[name][task - self._lo] = value[0]


def _items(value: object, n: int) -> NDArray[Any]:
    """(n,) objects: the items of each sample."""
    from merlin.shards.writing.outputs import item_rows

    try:
        return item_rows(value, n)
    except ValueError as error:
        raise _BadResult(str(error)) from error


def _rows_of_chunk(outputs: Outputs, ids: Ids, chunk: Chunk) -> Outputs:
    """Outputs of the tasks that ran -> one row per task of the chunk."""
    n = chunk.hi - chunk.lo
    if len(ids) == n:
        return outputs
    spread: Outputs = {}
    for name, value in outputs.items():
        spread[name] = np.zeros((n, *value.shape[1:]), value.dtype)
        spread[name][ids - chunk.lo] = value
    return spread


def import_function(name: str, spec_root: str) -> Function:
    """Import "module:callable". The directory of the spec comes first in the search path."""
    module_name, colon, attribute = name.partition(":")
    if not (module_name and colon and attribute):
        raise ValueError(f"write it as module:callable, not {name!r}")
    if spec_root and sys.path[:1] != [spec_root]:
        sys.path.insert(0, spec_root)
    function = reduce(getattr, attribute.split("."), importlib.import_module(module_name))
    if not callable(function):
        raise TypeError(f"{name} is not callable")
    return cast("Function", function)


def _raise_if_machine(error: BaseException) -> None:
    if isinstance(error, OSError) and (fatal := machine_error(error)) is not None:
        raise fatal from error


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


def cause_of(error: BaseException) -> str:
    """The type and text of an error, as in "ValueError: negative pressure"."""
    text = _one_line(error)
    if isinstance(error, _BadResult):
        return f"bad result: {text}"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _tail(error: BaseException) -> str:
    if isinstance(error, _BadResult):
        return ""
    return "".join(traceback.format_exception(error))[-TAIL_CHARS:]


def _flush_streams() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
