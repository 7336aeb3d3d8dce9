"""The kinds of steps, and what a spec means by leaving something out; on plain data."""

from __future__ import annotations

from typing import Any, Literal, get_args

KINDS = ("cmd", "function", "aggregate")  # a step has exactly one of these keys in its `run`
BATCH = {"type": "local", "dry_run": False, "shell": "/bin/bash"}
ENV: dict[str, Any] = {"variables": {}, "sources": [], "labels": {}, "dependencies": {}}
RUN = {"task_queue": "merlin", "max_retries": 30}
WORKER: dict[str, Any] = {"steps": ["all"]}
SAMPLES = {"level_max_dirs": 25}
DEFAULT_WORKER = "default_worker"
MAX_FILE_NAME = 255  # bytes
Method = Literal["latin_hypercube", "sobol", "halton", "uniform", "normal", "grid"]
METHODS: tuple[str, ...] = get_args(Method)  # that make samples
SAMPLES_SUFFIXES = (".npy", ".csv", ".tab", ".parquet")
GENERATED_FILE = "$(MERLIN_INFO)/samples.npy"
OPEN_BLOCKS = frozenset({"user", "variables", "labels", "values"})  # nulls in these are the user's

NAMED_BLOCKS = frozenset({"workers", "fields", "members"})  # `name:` alone means a block of defaults


def drop_nulls(data: Any, key: str = "") -> Any:
    """Leave out every key without a value, so that `env:` alone means no env block."""
    if key in OPEN_BLOCKS:
        return {} if data is None and key != "user" else data
    if isinstance(data, dict):
        if key in NAMED_BLOCKS:
            return {name: {} if item is None else drop_nulls(item) for name, item in data.items()}
        return {name: drop_nulls(item, name) for name, item in data.items() if item is not None}
    if isinstance(data, list):
        return [drop_nulls(item) for item in data]
    return data


def fill(data: dict[str, Any]) -> dict[str, Any]:
    """A copy with the defaults filled in; parts of a wrong type are left for the model to refuse."""
    data = drop_nulls(data)
    data["batch"] = _with(data.get("batch"), BATCH)
    data["env"] = _with(data.get("env"), ENV)
    shell = data["batch"].get("shell", "/bin/bash") if isinstance(data["batch"], dict) else "/bin/bash"
    steps = data.get("study")
    for step in steps if isinstance(steps, list) else []:
        if isinstance(step, dict) and isinstance(step.get("run"), dict):
            step["run"] = _with(step["run"], {**RUN, "shell": shell})
            _fill_aggregate(step["run"])
    parameters = data.setdefault("global.parameters", {})
    for name, parameter in parameters.items() if isinstance(parameters, dict) else []:
        if isinstance(parameter, dict):
            parameter.setdefault("label", f"{name}.%%")
    _fill_merlin(data)
    data.setdefault("user", None)
    return data


def _with(block: Any, defaults: dict[str, Any]) -> Any:
    if block is None:
        return dict(defaults)
    if not isinstance(block, dict):
        return block
    return {**block, **{key: value for key, value in defaults.items() if key not in block}}


def _fill_aggregate(run: dict[str, Any]) -> None:
    """Fill in `from`: by default the only step in depends. The mark of a funnel is removed: it has no meaning here."""
    block = run.get("aggregate")
    if not isinstance(block, dict):
        return
    depends = run.get("depends")
    only = depends if isinstance(depends, str) else None
    if isinstance(depends, list) and len(depends) == 1:
        only = depends[0]
    source = block.get("from", only)
    if isinstance(source, str):
        block = {**block, "from": funnel_base(source)}
    fields = block.get("fields")
    if isinstance(fields, dict):
        block = {**block, "fields": {name: _with_output(name, field) for name, field in fields.items()}}
    run["aggregate"] = block


def _with_output(name: str, field: Any) -> Any:
    """A field that names no file is the function's output of the same name."""
    if not isinstance(field, dict) or {"file", "output", "expression", "members"} & field.keys():
        return field
    return {**field, "output": name}


def funnel_base(entry: str) -> str:
    """The step that an entry of depends names: `step_*` and `step*` mean all of `step`."""
    return entry.replace("_*", "").replace("*", "")


def _fill_merlin(data: dict[str, Any]) -> None:
    merlin = data["merlin"] = _with(data.get("merlin"), {})
    if not isinstance(merlin, dict):
        return
    resources = merlin["resources"] = _with(
        merlin.get("resources"), {"task_server": "celery", "overlap": False}
    )
    if isinstance(resources, dict):
        resources["workers"] = _workers(resources.get("workers"), _step_names(data))
    samples = merlin.get("samples")
    if isinstance(samples, dict):
        samples = merlin["samples"] = _with(samples, SAMPLES)
        generate = samples.get("generate")
        if isinstance(generate, dict) and "method" in generate:
            samples.setdefault("file", GENERATED_FILE)


def _step_names(data: dict[str, Any]) -> list[str]:
    steps = data.get("study")
    if not isinstance(steps, list):
        return []
    return [str(step["name"]) for step in steps if isinstance(step, dict) and "name" in step]


def _workers(workers: Any, steps: list[str]) -> Any:
    """Steps that no worker serves get a `default_worker`."""
    if not workers:
        return {DEFAULT_WORKER: dict(WORKER)}
    if not isinstance(workers, dict):
        return workers
    filled = {name: _with(worker, WORKER) for name, worker in workers.items()}
    served: set[str] = set()
    for worker in filled.values():
        listed = worker.get("steps") if isinstance(worker, dict) else None
        served.update(str(item) for item in (listed if isinstance(listed, list) else [listed]))
    left = [name for name in steps if name not in served]
    if left and "all" not in served:
        filled[DEFAULT_WORKER] = {"steps": left}
    return filled
