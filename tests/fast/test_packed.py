"""The packed denoiser is the denoiser, at every point, step and layout."""

from __future__ import annotations

import pytest
import torch

from damc.diffusion.denoiser import VectorDenoiser
from damc.diffusion.schedule import TruncatedCosine
from damc.fast import packed
from damc.fast.packed import PackedDenoiser

ANGLES = TruncatedCosine().angle(torch.linspace(1, 0, 6, dtype=torch.float64))


@pytest.mark.parametrize("kind", [{}, {"residual": False}, {"velocity": True}], ids=str)
@pytest.mark.parametrize("points", [(9,), (4, 9)])
@pytest.mark.parametrize("rows", [9, 1])
@pytest.mark.parametrize("pays", [0, 10**9])  # weights copied, or not
@pytest.mark.parametrize("together", [1, 36, 10**4])  # steps modulated one by one, some, all
def test_it_is_the_plain_network(
    kind: dict[str, bool], points: tuple[int, ...], rows: int, pays: int, together: int,
    generator: torch.Generator, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(packed, "_PAYS", pays)
    monkeypatch.setattr(packed, "_ROWS", together)
    net = VectorDenoiser(6, 16, capacity=0.1, **kind).double()
    torch.nn.init.normal_(net.blocks[-1].w1_w4.weight, generator=generator)
    options = {"dtype": torch.float64, "generator": generator}
    condition, z = torch.randn(rows, 16, **options), torch.randn(*points, 6, **options)
    kept = z.clone()
    with torch.inference_mode():
        fast = PackedDenoiser(net, condition, ANGLES, torch.Size(points))
        for i in (0, 1, 1, 4, 5, 2, 0):  # in any order
            torch.testing.assert_close(fast(z, i), net(z, ANGLES[i], condition))
    assert z.equal(kept)


def test_an_earlier_prediction_is_not_overwritten(generator: torch.Generator) -> None:
    net = VectorDenoiser(3, 8, capacity=0.1)
    z = torch.randn(5, 3, generator=generator)
    with torch.no_grad():
        fast = PackedDenoiser(net, torch.ones(1, 8), ANGLES, torch.Size([5]))
        first = fast(z, 0)
        kept = first.clone()
        fast(z + 1, 1)
    assert first.equal(kept) and not first.requires_grad
