"""The models' shapes, what their gradients reach, and what they refuse. No data set: batches are drawn."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from merlin.errors import TrainingError, UsageError
from merlin.train.models.base import Shapes
from merlin.train.models.icf_autoencoder import Coder, CoderOptions, IcfAutoencoder
from merlin.train.models.icf_surrogate import IcfSurrogate
from merlin.train.models.outputs import Outputs
from merlin.train.models.registry import MODELS, build, find

ROOT = Path(__file__).resolve().parents[3]
BOTH = Shapes.of(("a", "b", "c"), ("x", "y"), {"side": (2, 8, 16), "top": (1, 8, 16)})
SCALARS_ONLY = Shapes.of(("a", "b", "c"), ("x", "y"))
IMAGES_ONLY = Shapes.of(("a", "b", "c"), (), {"side": (2, 8, 16)})
SOURCE = {"run": "nowhere", "digest": "0", "coder": {"latent": 6, "capacity": 0.5}}


@pytest.fixture(autouse=True)
def _one_thread_and_a_seed() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(3)


def batch_of(shapes: Shapes, num: int = 5) -> dict[str, torch.Tensor]:
    batch = {"inputs": torch.rand(num, len(shapes.inputs))}
    if shapes.scalars:
        batch["scalars"] = torch.randn(num, len(shapes.scalars))
    return batch | {name: torch.randn(num, *shape) for name, shape in shapes.images.items()}


def surrogate(shapes: Shapes = BOTH, **options) -> IcfSurrogate:
    return build("icf_surrogate", shapes, {"autoencoder": SOURCE, "capacity": 0.25, **options})


def autoencoder(shapes: Shapes = BOTH, **options) -> IcfAutoencoder:
    return build("icf_autoencoder", shapes, {"latent": 6, "capacity": 0.25, **options})


def reached(model: nn.Module, loss: torch.Tensor) -> set[str]:
    """The modules to whose parameters a loss has gradients, whatever a phase would let through."""
    for parameter in model.parameters():
        parameter.requires_grad_(True)
        parameter.grad = None
    loss().backward()
    moved = {n for n, p in model.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0}
    return {name.partition(".")[0] for name in moved}


def assert_shapes(made: dict[str, torch.Tensor], batch: dict[str, torch.Tensor]) -> None:
    assert {name: v.shape for name, v in made.items()} == {
        name: v.shape for name, v in batch.items() if name != "inputs"
    }


@pytest.mark.parametrize("name", MODELS)
def test_every_model_has_options_with_descriptions_and_a_section_in_the_documentation(name) -> None:
    options = find(name).options
    assert options is not None
    assert [key for key, field in options.model_fields.items() if not field.description] == []
    assert f"\n## {name}\n" in (ROOT / "docs/models.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("shapes", [BOTH, SCALARS_ONLY, IMAGES_ONLY])
def test_outputs_become_a_vector_and_come_back(shapes) -> None:
    outputs, batch = Outputs(shapes), batch_of(shapes)
    vector = outputs.to_vector(batch)
    assert vector.shape == (5, outputs.size)
    for name, values in outputs.from_vector(vector).items():
        assert torch.equal(values, batch[name])
    if shapes is BOTH:
        for name, values in outputs.split_images(outputs.join_images(batch)).items():
            assert torch.equal(values, batch[name])


def test_errors_weigh_every_image_field_alike() -> None:
    outputs = Outputs(Shapes.of(("a",), ("x",), {"large": (1, 8, 8), "small": (1, 2, 2)}))
    true = {"scalars": torch.zeros(1, 1), "large": torch.zeros(1, 1, 8, 8), "small": torch.zeros(1, 1, 2, 2)}
    made = {
        "scalars": torch.full((1, 1), 3.0),
        "large": torch.ones(1, 1, 8, 8),
        "small": 2 * torch.ones(1, 1, 2, 2),
    }
    errors = outputs.squared_errors(made, true)
    assert errors["scalars"].tolist() == [9.0] and errors["images"].tolist() == [2.5]


@pytest.mark.parametrize("kind", ["mlp", "cnn"])
@pytest.mark.parametrize("shapes", [BOTH, SCALARS_ONLY, IMAGES_ONLY])
@pytest.mark.parametrize("name", ["regressor", "icf_autoencoder", "icf_surrogate"])
def test_what_is_predicted_has_the_shapes_of_the_data(name, shapes, kind) -> None:
    if name == "icf_surrogate":
        coder = {"latent": 6, "capacity": 0.5, "kind": kind}
        options = {"autoencoder": {**SOURCE, "coder": coder}, "capacity": 0.25}
    else:
        options = {"kind": kind} | ({} if name == "regressor" else {"capacity": 0.25})
    if kind == "cnn" and not shapes.images and name != "regressor":
        with pytest.raises(UsageError, match="cnn needs images"):
            build(name, shapes, options)
        return
    model, batch = build(name, shapes, options), batch_of(shapes)
    made = model.reconstruct(batch) if name == "icf_autoencoder" else model.predict(batch["inputs"])
    assert_shapes(made, batch)
    for phase in model.phases:
        losses = model(batch, phase)
        assert all(value.shape == () for value in losses.values())
        trained = [p for p in model.parameters_of(phase) if p.requires_grad]
        model.zero_grad()
        losses["loss"].backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in trained)
    model.eval()
    with torch.no_grad():
        metrics = model.metrics(batch)
    assert set(metrics) == set(model.directions()) and "loss" in metrics
    assert all(value.shape == (5,) for value in metrics.values())


def test_the_regressor_of_scalars_alone_is_what_it_was() -> None:
    model = build("regressor", SCALARS_ONLY, {"width": 8, "depth": 2})
    assert list(model.state_dict()) == [
        f"layers.{i}.{kind}" for i in (0, 2, 4) for kind in ("weight", "bias")
    ]
    assert set(model(batch_of(SCALARS_ONLY))) == {"loss"}
    assert set(model.directions()) == {"loss", "mae"}


@pytest.mark.parametrize("variant", ["app", "2019", 2019])
def test_widths_are_those_of_the_published_models(variant) -> None:
    def widths(module: nn.Module) -> list[int]:
        return [layer.out_features for layer in module.modules() if isinstance(layer, nn.Linear)]

    shapes = Shapes.of(tuple("abcde"), ("x", "y"), {"side": (1, 8, 8)})
    source = {**SOURCE, "coder": {"variant": variant}}
    outer = build("icf_autoencoder", shapes, {"variant": variant})
    inner = build("icf_surrogate", shapes, {"variant": variant, "autoencoder": source})
    found = [outer.coder.encoder, outer.coder.decoder, outer.discriminator, inner.forward_generator,
             inner.inverse_generator, inner.forward_discriminator]  # fmt: skip
    old = [[1024, 256, 32, 20], [32, 256, 1024, 66], [512, 256, 128, 64, 1], [64, 512, 2048, 20], [16, 128, 512, 5],
           [512, 64, 1]]  # fmt: skip
    new = [[32, 256, 128, 20], [64, 128, 256, 66], [128, 64, 1], [32, 256, 1024, 20], [16, 128, 64, 5],
           [128, 64, 1]]  # fmt: skip
    assert [widths(module) for module in found] == (new if variant == "app" else old)
    assert outer.joint == (variant != "app")
    assert (inner.refresh_every, inner.cycle, inner.fidelity) == (
        (2, 1e-3, "mse") if variant == "app" else (1, 0.1, "l1")
    )


def test_capacity_scales_widths_and_channels() -> None:
    small, large = (Coder(BOTH, CoderOptions(kind="cnn", capacity=c)) for c in (0.5, 1.0))
    channels = [
        [m.out_channels for m in coder.image_encoder if isinstance(m, nn.Conv2d)] for coder in (small, large)
    ]
    assert channels == [[32, 16, 8], [64, 32, 16]]


@pytest.mark.parametrize("joint", ["latent", "joint"])
def test_each_phase_of_the_autoencoder_teaches_its_own_part(joint) -> None:
    model, batch = autoencoder(discriminator=joint), batch_of(BOTH)
    assert reached(model, lambda: model(batch, "discriminator")["loss"]) == {"discriminator"}
    assert "coder" in reached(model, lambda: model(batch, "autoencoder")["loss"])
    assert {id(p) for p in model.parameters_of("autoencoder")} == {id(p) for p in model.coder.parameters()}
    both = [id(p) for phase in model.phases for p in model.parameters_of(phase)]
    assert len(both) == len(set(both)) == len(list(model.parameters()))


def test_discriminators_teach_generators_nothing_while_they_learn() -> None:
    model, batch = surrogate(), batch_of(BOTH)
    found = reached(model, lambda: model(batch, "discriminators")["loss"])
    assert found == {"forward_discriminator", "inverse_discriminator"}


def test_generators_learn_from_frozen_copies_and_through_the_decoder() -> None:
    model, batch = surrogate(), batch_of(BOTH)
    losses = {
        name: (lambda name=name: model(batch, "generators")[name]) for name in model(batch, "generators")
    }
    generators = {"forward_generator", "inverse_generator"}
    assert reached(model, losses["adversarial"]) == generators | {"frozen_forward", "frozen_inverse"}
    assert reached(model, losses["latent"]) == {"forward_generator"}  # the encoder's codes are targets
    assert reached(model, losses["inverse"]) == {"inverse_generator"}
    assert reached(model, losses["cycle"]) == generators
    assert reached(model, losses["images"]) == {"forward_generator", "coder"}


def test_what_is_frozen_belongs_to_no_phase() -> None:
    model = surrogate()
    trained = {id(p) for phase in model.phases for p in model.parameters_of(phase)}
    for name, parameter in model.named_parameters():
        frozen = name.partition(".")[0] in ("coder", "frozen_forward", "frozen_inverse")
        assert (id(parameter) in trained) != frozen
        assert parameter.requires_grad != frozen


@pytest.mark.parametrize("refresh_every", [1, 3])
def test_copies_of_discriminators_are_refreshed_every_few_steps(refresh_every) -> None:
    model = surrogate(refresh_every=refresh_every)
    with torch.no_grad():
        for parameter in model.forward_discriminator.parameters():
            parameter.add_(1.0)

    def equal() -> bool:
        live, frozen = model.forward_discriminator.state_dict(), model.frozen_forward.state_dict()
        return all(torch.equal(live[key], frozen[key]) for key in live)

    assert not equal()
    for step in range(1, refresh_every + 1):
        model.after_step(step)
        assert equal() == (step == refresh_every)


def test_statistics_and_dropout_of_the_frozen_autoencoder_stand_still() -> None:
    coder = {"latent": 6, "variant": "2019", "capacity": 0.05}
    model, batch = surrogate(autoencoder={**SOURCE, "coder": coder}).train(), batch_of(BOTH)
    before = {name: value.clone() for name, value in model.coder.state_dict().items()}
    model(batch, "generators")
    model(batch, "discriminators")
    assert all(torch.equal(value, before[name]) for name, value in model.coder.state_dict().items())
    assert not model.coder.training and model.forward_generator.training


@pytest.mark.parametrize("model", [surrogate, autoencoder])
def test_parts_cover_what_is_trained_and_no_key_twice(model) -> None:
    made = model()
    parts = made.parts()
    groups = ["generators", "discriminators"] if model is surrogate else list(parts)
    keys = {part: {k for k in made.state_dict() if k.startswith(tuple(parts[part]))} for part in parts}
    assert all(keys.values())
    trained = {name for name, p in made.named_parameters() if p.requires_grad}
    assert trained <= set().union(*(keys[g] for g in groups))
    assert sum(len(keys[g]) for g in groups) == len(set().union(*(keys[g] for g in groups)))
    if model is surrogate:
        assert keys["forward"] | keys["inverse"] == keys["generators"]


def test_the_cycle_and_the_output_may_be_left_out() -> None:
    model = surrogate(output=0, cycle=0, adversarial=0)
    losses = model(batch_of(BOTH), "generators")
    assert "images" not in losses
    torch.testing.assert_close(losses["loss"], losses["latent"] + losses["inverse"])


@pytest.mark.parametrize("name", ["icf_autoencoder", "icf_surrogate"])
def test_a_model_learns_a_batch_by_heart(name) -> None:
    model = autoencoder() if name == "icf_autoencoder" else surrogate(output=0)
    batch = batch_of(BOTH, 16)
    optimizers = [torch.optim.Adam(list(model.parameters_of(phase)), 3e-3) for phase in model.phases]
    losses = []
    for step in range(1, 61):
        for phase, optimizer in zip(model.phases, optimizers, strict=True):
            loss = model(batch, phase)["loss"]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.after_step(step)
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.7 * losses[0]


def test_inputs_are_inferred_from_outputs() -> None:
    model, batch = surrogate(), batch_of(BOTH)
    assert model.infer(batch).shape == batch["inputs"].shape


def test_an_autoencoder_says_that_it_predicts_nothing() -> None:
    with pytest.raises(UsageError, match="train a surrogate on top of it"):
        autoencoder().predict(torch.zeros(1, 3))


@pytest.mark.parametrize(
    ("shapes", "options", "message"),
    [
        (
            Shapes.of(("a",), ("x",), {"one": (1, 8, 8), "two": (1, 16, 16)}),
            {"kind": "cnn"},
            "of one size, .* 8x8, 16x16",
        ),
        (Shapes.of(("a",), ("x",), {"one": (1, 12, 8)}), {"kind": "cnn"}, "multiples of 8, not 12x8"),
        (BOTH, {"kind": "cnn", "variant": "2019"}, "2019 has no convolutions"),
    ],
)  # fmt: skip
def test_what_an_autoencoder_cannot_be_is_told(shapes, options, message) -> None:
    with pytest.raises((UsageError, TrainingError), match=message):
        build("icf_autoencoder", shapes, options)


def test_shapes_of_names_alone_say_what_they_take() -> None:
    with pytest.raises(TypeError, match=r"two tuples of Field, .* not 'a'; Shapes\.of takes names"):
        Shapes(("a", "b"), ("y",))  # type: ignore[arg-type]
