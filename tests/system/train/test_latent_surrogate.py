"""The surrogate that is trained as a whole: its basis of images, what teaches what, and a run of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from surrogate_data import make_surrogate_data
from train_run import StopAt, last_checkpoint, prepare_run, state_digest, train_run

from merlin.errors import UsageError
from merlin.train.checkpoint import read_checkpoint
from merlin.train.models.base import Shapes
from merlin.train.models.image_basis import ImageBasis
from merlin.train.models.latent_surrogate import LatentSurrogate
from merlin.train.models.outputs import Outputs
from merlin.train.models.registry import build
from merlin.train.results.evaluate import evaluate
from merlin.train.results.surrogate import load_surrogate

BOTH = Shapes.of(("a", "b", "c"), ("x", "y"), {"side": (2, 8, 16), "top": (1, 4, 4)})
WORDS = (
    "fields={scalars: [energy, radius], images: [image]}", "training.steps=30",
    "model={name: latent_surrogate, width: 32, latent: 6, components: 24}",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _one_thread_and_a_seed() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(3)


def batch_of(shapes: Shapes, num: int) -> dict[str, torch.Tensor]:
    batch = {"inputs": torch.randn(num, len(shapes.inputs)), "scalars": torch.randn(num, len(shapes.scalars))}
    return batch | {name: torch.randn(num, *shape) for name, shape in shapes.images.items()}


def model_of(shapes: Shapes = BOTH, **options) -> LatentSurrogate:
    return build("latent_surrogate", shapes, {"width": 16, "latent": 4, "components": 12, **options})


def test_a_basis_as_large_as_the_images_gives_them_back() -> None:
    outputs, batch = Outputs(BOTH), batch_of(BOTH, 400)
    basis = ImageBasis(outputs, 1000)
    assert basis.size == 2 * 8 * 16 + 4 * 4
    basis.fit(batch)
    found, rest = basis.encode(batch)
    torch.testing.assert_close(found.std(0, correction=0), torch.ones(basis.size))
    assert float(rest.max()) < 1e-5
    for name, images in basis.decode(found).items():
        torch.testing.assert_close(images, batch[name], atol=1e-4, rtol=0)


def test_errors_of_coefficients_are_those_of_pixels() -> None:
    outputs, batch = Outputs(BOTH), batch_of(BOTH, 60)
    basis = ImageBasis(outputs, 10)
    basis.fit(batch)
    true, rest = basis.encode(batch)
    made = true + 0.3 * torch.randn_like(true)
    expected = outputs.squared_errors({**batch, **basis.decode(made)}, batch)["images"]
    assert float(rest.min()) > 0.1
    torch.testing.assert_close(basis.squared_errors(made, true, rest), expected)


def test_components_are_the_principal_ones() -> None:
    shapes = Shapes.of(("a",), ("x",), {"image": (1, 4, 4)})
    batch = batch_of(shapes, 200)
    batch["image"] *= torch.logspace(0, -2, 16).reshape(1, 4, 4)
    basis = ImageBasis(Outputs(shapes), 3)
    basis.fit(batch)
    pixels = batch["image"].flatten(1).numpy() / 4
    spreads = np.linalg.svd(pixels - pixels.mean(0), compute_uv=False)[:3] / np.sqrt(200)
    np.testing.assert_allclose(basis.scale.numpy(), spreads, rtol=1e-4)


@pytest.mark.parametrize("num", [1, 5])
def test_fewer_samples_than_components_leave_the_rest_unused(num: int) -> None:
    batch = batch_of(BOTH, num)
    model = model_of()
    model.fit(batch)
    assert int((model.basis.scale > 0).sum()) == num - 1
    found, rest = model.basis.encode(batch)
    assert found.isfinite().all() and float(rest.max()) < 1e-4
    loss = model(batch)["loss"]
    loss.backward()
    assert loss.isfinite() and all(p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("shapes", [BOTH, Shapes.of(("a",), ("x",)), Shapes.of(("a",), (), {"i": (1, 4, 4)})])
def test_what_is_predicted_has_the_shapes_of_the_data(shapes: Shapes) -> None:
    batch = batch_of(shapes, 20)
    if not shapes.scalars:
        del batch["scalars"]
    model = model_of(shapes)
    model.fit(batch)
    made = model.predict(batch["inputs"])
    assert {name: v.shape for name, v in made.items()} == {
        n: v.shape for n, v in batch.items() if n != "inputs"
    }
    assert model.infer({n: v for n, v in batch.items() if n != "inputs"}).shape == batch["inputs"].shape
    with torch.no_grad():
        metrics = model.metrics(batch)
    assert set(metrics) == set(model.directions())
    errors = Outputs(shapes).squared_errors(made, batch)
    for name, error in errors.items():
        torch.testing.assert_close(metrics[name], error, rtol=1e-4, atol=1e-5)


def reached(model: LatentSurrogate, loss: torch.Tensor) -> set[str]:
    model.zero_grad(set_to_none=True)
    loss.backward()
    return {n.partition(".")[0] for n, p in model.named_parameters() if p.grad is not None and p.grad.any()}


def test_what_leads_back_does_not_pull_at_the_way_forward() -> None:
    model, batch = model_of(), batch_of(BOTH, 20)
    model.fit(batch)
    assert reached(model, model(batch)["scalars"]) == {"forward_generator", "decoder"}
    assert reached(model, model(batch)["images"]) == {"forward_generator", "decoder"}
    assert reached(model, model(batch)["reconstruction"]) == {"encoder"}
    assert reached(model, model(batch)["latent"]) == {"encoder"}
    assert reached(model, model(batch)["inverse"]) == {"encoder", "inverse_generator"}
    assert reached(model, model(batch)["cycle"]) == {"forward_generator", "inverse_generator"}


def test_what_it_cannot_take_is_told() -> None:
    with pytest.raises(UsageError, match="latent_surrogate takes numbers for inputs"):
        model_of(Shapes.of(("a",), ("x",), input_images={"i": (1, 4, 4)}))
    with pytest.raises(UsageError, match="latent_surrogate predicts no classes"):
        model_of(Shapes.of(("a",), ("x",), classes={"c": (0, 1)}))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_surrogate_data(tmp_path_factory.mktemp("surrogate"), 800)


def test_a_run_learns_and_its_images_are_those_of_the_basis(data: Path, tmp_path: Path) -> None:
    words = ("training.steps=300", "training.validate_every=100", "optimizer.lr=0.005")
    run = train_run(prepare_run(data, tmp_path / "run", *WORDS, *words))[0]
    facts = evaluate(run.path).facts
    assert facts["baseline"]["not_better"] == []
    assert min(of["r2"] for of in facts["scalars"].values()) > 0.9
    assert facts["images"]["image"]["relative_l2"] < 0.3 and len(facts["inputs"]) == 4
    assert load_surrogate(run.path, device="cpu").predict(np.zeros((2, 4)))["image"].shape == (2, 8, 8, 2)


def test_a_run_that_was_stopped_ends_as_one_that_was_not(data: Path, tmp_path: Path) -> None:
    prepared = prepare_run(data, tmp_path / "one", *WORDS)
    run, _, _ = train_run(prepared, stop=StopAt(13))
    train_run(prepared, run=run)
    other, _, _ = train_run(prepare_run(data, tmp_path / "other", *WORDS))
    states = [read_checkpoint(last_checkpoint(r.trainer(0).checkpoints))["trainer"] for r in (run, other)]
    assert state_digest(states[0]) == state_digest(states[1])
    assert states[0]["model"]["basis.scale"].any()


def test_trainers_have_the_same_basis_of_images(data: Path, tmp_path: Path) -> None:
    words = (*WORDS, "tournament={trainers: 2, strategy: none}", "training.steps=2")
    prepared = prepare_run(data, tmp_path / "run", *words)
    run = train_run(prepared, trainer=0)[0]
    train_run(prepared, run=run, trainer=1)
    one, two = (
        read_checkpoint(last_checkpoint(run.trainer(k).checkpoints))["trainer"]["model"] for k in (0, 1)
    )
    assert torch.equal(one["basis.components"], two["basis.components"])
    assert not torch.equal(one["decoder.0.weight"], two["decoder.0.weight"])
