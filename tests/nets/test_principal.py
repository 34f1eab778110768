"""Networks that begin as principal components of the images."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from damc import BadInput
from damc.nets import (
    conv_decoder_for,
    encoder_for,
    mlp_conv_decoder,
    mlp_decoder,
    mlp_encoder,
    principal,
)
from damc.nets.decoder import HYBRIDS
from damc.nets.principal import begin_as_pca

SLOPE = 0.2


def images(n: int, shape: tuple[int, int, int], rank: int) -> Tensor:
    """Images of as many linear factors, of decreasing effect, well inside (-1, 1)."""
    g = torch.Generator().manual_seed(0)
    c, h, w = shape
    smooth = torch.randn(rank, c, 4, 4, generator=g, dtype=torch.float64)
    factors = nn.functional.interpolate(smooth, size=(h, w), mode="bilinear")
    effect = 0.05 / torch.arange(1, rank + 1, dtype=torch.float64) ** 0.5
    z = torch.randn(n, rank, generator=g, dtype=torch.float64)
    return 0.1 + torch.einsum("nr,rchw->nchw", z * effect, factors)


def codes(encoder: nn.Module, head: nn.Linear, x: Tensor) -> Tensor:
    z: Tensor = head(nn.functional.leaky_relu(encoder(x), SLOPE))
    return z


def networks(
    kind: str, shape: tuple[int, int, int], d: int
) -> tuple[nn.Module, nn.Linear, nn.Module]:
    torch.manual_seed(0)
    side = 16 if max(shape) > 16 else None
    encoder = mlp_encoder(shape, (3 * d, 4 * d), 2 * d + 1, side=side).double()
    head = nn.Linear(2 * d + 1, d).double()
    if kind == "mlp":
        return encoder, head, mlp_decoder(d, shape, (2 * d, 3 * d)).double()
    return encoder, head, mlp_conv_decoder(d, shape, HYBRIDS[kind], (2 * d,), 16).double()


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        ("mlp", (1, 8, 8)),
        ("half", (3, 16, 16)),
        ("quarter", (3, 16, 16)),
        ("quarter", (1, 30, 25)),
        ("eighth", (3, 32, 32)),
        ("sixteenth", (1, 60, 64)),
    ],
)
def test_they_begin_as_principal_components(
    kind: str, shape: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Codes are those of a singular value decomposition; the decoder is their regression."""
    d, x = 5, images(200, shape, 8)
    encoder, head, decoder = networks(kind, shape, d)
    monkeypatch.setattr(principal, "_REST", 0.0)
    begin_as_pca(encoder, head, decoder, x)
    with torch.no_grad():
        z, image = codes(encoder, head, x), decoder(codes(encoder, head, x))
    side = min(16, shape[1]), min(16, shape[2])
    seen = x if max(shape) <= 16 else nn.functional.adaptive_avg_pool2d(x, side)
    rows = (seen - seen.mean(0)).flatten(1)
    u = torch.linalg.svd(rows, full_matrices=False)[0][:, :d] * (len(x) - 1) ** 0.5
    torch.testing.assert_close(z.mT @ z / (len(x) - 1), torch.eye(d).double(), rtol=0, atol=1e-4)
    torch.testing.assert_close((u * z).mean(0).abs(), torch.ones(d).double(), rtol=0, atol=6e-3)
    target = torch.atanh(x).flatten(1)
    ones = torch.cat([z, torch.ones(len(z), 1).double()], 1)
    expected = torch.tanh(ones @ torch.linalg.lstsq(ones, target).solution).view_as(x)
    # Half of the channels at each size hold what the larger maps need, up to a little.
    exact = kind in ("mlp", "quarter")
    away = (image - expected).square().mean() / (x - x.mean(0)).square().mean()
    assert away < (1e-6 if exact else 0.02)


def test_units_that_carry_no_signal_stay_and_the_others_keep_some_of_their_weights() -> None:
    shape, d = (3, 16, 16), 5
    x = images(200, shape, 8)
    before, after = networks("quarter", shape, d), networks("quarter", shape, d)
    begin_as_pca(*after, x)
    first, changed = before[0][1], after[0][1]
    assert isinstance(first, nn.Linear) and isinstance(changed, nn.Linear)
    assert changed.weight[2 * d :].equal(first.weight[2 * d :])
    middle, written = before[0][3], after[0][3]
    assert isinstance(middle, nn.Linear) and isinstance(written, nn.Linear)
    torch.testing.assert_close(
        written.weight[: 2 * d, 2 * d :], principal._REST * middle.weight[: 2 * d, 2 * d :]
    )
    with torch.no_grad():
        errors = [
            float((net[2](codes(*net[:2], x)) - x).square().mean()) for net in (before, after)
        ]
    assert errors[1] < 0.5 * float((x - x.mean(0)).square().mean()) < errors[0]


def test_few_images_have_fewer_components_and_equal_ones_none() -> None:
    shape, d = (1, 8, 8), 5
    encoder, head, decoder = networks("mlp", shape, d)
    begin_as_pca(encoder, head, decoder, images(4, shape, 8))
    with torch.no_grad():
        assert codes(encoder, head, images(50, shape, 8)).isfinite().all()
    fresh, same = networks("mlp", shape, d), networks("mlp", shape, d)
    begin_as_pca(*same, torch.zeros(10, *shape).double())
    for net, other in zip(fresh, same, strict=True):
        assert all(a.equal(b) for a, b in zip(net.parameters(), other.parameters(), strict=True))


def test_it_is_the_same_every_time_and_leaves_the_random_state_alone() -> None:
    shape = (3, 16, 16)
    one, other = networks("quarter", shape, 5), networks("quarter", shape, 5)
    state = torch.get_rng_state()
    begin_as_pca(*one, images(200, shape, 8))
    assert torch.get_rng_state().equal(state)
    torch.manual_seed(5)
    begin_as_pca(*other, images(200, shape, 8))
    for a, b in zip(one, other, strict=True):
        assert all(p.equal(q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


def test_networks_of_other_kinds_are_refused() -> None:
    shape, x = (3, 16, 16), images(50, (3, 16, 16), 8)
    encoder, head, decoder = networks("quarter", shape, 5)
    with pytest.raises(BadInput, match="encoder"):
        begin_as_pca(encoder_for(shape, 11, 4), head, decoder, x)
    with pytest.raises(BadInput, match="decoder"):
        begin_as_pca(encoder, head, conv_decoder_for(shape, 5, 4), x)
    with pytest.raises(BadInput, match="twice as wide"):
        begin_as_pca(encoder, head, mlp_decoder(5, shape, (9,)), x)
