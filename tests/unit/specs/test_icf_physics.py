"""The physics of specs/icf: known values, limits, trends, conservation and symmetry."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import icf
import icf_diagnostics as diagnostics
import icf_images as images
import icf_implosion as implosion
import icf_plasma as plasma
import numpy as np
import pytest

SPECS = Path(__file__).parents[3] / "specs" / "icf"

LABELS = ("mode_4_3", "trans_u", "trans_v", "mode_2_1", "mode_1_0")
BOUNDS = {"mode_4_3": 0.04, "mode_2_1": 0.08, "mode_1_0": 0.10}
TIMES = ("BT", "BTx", "BWn", "BWx", "tMAXt", "tMAXpressure", "tMINradius")
SCALARS = (*TIMES, "BAt", "BApressure", "MAXt", "MAXpressure", "MINradius", "Yn", "Ye", "Yx")
IMAGES = ("image_0_0", "image_90_0", "image_90_78")
CONTEXT = SimpleNamespace(sample_ids=None, seed=0)


def inputs(num: int = 1, **columns: object) -> dict[str, np.ndarray]:
    """The middle of the design space without shape errors, except for these columns."""
    middle = {label: 0.5 if label.startswith("trans") else 0.0 for label in LABELS} | columns
    return {
        label: np.broadcast_to(np.asarray(value, dtype=float), num).copy() for label, value in middle.items()
    }


def random_inputs(num: int, seed: int = 3) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    reach = {label: rng.uniform(-BOUNDS[label], BOUNDS[label], num) for label in BOUNDS}
    return reach | {"trans_u": rng.uniform(0, 1, num), "trans_v": rng.uniform(0, 1, num)}


def simulate(**columns: object) -> dict[str, np.ndarray]:
    num = max(np.size(value) for value in columns.values()) if columns else 1
    return icf.simulate(inputs(num, **columns), CONTEXT)


def designs(num: int, *, velocity: object = 365e3, modes: object = 0.0) -> implosion.Design:
    pressure = 2.18e11 * icf.ADIABAT * icf.SHELL_DENSITY ** (5 / 3)
    return implosion.Design(
        velocity=np.broadcast_to(np.asarray(velocity, dtype=float), num),
        pressure=np.full(num, pressure),
        modes=np.broadcast_to(np.asarray(modes, dtype=float), (3, num)),
    )


@pytest.mark.parametrize(
    ("temperature", "cm3_per_s"),
    [
        (0.2, 1.254e-26),
        (1.0, 6.857e-21),
        (2.0, 2.977e-19),
        (5.0, 1.366e-17),
        (10.0, 1.136e-16),
        (20.0, 4.330e-16),
        (50.0, 8.649e-16),
    ],
)
def test_reactivity_is_that_of_the_published_table(temperature: float, cm3_per_s: float) -> None:
    assert 1e6 * plasma.reactivity(np.array(temperature)) == pytest.approx(cm3_per_s, rel=5e-4)


def test_profile_averages_agree_with_direct_quadrature() -> None:
    x = (np.arange(400_000) + 0.5) / 400_000
    shape = (1 - x * x) ** plasma.PROFILE_POWER
    assert plasma.profile_mean(1.0) == pytest.approx(np.mean(3 * x * x * shape), rel=1e-6)
    assert plasma.profile_mean(-1.0) == pytest.approx(np.mean(3 * x * x / shape), rel=2e-3)
    assert plasma.profile_chord(1.0) == pytest.approx(np.mean(shape), rel=1e-6)
    burn, share, xray = plasma.profile_tables()(np.array([5.0]))
    local = plasma.reactivity(5.0 * shape) / shape**2
    assert burn[0] == pytest.approx(np.mean(3 * x * x * local), rel=1e-4)
    assert share[0] == pytest.approx(np.mean(3 * x * x * local * shape) / burn[0], rel=1e-4)
    band = (np.exp(-4 / (5 * shape)) - np.exp(-40 / (5 * shape))) / shape**1.5
    assert xray[0] == pytest.approx(np.mean(3 * x * x * band), rel=1e-4)


def test_the_deposited_share_of_alpha_energy_is_continuous_rising_and_below_one() -> None:
    share = plasma.deposited_fraction(np.geomspace(1e-3, 1e3, 5000), np.full(5000, 5.0))
    assert np.all(np.diff(share) > 0)
    assert share[0] < 0.01
    assert 0.99 < share[-1] < 1.0
    assert np.diff(share).max() < 5e-3


def test_energy_is_conserved_by_perfect_and_by_crooked_implosions() -> None:
    trace = implosion.implode(icf.design(random_inputs(40)))
    assert np.abs(trace.energy / trace.energy[0] - 1).max() < 1e-5


def test_the_error_of_the_energy_falls_with_the_fourth_power_of_the_step() -> None:
    design = icf.design(random_inputs(8))
    coarse, fine = (
        np.abs(t.energy[-1] / t.energy[0] - 1)
        for t in (implosion.implode(design, resolution=r) for r in (0.08, 0.04))
    )
    assert np.all(coarse / fine > 8)


def test_the_yield_does_not_depend_on_the_time_step() -> None:
    design = icf.design(random_inputs(20))
    coarse, fine = (implosion.implode(design, resolution=r).final[implosion.N] for r in (0.04, 0.01))
    np.testing.assert_allclose(coarse, fine, rtol=1e-4)


def test_without_fusion_and_losses_compression_is_adiabatic() -> None:
    design = designs(1, velocity=100e3)
    trace = implosion.implode(design)
    constant = (trace.pressure * trace.radius**5)[:, 0]
    heated = trace.final[implosion.A] + trace.final[implosion.X]
    assert heated[0] < 0.02 * trace.energy[0, 0]
    np.testing.assert_allclose(constant[: len(constant) // 2], constant[0], rtol=0.02)


def test_a_translation_of_the_shell_is_free() -> None:
    state = implosion.start(designs(2))
    state[implosion.Q.start + 1, 1] = 0.1 * state[implosion.R, 1]  # the oscillating mode of l = 1
    rates = implosion.rates(state, 9e-8, implosion.hot_spot(state))
    assert implosion.volume(state)[0] == implosion.volume(state)[1]
    assert rates[implosion.W.start + 1, 1] == 0.0
    assert rates[implosion.V, 0] == rates[implosion.V, 1]


@pytest.mark.parametrize("k", range(3))
def test_the_second_order_volume_is_that_of_the_displaced_surface(k: int) -> None:
    design = designs(1, modes=np.eye(3)[:, [k]] * 0.02)
    state = implosion.start(design)
    basis, weights = images._sphere()
    radius = 1 + 0.02 * basis[k]
    # A radial displacement of the elements: no tangential part, so the surface is exactly this one.
    exact = 4 / 3 * np.pi * design.radius**3 * (radius**3 @ weights)
    assert implosion.volume(state)[0] == pytest.approx(exact, rel=1e-5)
    assert implosion.volume(state)[0] > 4 / 3 * np.pi * design.radius**3


def test_a_faster_shell_makes_more_neutrons_pressure_and_heat() -> None:
    trace = implosion.implode(designs(8, velocity=np.linspace(300e3, 420e3, 8)))
    for values in (trace.final[implosion.N], trace.pressure.max(axis=0), trace.temperature.max(axis=0)):
        assert np.all(np.diff(values) > 0)
    assert np.all(np.diff(trace.radius.min(axis=0)) < 0)


def test_yield_rises_along_trans_v_and_less_steeply_along_trans_u() -> None:
    along_v = simulate(trans_v=np.linspace(0, 1, 7))["Yn"]
    along_u = simulate(trans_u=np.linspace(0, 1, 7))["Yn"]
    assert np.all(np.diff(along_v) > 0)
    assert along_v[-1] / along_v[0] > along_u[-1] / along_u[0] > 1


@pytest.mark.parametrize("label", sorted(BOUNDS))
def test_a_larger_shape_error_lowers_yield_and_pressure_whatever_its_sign(label: str) -> None:
    amplitude = np.linspace(0, BOUNDS[label], 6)
    plus, minus = simulate(**{label: amplitude}), simulate(**{label: -amplitude})
    for name in ("Yn", "MAXpressure", "BApressure"):
        assert np.all(np.diff(plus[name]) < 0)
        np.testing.assert_allclose(plus[name], minus[name], rtol=1e-12)


def test_shape_errors_grow_faster_in_higher_modes() -> None:
    trace = implosion.implode(designs(3, modes=1e-4 * np.eye(3)))
    bang = trace.neutron_rate.argmax(axis=0)
    growth = [trace.shape[bang[k], k, k] / 1e-4 for k in range(3)]
    assert 1 < growth[0] < growth[1] < growth[2]


def test_every_result_is_there_finite_and_of_its_shape() -> None:
    results = icf.simulate(random_inputs(5), CONTEXT)
    assert set(results) == {*SCALARS, "burn_history", *IMAGES}
    assert all(results[name].shape == (5,) for name in SCALARS)
    assert results["burn_history"].shape == (5, 128)
    assert all(results[name].shape == (5, 64, 64, 4) and results[name].dtype == np.float32 for name in IMAGES)
    assert all(np.isfinite(values).all() for values in results.values())
    assert all((results[name] >= 0).all() for name in IMAGES)


def test_events_come_in_the_order_of_the_physics() -> None:
    results = icf.simulate(random_inputs(30), CONTEXT)
    # Evaporated mass cools the centre before the burn peaks; x-rays, of cooler matter too, peak later.
    assert np.all(results["tMAXt"] < results["BT"])
    assert np.all(results["BT"] < results["BTx"])
    assert np.all(results["BAt"] < results["MAXt"])
    assert np.all(results["BApressure"] < results["MAXpressure"])
    np.testing.assert_allclose(results["Ye"], results["Yn"] * plasma.FUSION_ENERGY / 1e3, rtol=1e-12)


def test_the_burn_history_peaks_in_its_middle_and_integrates_to_the_yield() -> None:
    results = icf.simulate(random_inputs(10), CONTEXT)
    history = results["burn_history"].astype(float)
    assert set(history.argmax(axis=1)) <= {63, 64}
    np.testing.assert_allclose(np.trapezoid(history, dx=0.4 / 127), results["Yn"], rtol=0.01)


def test_a_perfect_sphere_looks_the_same_from_everywhere_and_is_symmetric() -> None:
    results = simulate()
    first = results["image_0_0"][0]
    for name in IMAGES:
        np.testing.assert_array_equal(results[name][0], first)
    for turned in (first[::-1], first[:, ::-1], np.swapaxes(first, 0, 1)):
        np.testing.assert_allclose(turned, first, rtol=1e-5)
    odd = 2 * np.arange(64) - 63
    square = odd[:, None] ** 2 + odd**2
    for equally_far in (50, 170, 290):  # 1 + 49 = 25 + 25, 1 + 169 = 49 + 121, 1 + 289 = 121 + 169
        ring = first[square == equally_far]
        assert np.all(np.ptp(ring, axis=0) < 0.02 * ring.mean(axis=0))


def test_images_stay_black_outside_the_hot_spot_and_harder_bands_are_smaller() -> None:
    image = simulate()["image_0_0"][0].astype(float)
    axis = np.arange(64) - 31.5
    square = axis[:, None] ** 2 + axis**2
    size = np.sqrt((image * square[..., None]).sum(axis=(0, 1)) / image.sum(axis=(0, 1)))
    assert np.all(np.diff(size) < 0)
    assert np.all(image[square > 30**2] == 0)


@pytest.mark.parametrize(
    ("label", "name", "mirrored"),
    [("mode_1_0", "image_90_0", 0), ("mode_1_0", "image_90_78", 0), ("mode_2_1", "image_90_78", 0)],
)
def test_an_odd_mode_of_the_other_sign_mirrors_the_image(label: str, name: str, mirrored: int) -> None:
    pair = simulate(**{label: [BOUNDS[label], -BOUNDS[label]]})[name]
    assert not np.allclose(pair[0], pair[1], rtol=1e-2)
    np.testing.assert_allclose(np.flip(pair[0], axis=mirrored), pair[1], rtol=2e-3, atol=1e-3 * pair.max())


def test_the_light_in_every_image_is_the_emitted_power() -> None:
    design = icf.design(random_inputs(6))
    trace = implosion.implode(design)
    _, peak = diagnostics.scalars(trace)
    power = np.exp(peak.at(np.log(trace.xray_power)))
    for pixels in images.render(diagnostics.snapshot(trace, peak)).values():
        seen = pixels.astype(float).sum(axis=(1, 2, 3)) * 1e18 * images.PIXEL_SIZE**2 * 4 * np.pi
        np.testing.assert_allclose(seen, power, rtol=0.01)


def test_a_sample_gets_the_same_result_alone_as_in_a_chunk() -> None:
    columns = random_inputs(9)
    together = icf.simulate(columns, CONTEXT)
    for i in (0, 4, 8):
        alone = icf.simulate({label: values[i : i + 1] for label, values in columns.items()}, CONTEXT)
        for name, values in together.items():
            np.testing.assert_allclose(
                alone[name][0],
                values[i],
                rtol=1e-9 if values.dtype == np.float64 else 1e-3,
                atol=1e-6 * np.abs(values).max(),
            )


def test_a_chunk_larger_than_a_block_keeps_the_order_of_its_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = random_inputs(7)
    whole = icf.simulate(columns, CONTEXT)
    monkeypatch.setattr(icf, "BLOCK", 3)
    np.testing.assert_allclose(icf.simulate(columns, CONTEXT)["Yn"], whole["Yn"], rtol=1e-9)
