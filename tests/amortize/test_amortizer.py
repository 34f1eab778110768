"""The amortizer's special cases, its EMA copy and its files."""

from __future__ import annotations

import json
import math
import pickle
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from damc import EMA, Amortizer, BadInput, Langevin, distill
from tests.reference import sampling as plain

SMALL = {"widths": (32, 64, 64), "embedding": 16}


def make(context: int | nn.Module | None = None, **options: object) -> Amortizer:
    torch.manual_seed(0)
    return Amortizer(2, context, **{**SMALL, **options})  # type: ignore[arg-type]


def seeded(seed: int = 3) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("null", ["token", "noise"])
@pytest.mark.parametrize("solver", ["ancestral", "ddim", "multistep"])
def test_every_sampler_gives_every_shape(null: str, solver: str) -> None:
    q = make(3, null=null, solver=solver, steps=4)
    x = torch.randn(5, 3)
    assert q.sample(7).shape == (7, 2)
    assert q.sample(x=x).shape == (5, 2)
    assert q.sample(4, x=x).shape == (4, 5, 2)
    assert q.sample(1).shape == (1, 2)
    assert not q.sample(x=x, guidance=0.5).requires_grad


@pytest.mark.parametrize("n", [5, 400])  # few points, and enough for weights of their own
def test_many_samples_of_each_x_are_those_of_repeated_x(n: int) -> None:
    q, x = make(3, steps=3, solver="ddim"), torch.tensor([[0.0, 0, 0], [5, 5, 5]])
    many = q.sample(n, x=x, generator=seeded())
    torch.testing.assert_close(
        many.flatten(0, 1), q.sample(x=x.repeat(n, 1), generator=seeded()), atol=1e-5, rtol=1e-4
    )


@pytest.mark.parametrize("n", [5, 400])
def test_samples_without_x_are_the_plain_transcription_of_the_null_condition(n: int) -> None:
    q = make(3, steps=3).double()
    slow = plain.sample(q, q.null.expand(n, -1), 3, seeded())
    torch.testing.assert_close(q.sample(n, generator=seeded()), slow)


def test_guidance_zero_is_the_conditional_model_and_minus_one_the_null_one() -> None:
    q, x = make(3, steps=5), torch.randn(4, 3)
    conditional = q.sample(x=x, generator=seeded())
    assert q.sample(x=x, guidance=0.0, generator=seeded()).equal(conditional)
    null = q.sample(4, generator=seeded())
    torch.testing.assert_close(q.sample(x=x, guidance=-1.0, generator=seeded()), null)
    assert not q.sample(x=x, guidance=1.0, generator=seeded()).allclose(conditional)


def test_guidance_extrapolates_the_two_predictions() -> None:
    q, x = make(3, steps=1), torch.randn(4, 3)
    parts = [q.sample(x=x, guidance=w, generator=seeded()) for w in (0.0, -1.0, 2.0)]
    torch.testing.assert_close(parts[2], 3 * parts[0] - 2 * parts[1])


def test_all_unconditional_ignores_x_and_none_unconditional_the_token() -> None:
    q, z, x = make(3), torch.randn(6, 2), torch.randn(6, 3)
    draws = {"u": torch.rand(6), "eps": torch.randn(6, 2)}
    assert q.loss(z, x, p_uncond=1.0, **draws).equal(q.loss(z, **draws))
    before = q.loss(z, x, p_uncond=0.0, **draws)
    with torch.no_grad():
        q.null.add_(1)  # type: ignore[operator]
    assert q.loss(z, x, p_uncond=0.0, **draws).equal(before)
    assert not q.loss(z, x, p_uncond=1.0, **draws).equal(before)


def test_a_share_of_the_batch_is_nullified_and_never_encoded() -> None:
    seen = []

    class Encoder(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(len(x))
            return super().forward(x)

    q = make(Encoder(3, 16))
    z, x = torch.randn(50, 2), torch.randn(50, 3)
    draws = {"u": torch.rand(50), "eps": torch.randn(50, 2)}
    q.loss(z, x, p_uncond=0.2, **draws)
    assert seen == [40]
    keep = torch.tensor([3, 1, 7])
    mixed = q.loss(z, x, keep=keep, p_uncond=0.5, **draws)
    rest = torch.tensor([i for i in range(50) if i not in keep])
    parts = [
        q.loss(z[where], x[where], p_uncond=p, u=draws["u"][where], eps=draws["eps"][where])
        for where, p in ((keep, 0.0), (rest, 1.0))
    ]
    torch.testing.assert_close(mixed, (3 * parts[0] + 47 * parts[1]) / 50)


@pytest.mark.parametrize(
    ("n", "null"), [(1, "token"), (3, "token"), (8, "token"), (8, "noise"), (10, "token")]
)
def test_the_share_without_x_is_right_in_expectation_at_every_batch(n: int, null: str) -> None:
    class One(nn.Module):  # an embedding that the null condition cannot have
        def forward(self, x: Tensor) -> Tensor:
            return torch.full((len(x), 16), 1e3)

    q, dropped = make(One(), null=null), []
    q.denoiser.register_forward_pre_hook(lambda _, given: dropped.append(given[2][:, 0] < 500))
    z, x, rounds, p = torch.zeros(n, 2), torch.zeros(n, 3), 800, 0.2
    generator = seeded()
    with torch.no_grad():
        for _ in range(rounds):
            q.loss(z, x, p_uncond=p, generator=generator)
    share = torch.stack(dropped).double()
    counts = share.sum(1)
    assert set(counts.tolist()) <= {math.floor(p * n), math.ceil(p * n)}
    # The error of the share over all points, and of that of every single point.
    error = max(float(counts.std()) / n, 1e-9) / rounds**0.5
    assert abs(float(share.mean()) - p) < 4 * error
    assert (share.mean(0) - p).abs().max() < 4.5 * (p * (1 - p) / rounds) ** 0.5
    # Power: the nearest whole count, which was 2 of 8 and 1 of 3, is far outside.
    assert n == 10 or abs(round(p * n) / n - p) > 10 * error


@pytest.mark.parametrize("rows", [4, 300])  # few points, and enough for weights of their own
def test_sampling_with_a_packed_denoiser_is_the_plain_transcription(rows: int) -> None:
    q, x = make(3, steps=7).double(), torch.randn(rows, 3, dtype=torch.float64)
    slow = plain.sample(q, q.embed(x), 7, seeded())
    torch.testing.assert_close(q.sample(x=x, generator=seeded()), slow)


@pytest.mark.parametrize("n", [None, 3])
def test_a_denoiser_that_is_not_plain_is_not_packed(n: int | None) -> None:
    """One with hooks, or of the user's own, is called as it is; without a change it is the same."""
    q, x = make(3, steps=4).double(), torch.randn(5, 3, dtype=torch.float64)
    packed = q.sample(n, x=x, generator=seeded())
    hook = q.denoiser.register_forward_hook(lambda module, given, eps: None)
    torch.testing.assert_close(q.sample(n, x=x, generator=seeded()), packed)
    hook.remove()
    q.denoiser.register_forward_hook(lambda module, given, eps: 0 * eps)
    assert not q.sample(n, x=x, generator=seeded()).allclose(packed)


@pytest.mark.parametrize("solver", ["ancestral", "multistep"])
def test_sampling_in_mixed_precision_is_sampling(solver: str) -> None:
    q, x = make(3, steps=4, solver=solver), torch.randn(300, 3)
    single = q.sample(x=x, guidance=0.5, generator=seeded())
    with torch.autocast("cpu", torch.bfloat16):
        mixed = q.sample(x=x, guidance=0.5, generator=seeded())
    assert mixed.dtype == torch.float32
    torch.testing.assert_close(mixed, single, atol=0.1, rtol=0.1)


def test_ema_follows_slowly_and_rate_one_is_the_module() -> None:
    layer = nn.Linear(2, 2)
    slow, same = EMA(layer, 0.25), EMA(layer, 1.0)
    start = layer.weight.detach().clone()
    with torch.no_grad():
        layer.weight.add_(1)
    slow.update()
    same.update()
    torch.testing.assert_close(slow.module.weight, start + 0.25)
    torch.testing.assert_close(same.module.weight, layer.weight.detach())
    assert not slow.module.weight.requires_grad


def test_the_ema_copy_has_the_statistics_of_batch_norm() -> None:
    """An encoder with BatchNorm: its statistics are buffers, which follow the module too."""
    q = make(nn.Sequential(nn.Linear(3, 16), nn.BatchNorm1d(16)))
    ema = EMA(q, 0.1)
    for _ in range(3):
        q.loss(torch.randn(64, 2), 5 + 3 * torch.randn(64, 3), p_uncond=0.0)
    ema.update()
    ours, theirs = ema.module.encoder[1], q.encoder[1]  # type: ignore[index]
    assert int(ours.num_batches_tracked) == 3
    assert ours.running_mean.equal(theirs.running_mean) and ours.running_mean.abs().max() > 0.1
    assert ours.running_var.equal(theirs.running_var)


def test_the_ema_survives_a_pickle() -> None:
    ema = EMA(nn.Linear(2, 2), 0.25)
    again = pickle.loads(pickle.dumps(ema))  # noqa: S301
    with torch.no_grad():
        again.source.weight.add_(1)
    again.update()
    torch.testing.assert_close(again.module.weight, ema.module.weight + 0.25)


def test_the_counter_of_the_ema_stays_where_reading_it_stalls_nobody() -> None:
    ema = EMA(nn.Linear(2, 2, device="meta"), 0.5)
    ema.update()
    assert ema.average.n_averaged.device.type == "cpu"


@pytest.mark.parametrize("context", [None, 3])
def test_saved_and_loaded_it_is_the_same(tmp_path: Path, context: int | None) -> None:
    q = make(context, gamma=0.5, guidance=0.3, null="noise")
    q.save(tmp_path / "deep" / "q")
    again = Amortizer.load(tmp_path / "deep" / "q")
    assert again.config == q.config
    x = None if context is None else torch.ones(4, context)
    n = 4 if context is None else None
    assert again.sample(n, x, steps=3, generator=seeded()).equal(
        q.sample(n, x, steps=3, generator=seeded())
    )
    assert json.loads((tmp_path / "deep" / "q.json").read_text())["dim"] == 2


def test_an_encoder_of_your_own_is_given_again_at_loading(tmp_path: Path) -> None:
    q = make(nn.Linear(3, 16))
    q.save(tmp_path / "q")
    again = Amortizer.load(tmp_path / "q", context=nn.Linear(3, 16))
    x = torch.ones(2, 3)
    assert again.embed(x).equal(q.embed(x))


def test_damaged_files_are_one_clear_sentence(tmp_path: Path) -> None:
    q = make()
    q.save(tmp_path / "q")
    weights = tmp_path / "q.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    for path in (tmp_path / "q", tmp_path / "absent"):
        with pytest.raises(BadInput, match="no amortizer could be read from"):
            Amortizer.load(path)


Q = make(3)


@pytest.mark.parametrize(
    ("make_error", "words"),
    [
        (lambda: Q.sample(), "positive number of samples"),
        (lambda: Q.sample(0), "positive number of samples"),
        (lambda: Q.sample(3, steps=0), "at least 1 step"),
        (lambda: make().sample(x=torch.ones(2, 3)), "has no context"),
        (lambda: Q.loss(torch.ones(4, 3), torch.ones(4, 3)), r"shape \(B, 2\)"),
        (lambda: Q.loss(torch.ones(4, 2), torch.ones(5, 3)), "5 contexts for 4 points"),
        (lambda: Q.loss(torch.ones(4, 2), torch.ones(4, 3), p_uncond=2), "p_uncond must lie"),
        (
            lambda: make(nn.Linear(3, 5)).sample(x=torch.ones(2, 3)),
            "encoder .* must give embeddings of shape",
        ),
        (lambda: make(null="zero"), "null must be"),
        (lambda: EMA(Q, 0.0), "rate of an EMA"),
        (lambda: distill(make(), lambda z: z, Langevin(), iterations=1, fresh=2.0), "fresh must"),
        (
            lambda: distill(
                Q, lambda z, x: -z.sum(1), Langevin(), iterations=2, contexts=[], progress=False
            ),
            "the contexts ended",
        ),
    ],
)
def test_bad_input_is_one_clear_sentence(make_error: object, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        make_error()  # type: ignore[operator]


def test_names_with_dots_are_kept_apart(tmp_path: Path) -> None:
    torch.manual_seed(0)
    one, other = Amortizer(2), Amortizer(2)
    one.save(tmp_path / "q-0.1")
    other.save(tmp_path / "q-0.5")
    for name, saved in (("q-0.1", one), ("q-0.5.safetensors", other)):
        found = Amortizer.load(tmp_path / name)
        assert torch.equal(found.denoiser.fourier, saved.denoiser.fourier)
    assert {p.name for p in tmp_path.glob("*.json")} == {"q-0.1.json", "q-0.5.json"}


def test_a_velocity_amortizer_begins_as_the_gaussian_of_its_points() -> None:
    factor = torch.tensor([[2.0, 0.0], [1.5, 0.5]], dtype=torch.float64)
    points = torch.randn(4000, 2, dtype=torch.float64, generator=seeded()) @ factor.mT + 3
    q = make(velocity=True, standardize=True, solver="multistep", steps=20).double()
    assert q.standardize is not None
    q.standardize.fit(points)
    gaussian = torch.distributions.MultivariateNormal(points.mean(0), points.T.cov())
    z = points[:50]
    # The flow ends at an angle just short of pure noise: its density is off by about e^-5.1.
    torch.testing.assert_close(q.log_prob(z), gaussian.log_prob(z), atol=0.06, rtol=0)
    drawn = q.sample(20_000, generator=seeded())
    error = 4 * points.std(0) / 20_000**0.5
    assert ((drawn.mean(0) - points.mean(0)).abs() < error).all()
    torch.testing.assert_close(drawn.T.cov(), points.T.cov(), rtol=0.06, atol=0.06)


def test_the_velocity_loss_weighs_the_noise_loss_by_alpha() -> None:
    options = {"capacity": 0.25, "velocity": True}
    q = make(**options)
    torch.nn.init.normal_(q.denoiser.blocks[-1].w1_w4.weight, generator=seeded())
    z, u = torch.randn(64, 2, generator=seeded()), torch.full((64,), 0.7)
    eps = torch.randn(64, 2, generator=seeded().manual_seed(5))
    alpha, sigma = q.schedule(u[:, None])
    predicted = q.denoiser(alpha * z + sigma * eps, q.schedule.angle(u), q.null)
    v = alpha * eps - sigma * z
    v_hat = (predicted - sigma * (alpha * z + sigma * eps)) / alpha
    wanted = (v_hat - v).square().sum(1).mean() / 2
    torch.testing.assert_close(q.loss(z, u=u, eps=eps), wanted)


def centered() -> Amortizer:
    torch.manual_seed(0)
    q = Amortizer(2, 3, embedding=8, widths=(16, 16, 16), center=True, velocity=True)
    assert q.center is not None
    with torch.no_grad():
        q.center.factor.copy_(torch.tensor([[0.5, 0.0], [-0.2, 0.1]]))
    return q


def test_a_centered_amortizer_begins_as_a_gaussian_around_its_mean() -> None:
    q = centered()
    assert q.center is not None
    x, z = torch.randn(4, 3), torch.randn(4, 2)
    mean, factor = q.center(q.embed(x)).detach(), q.center.factor
    gaussian = torch.distributions.MultivariateNormal(mean, scale_tril=factor)
    torch.testing.assert_close(q.log_prob(z, x), gaussian.log_prob(z), atol=0.05, rtol=0)
    drawn = q.sample(2000, x, generator=torch.Generator().manual_seed(0))
    assert drawn.shape == (2000, 4, 2)
    error = (drawn.mean(0) - mean) / (factor @ factor.mT).diagonal().sqrt() * 2000**0.5
    assert float(error.abs().max()) < 4
    covariance = torch.stack([drawn[:, i].mT.cov() for i in range(4)]).mean(0)
    torch.testing.assert_close(covariance, factor @ factor.mT, atol=0.01, rtol=0.05)


def test_the_center_learns_by_regression_and_the_denoiser_what_is_left() -> None:
    q = centered()
    assert q.center is not None
    x = torch.randn(256, 3)
    z = torch.stack([x.sum(1), x[:, 0]], 1) + 0.01 * torch.randn(256, 2)
    optimizer = torch.optim.Adam(q.parameters(), lr=3e-3)
    for _ in range(300):
        optimizer.zero_grad()
        q.loss(z, x, p_uncond=0.0).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    with torch.no_grad():
        assert float((q.center(q.embed(x)) - z).square().mean()) < 0.02


def test_a_centered_amortizer_has_no_unconditional_form() -> None:
    q = centered()
    for call in (lambda: q.sample(3), lambda: q.log_prob(torch.zeros(1, 2))):
        with pytest.raises(BadInput, match="has no q"):
            call()
    with pytest.raises(BadInput, match="p_uncond be 0"):
        q.loss(torch.zeros(2, 2), torch.zeros(2, 3))
    for options in ({"context": None}, {"context": 3, "guidance": 1.0}):
        with pytest.raises(BadInput, match="center must be False"):
            Amortizer(2, center=True, **options)  # type: ignore[arg-type]


def test_a_centered_amortizer_is_saved_with_its_factor(tmp_path: Path) -> None:
    q = centered()
    q.save(tmp_path / "q")
    x = torch.randn(4, 3)
    a, b = (
        each.sample(x=x, generator=torch.Generator().manual_seed(0))
        for each in (q, Amortizer.load(tmp_path / "q"))
    )
    assert a.equal(b)
