"""Models that become wider and narrower: what they compute, what their optimisers remember. No data set."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from merlin.errors import TrainingError
from merlin.train.config_file import parse_config
from merlin.train.learner import Learner, merged
from merlin.train.models.base import Shapes, Trainee
from merlin.train.models.registry import build
from merlin.train.parallel.mesh import Mesh
from merlin.train.widths import fitted, fitted_moment, obstacle

SHAPES = Shapes.of(("a", "b", "c"), ("x", "y"), {"side": (2, 8, 16), "top": (1, 8, 16)})


def source(**coder) -> dict:
    return {
        "autoencoder": {"run": "nowhere", "digest": "0", "coder": {"latent": 6, "capacity": 0.1, **coder}}
    }


MODELS = {
    "regressor": ("regressor", {"width": 24, "depth": 2}),
    "regressor of images by convolutions": ("regressor", {"width": 24, "depth": 2, "kind": "cnn"}),
    "autoencoder": ("icf_autoencoder", {"latent": 6}),
    "autoencoder by convolutions": ("icf_autoencoder", {"latent": 6, "kind": "cnn"}),
    "autoencoder of 2019": ("icf_autoencoder", {"latent": 6, "variant": "2019"}),
    "surrogate": ("icf_surrogate", source()),
    "surrogate by convolutions": ("icf_surrogate", source(kind="cnn")),
    "surrogate of 2019": ("icf_surrogate", {"variant": "2019", **source(variant="2019")}),
}
CONFIG = parse_config(
    "data: d\nmodel: {name: regressor}\noptimizer: {name: adamw, lr: 0.01}\ntraining: {ema: 0.5}\n",
    "train.yaml",
).config
BASE = 0.1  # capacity

every_model = pytest.mark.parametrize(("name", "options"), MODELS.values(), ids=MODELS.keys())
few = settings(max_examples=5, deadline=None)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def batch_of(num: int = 4) -> dict[str, torch.Tensor]:
    images = {name: torch.randn(num, *shape) for name, shape in SHAPES.images.items()}
    return {"inputs": torch.rand(num, 3), "scalars": torch.randn(num, 2), **images}


def learner(name: str, options: dict, capacity: float, seed: int = 0, shapes: Shapes = SHAPES) -> Learner:
    torch.manual_seed(seed)
    trainee = build(name, shapes, {**options, "capacity": capacity})
    return Learner(trainee, CONFIG, Mesh(), torch.device("cpu"), capacity=capacity)


def train(some: Learner, steps: int = 2) -> Learner:
    torch.manual_seed(1)
    for step in range(1, steps + 1):
        batch = batch_of()
        for phase in some.phases:
            phase.select()
            some.parallel.backward(phase.name, [batch])
            phase.optimizer.step()
            phase.optimizer.zero_grad(set_to_none=True)
        some.trainee.after_step(step)
        some.average.update()
    return some


def copied(parent: Learner, name: str, options: dict, capacity: float) -> Learner:
    child = learner(name, options, capacity, seed=7)
    child.take(parent.export(parent.keys_of(["all"])), child.keys_of(["all"]))
    return child


@torch.no_grad()
def computed(trainee: Trainee) -> dict[str, torch.Tensor]:
    """Everything that a model says of a batch: its metrics, and the losses of all phases."""
    torch.manual_seed(2)
    batch = batch_of()
    trainee.eval()
    found = {**trainee.metrics(batch)}
    for phase in trainee.phases:
        found |= {f"{phase}/{key}": value for key, value in trainee(batch, phase).items()}
    made = trainee.reconstruct(batch) if hasattr(trainee, "reconstruct") else trainee.predict(batch["inputs"])
    trainee.train()
    return found | {f"made {key}": value for key, value in made.items()}


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for key, value in one.items():
        torch.testing.assert_close(
            other[key], value, rtol=1e-5, atol=1e-5, msg=lambda m, key=key: f"{key}: {m}"
        )


def assert_fits(some: Learner) -> None:
    """Everything that belongs to a weight has its shape, and is a number."""
    for phase in some.phases:
        for parameter in phase.parameters:
            state = phase.optimizer.state[parameter]
            assert set(state) == {"step", "exp_avg", "exp_avg_sq"}
            assert state["exp_avg"].shape == state["exp_avg_sq"].shape == parameter.shape
            assert all(v.isfinite().all() for v in state.values()) and (state["exp_avg_sq"] >= 0).all()
    averages = some.average.state_dict()
    for parameter_name, parameter in some.trainee.named_parameters():
        assert averages[parameter_name].shape == parameter.shape and parameter.isfinite().all()


@every_model
@few
@given(factor=st.floats(1.0, 4.0))
def test_a_wider_model_computes_what_the_narrower_one_did(name, options, factor) -> None:
    parent = train(learner(name, options, BASE))
    child = copied(parent, name, options, BASE * factor)
    assert_fits(child)
    assert_same(computed(parent.trainee), computed(child.trainee))
    with parent.average.applied(), child.average.applied():
        assert_same(computed(parent.trainee), computed(child.trainee))


@every_model
@few
@given(factors=st.lists(st.floats(0.5, 2.0), min_size=1, max_size=3))
def test_any_sequence_of_widths_leaves_a_model_that_learns_on(name, options, factors) -> None:
    capacity, present = BASE, train(learner(name, options, BASE))
    for factor in factors:
        capacity *= factor
        present = copied(present, name, options, capacity)
        assert_fits(present)
        assert_fits(train(present, 1))


@every_model
def test_who_becomes_narrower_again_is_what_he_was(name, options) -> None:
    parent = train(learner(name, options, BASE))
    child = copied(parent, name, options, 2 * BASE)
    again = copied(child, name, options, BASE)
    mine, theirs = parent.trainee.state_dict(), again.trainee.state_dict()
    assert all(torch.equal(mine[key], theirs[key]) for key in mine)


@every_model
def test_new_units_learn_at_once_and_the_frozen_autoencoder_never_changes(name, options) -> None:
    parent = train(learner(name, options, BASE))
    child = copied(parent, name, options, 2 * BASE)
    before = {key: value.clone() for key, value in child.trainee.state_dict().items()}
    train(child, 3)
    frozen = {key for key in before if name == "icf_surrogate" and key.startswith("coder.")}
    for key, value in child.trainee.named_parameters():
        old = parent.trainee.get_parameter(key)
        if key in frozen:
            assert torch.equal(value, old)
        elif value.ndim > 1 and value.shape != old.shape and not key.startswith("frozen"):
            new = torch.ones_like(value, dtype=torch.bool)
            new[tuple(slice(n) for n in old.shape)] = False
            assert (value != before[key])[new].any(), key


def test_a_wider_model_learns_on_where_the_narrower_one_was() -> None:
    def learn(some: Learner, steps: int) -> list[float]:
        torch.manual_seed(5)
        losses = []
        for _ in range(steps):
            inputs = torch.rand(64, 3)
            scalars = torch.stack([inputs.sum(1).sin(), inputs[:, 0] * inputs[:, 1]], 1)
            loss, _ = some.parallel.backward("model", [{"inputs": inputs, "scalars": scalars}])
            some.phases[0].optimizer.step()
            some.phases[0].optimizer.zero_grad(set_to_none=True)
            losses.append(float(loss))
        return losses

    options, shapes = {"width": 32, "depth": 2}, Shapes.of(("a", "b", "c"), ("x", "y"))
    parent = learner("regressor", options, 1.0, shapes=shapes)
    first = learn(parent, 400)[0]
    state, keys = parent.export(parent.keys_of(["all"])), parent.keys_of(["all"])
    child = learner("regressor", options, 1.5, seed=7, shapes=shapes)
    child.take(state, keys)
    wide, same = max(learn(child, 50)), max(learn(parent, 50))
    assert wide < 5 * same < first / 10  # from moments of 0 it would rise a hundredfold


def test_parts_may_come_from_a_model_of_another_width() -> None:
    name, options = MODELS["surrogate"]
    own, other = train(learner(name, options, BASE)), train(learner(name, options, 1.5 * BASE, seed=3))
    parts = own.keys_of(["generators"])
    state = merged(own.export(own.keys_of(["all"])), other.export(parts), parts)
    child = learner(name, options, 2 * BASE, seed=7)
    child.take(state, child.keys_of(["all"]))
    assert_fits(child)
    seen = torch.randn(5, 9)
    for some in (own, other, child):
        some.trainee.eval()
    discriminators = (some.trainee.forward_discriminator(seen) for some in (own, child))
    torch.testing.assert_close(*discriminators, rtol=1e-5, atol=1e-5)
    inverses = (some.trainee.inverse_generator(seen[:, :6]) for some in (other, child))
    torch.testing.assert_close(*inverses, rtol=1e-5, atol=1e-5)


def test_a_new_weights_second_moment_is_the_mean_of_the_others() -> None:
    old, weight = torch.tensor([[1.0, 3.0]]), torch.zeros(2, 3)
    second = fitted_moment("exp_avg_sq", old, weight)
    assert second.tolist() == [[1.0, 3.0, 2.0], [2.0, 2.0, 2.0]]
    assert fitted_moment("exp_avg", old, weight).tolist() == [[1.0, 3.0, 0.0], [0.0] * 3]
    assert fitted_moment("step", torch.tensor(5.0), weight).item() == 5.0


@pytest.mark.parametrize("is_transposed", [False, True])
def test_units_that_were_there_do_not_hear_new_ones(is_transposed) -> None:
    old, drawn = torch.full((2, 3, 1, 1), 2.0), torch.ones(4, 5, 1, 1)
    new = fitted(old, drawn, is_transposed)[:, :, 0, 0]
    assert (new[:2, :3] == 2).all() and (new[2:, 3:] == 1).all()
    silent, drawn_ones = (new[2:, :3], new[:2, 3:]) if is_transposed else (new[:2, 3:], new[2:, :3])
    assert (silent == 0).all() and (drawn_ones == 1).all()


def test_another_model_is_refused() -> None:
    one, other = (learner("regressor", {"width": 8, "depth": n}, 1.0) for n in (1, 2))
    with pytest.raises(ValueError, match="no other width"):
        fitted(torch.zeros(2, 2), torch.zeros(2, 2, 3))
    keeps = Learner(one.trainee, CONFIG, Mesh(), torch.device("cpu"))
    with pytest.raises(TrainingError, match=r"has another 'layers\.2\.weight'"):
        keeps.take(other.export(other.keys_of(["all"])), keeps.keys_of(["all"]))


class Grouped(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Conv1d(width, width, 3, groups=2)


def test_what_keeps_a_width_from_changing_is_named() -> None:
    assert obstacle(nn.Linear(2, 8), nn.Linear(2, 2)) is None
    assert obstacle(nn.ConvTranspose2d(8, 4, 3), nn.ConvTranspose2d(2, 4, 3)) is None
    assert "changes none of its widths" in str(obstacle(nn.Linear(2, 8), nn.Linear(2, 8)))
    assert "depend on its capacity" in str(obstacle(nn.Linear(2, 8), nn.Linear(2, 8, bias=False)))
    assert "layer.weight is a weight of Conv1d" in str(obstacle(Grouped(8), Grouped(4)))
    norms = (nn.Sequential(nn.Linear(2, width), nn.LayerNorm(width)) for width in (8, 4))
    assert "1.weight is a weight of LayerNorm" in str(obstacle(*norms))
    assert "weight_ih_l0 is a weight of GRU" in str(obstacle(nn.GRU(2, 8), nn.GRU(2, 4)))
