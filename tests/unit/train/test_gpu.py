"""What is different on a GPU. Other tests train on the CPU even where there is one, since they compare bit by bit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from surrogate_data import INPUTS, arrays, make_surrogate_data
from train_run import StopAt, last_checkpoint, prepare_run, state_digest, train_run

from merlin.train import ShardDataset, ShardLoader
from merlin.train.checkpoint import read_checkpoint
from merlin.train.metrics_log import read_metrics
from merlin.train.results.surrogate import load_surrogate
from merlin.train.run_directory import RunDirectory

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")

REGRESSOR = ("fields.images=[image]", "model={name: regressor, width: 32}")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_surrogate_data(tmp_path_factory.mktemp("surrogate"))


def losses(run: RunDirectory) -> list[float]:
    lines = read_metrics(run.trainer(0).path / "metrics.jsonl")
    return [line["values"]["loss"] for line in lines if line["kind"] == "validation"]


def digest(run: RunDirectory) -> str:
    return state_digest(read_checkpoint(last_checkpoint(run.trainer(0).checkpoints)))


@pytest.mark.parametrize("normalise", [None, "standard"])
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_batches_on_a_gpu_are_those_of_the_cpu(data, normalise, num_workers, prefetch) -> None:
    dataset = ShardDataset(data, stack_scalars=True, normalise=normalise)
    words = {"batch_size": 64, "seed": 1, "with_index": True}
    with (
        ShardLoader(dataset, **words, copy=True) as here,
        ShardLoader(dataset, **words, device="cuda", num_workers=num_workers, prefetch=prefetch) as there,
    ):
        for _ in range(2):
            kept = list(there)  # batches on a GPU stay valid
            for mine, other in zip(here, kept, strict=True):
                assert all(values.is_cuda for values in other.values())
                for key, values in mine.items():
                    torch.testing.assert_close(other[key].cpu(), values, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_model_learns_in_each_precision(data, tmp_path, precision) -> None:
    words = (f"training.precision={precision}", "training.steps=200", "training.device=cuda")
    found = losses(train_run(prepare_run(data, tmp_path / "run", *REGRESSOR, *words))[0])
    assert found[-1] < 0.5 * found[0]


def test_a_compiled_model_learns(data, tmp_path) -> None:
    words = ("training.compile=true", "training.steps=100", "training.device=cuda")
    found = losses(train_run(prepare_run(data, tmp_path / "run", *REGRESSOR, *words))[0])
    assert found[-1] < found[0]


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_deterministic_run_that_was_stopped_ends_bit_by_bit_as_one_that_was_not(
    data, tmp_path, precision
) -> None:
    words = ("training.deterministic=true", "training.device=cuda", f"training.precision={precision}")
    unbroken = train_run(prepare_run(data, tmp_path / "unbroken", *REGRESSOR, *words))[0]
    broken = prepare_run(data, tmp_path / "broken", *REGRESSOR, *words)
    run = train_run(broken, stop=StopAt(17))[0]
    train_run(broken, run=run)
    assert digest(run) == digest(unbroken)


def test_a_run_goes_on_on_another_device(data, tmp_path) -> None:
    first = prepare_run(data, tmp_path / "run", *REGRESSOR, "training.device=cuda")
    run = train_run(first, stop=StopAt(20))[0]
    second = prepare_run(data, tmp_path / "run", *REGRESSOR, "training.device=cpu")
    assert train_run(second, run=second.begin())[1].step == 40
    found = losses(run)
    assert found[-1] < found[0]


def test_a_surrogate_answers_the_same_on_both_devices(data, tmp_path) -> None:
    run = train_run(prepare_run(data, tmp_path / "run", *REGRESSOR, "training.device=cuda"))[0]
    samples = arrays(50, seed=3)
    x = 0.9 * np.stack([samples[name] for name in INPUTS], axis=1)
    here, there = (load_surrogate(run.path, device=device).predict(x) for device in ("cpu", "cuda"))
    for name, values in here.items():
        np.testing.assert_allclose(there[name], values, rtol=1e-3, atol=1e-3 * np.abs(values).max())


def train_by_command(run: RunDirectory) -> subprocess.CompletedProcess[str]:
    """Not by forking, which CUDA does not survive."""
    command = [sys.executable, "-m", "merlin.cli", "train", str(run.config_path), f"directory={run.path}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=240)


def test_ranks_of_a_trainer_that_would_share_a_gpu_are_refused(data, tmp_path) -> None:
    words = ("tournament.ranks_per_trainer=2", "training.device=cuda:0")
    done = train_by_command(prepare_run(data, tmp_path / "run", *REGRESSOR, *words).begin())
    assert done.returncode != 0 and "several have the same GPU, and each needs its own" in done.stderr, (
        done.stderr
    )


@pytest.mark.parametrize("strategy", ["averaging", "random_pairwise"])
@pytest.mark.parametrize("transport", ["files", "process_group"])
def test_trainers_may_share_a_gpu(data, tmp_path, strategy, transport) -> None:
    play = f"tournament={{trainers: 2, transport: {transport}, strategy: {strategy}, interval: 10}}"
    run = prepare_run(data, tmp_path / "run", *REGRESSOR, "training.device=cuda:0", play).begin()
    done = train_by_command(run)
    assert done.returncode == 0, done.stderr
    found = losses(run)
    assert found[-1] < found[0]
