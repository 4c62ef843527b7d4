"""The study of language models at the edge: one device by hand, to the byte and the joule."""

import math

import pytest

import fedsim
from fedsim.running.scenarios.language.table import HERE, MODELS, needed, row, scenario, tune

PARAMS, LAYERS, WIDTH, KEYS, INNER = 1_235_814_400, 16, 2048, 512, 8192
VOCABULARY, TOKENS, RANK, SEQUENCES = 128_256, 128, 8, 64
ADAPTERS = LAYERS * RANK * ((WIDTH + WIDTH) + (WIDTH + KEYS))
MODEL_BYTES = math.ceil(PARAMS * 4.127 / 8)
FLOPS, BANDWIDTH = 0.2 * 378e9, 0.4 * 67.2e9  # of phone-high, reached


def test_the_numbers_of_each_model_follow_from_its_shapes() -> None:
    tied = {"1B", "3B"}  # their outputs are those of the embedding
    for name, sizes in MODELS.items():
        attention = 2 * sizes.width * sizes.width + 2 * sizes.width * sizes.keys
        layer = attention + 3 * sizes.width * sizes.inner + 2 * sizes.width
        embeddings = sizes.vocabulary * sizes.width * (1 if name in tied else 2)
        assert sizes.params == embeddings + sizes.layers * layer + sizes.width


def test_the_memory_to_the_byte() -> None:
    """Weights, gradients and two moments of adapters; AdamW counts the steps of each tensor."""
    tensors = LAYERS * 2 * 2
    fixed = MODEL_BYTES + 4 * 4 * ADAPTERS + 4 * tensors
    token = WIDTH * (2 * LAYERS + 34) + 8 * VOCABULARY
    expected = {batch: fixed + batch * TOKENS * token for batch in (1, 2, 4, 8, 16)}
    assert needed("1B", 4.127, "phone-high") == expected
    assert expected[8] <= 0.25 * 8e9 < expected[16]
    assert tune("1B", 4.127, "phone-high").batch == 8


def test_the_bytes_the_time_and_the_joules_of_a_phone() -> None:
    run = fedsim.run(scenario("1B", 4.127, "phone-high", 8)).summary
    sent = 4 * ADAPTERS
    assert run["bytes"]["by_purpose"] == {"base": MODEL_BYTES, "model": sent, "update": sent}

    batch = 8 * TOKENS
    forward = batch * 2 * (PARAMS + ADAPTERS)
    trained = 4 * ADAPTERS
    state = 4 * (2 * ADAPTERS + LAYERS * 2 * 2)
    step_s = forward / FLOPS  # all passes but the optimiser's are bound by arithmetic
    step_s += (2 * forward + batch * 2 * ADAPTERS) / FLOPS
    step_s += (3 * trained + 2 * state) / BANDWIDTH
    compute_s = SEQUENCES / 8 * (step_s + 0.2e-3)
    down_s = (MODEL_BYTES + sent) / (150e6 / 8)
    up_s = sent / (40e6 / 8)
    whole_s = compute_s + down_s + up_s + 2 * 20e-3
    assert run["simulated_s"] == pytest.approx(whole_s, rel=1e-6)

    joules = run["energy"]["by_phase"]
    assert joules["compute"] == pytest.approx(6.0 * compute_s, rel=1e-6)
    down_joules = 1.288 * down_s + 0.416e-6 * (MODEL_BYTES + sent)
    assert joules["receive"] == pytest.approx(down_joules, rel=1e-3)
    assert joules["send"] == pytest.approx(1.288 * up_s + 3.507e-6 * sent, rel=3e-2)
    assert round(joules["compute"]) == 4825


def test_the_published_row_is_that_of_the_code() -> None:
    published = (HERE / "RESULTS.md").read_text(encoding="utf-8").splitlines()
    for device, model, bits in (("phone-high", "1B", 4.127), ("phone-high", "7B", 4.127)):
        assert row(device, model, bits, tune(model, bits, device)) in published


def test_the_shipped_scenario_is_the_first_row() -> None:
    assert fedsim.load(HERE / "base.toml") == scenario("1B", 4.127, "phone-high", 8)
