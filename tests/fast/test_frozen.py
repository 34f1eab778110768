"""Frozen targets give autograd's gradients; what is not plain is left to autograd, never stale."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils import parametrizations as p
from torch.nn.utils import parametrize, prune

from damc import BadInput, EnergyPrior, Langevin, LatentModel
from damc.density import value_and_grad
from damc.fast.frozen import frozen
from damc.fast.gradients import has_rule
from damc.nets import DECODERS, UpLayer, conv_decoder, mlp_decoder, mlp_energy
from damc.nets.hierarchy import Hierarchy, conv_hierarchy, mlp_hierarchy
from damc.nets.mlp import mlp
from damc.nets.ratios import Ratios


class Twice(nn.Linear):
    def forward(self, h: Tensor) -> Tensor:
        return 2 * super().forward(h)


class Twofold(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


class ScaledByBuffer(nn.Module):
    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor(2.0, dtype=torch.float64))

    def forward(self, h: Tensor) -> Tensor:
        self.scale *= 1.5  # another one at every evaluation
        return h * self.scale


def forward_hook(net: nn.Sequential) -> None:
    net[0].register_forward_hook(lambda module, h, y: 3 * y)


def forward_pre_hook(net: nn.Sequential) -> None:
    net[1].register_forward_pre_hook(lambda module, h: (3 * h[0],))


def backward_hook(net: nn.Sequential) -> None:
    net[2].register_full_backward_hook(lambda module, to, at: (3 * to[0],))


def hook_on_the_whole(net: nn.Sequential) -> None:
    net.register_forward_hook(lambda module, h, y: 3 * y)


def old_weight_norm(net: nn.Sequential) -> None:
    torch.nn.utils.weight_norm(net[0])
    net[0].weight_g.data *= 3  # `weight` will know at the next forward pass only


def weight_norm(net: nn.Sequential) -> None:
    p.weight_norm(net[0])
    net[0].parametrizations.weight.original0.data *= 3


def old_spectral_norm(net: nn.Sequential) -> None:
    torch.nn.utils.spectral_norm(net[0])


def spectral_norm(net: nn.Sequential) -> None:
    p.spectral_norm(net[0])  # in train mode another weight at every evaluation


def parametrization(net: nn.Sequential) -> None:
    parametrize.register_parametrization(net[2], "weight", Twofold())


def pruning(net: nn.Sequential) -> None:
    prune.l1_unstructured(net[0], "weight", 0.5)
    net[0].weight_orig.data *= 3  # `weight` will know at the next forward pass only


def batch_norm(net: nn.Sequential) -> None:
    net.insert(1, nn.BatchNorm1d(6).double())


def changing_buffer(net: nn.Sequential) -> None:
    net.insert(1, ScaledByBuffer())


def dropout(net: nn.Sequential) -> None:
    net.insert(1, nn.Dropout(0.5))


def subclass(net: nn.Sequential) -> None:
    net[0] = Twice(4, 6).double()


def replaced_forward(net: nn.Sequential) -> None:
    net[1].forward = lambda h: h.sin()


CHANGES = [
    forward_hook, forward_pre_hook, backward_hook, hook_on_the_whole, old_weight_norm, weight_norm,
    old_spectral_norm, spectral_norm, parametrization, pruning, batch_norm, changing_buffer,
    dropout, subclass, replaced_forward,
]  # fmt: skip


def twice(target: object, z: Tensor) -> list[Tensor]:
    """Two evaluations one after the other, with the same draws of torch's own generator."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return [*value_and_grad(target, z), *value_and_grad(target, z)]


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated")
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("place", ["energy", "decoder", "log-density"])
def test_a_layer_that_is_not_plain_is_left_to_autograd(
    change: Callable[[nn.Sequential], None], place: str
) -> None:
    outputs = 3 if place == "decoder" else 1

    def made() -> nn.Sequential:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 6), nn.LeakyReLU(0.2), nn.Linear(6, outputs)).double()
        if place == "log-density":
            net.append(nn.Flatten(0))
        change(net)
        return net

    net, other = made(), made()
    z, x = torch.randn(7, 4, dtype=torch.float64), torch.randn(7, outputs, dtype=torch.float64)
    if place == "energy":
        targets = (frozen(EnergyPrior(net)), EnergyPrior(other).log_prob)
    elif place == "decoder":
        model = LatentModel(other, None, 4, 0.5)
        targets = (
            frozen(LatentModel(net, None, 4, 0.5).posterior(x)), lambda z: model.log_joint(z, x)
        )  # fmt: skip
    else:
        targets = (frozen(net), lambda z: other(z))
    for ours, autograds in zip(twice(targets[0], z), twice(targets[1], z), strict=True):
        torch.testing.assert_close(ours, autograds)


@pytest.fixture
def hooked_everywhere() -> Iterator[None]:
    handle = register_module_forward_hook(
        lambda module, h, y: 3 * y if isinstance(module, nn.Tanh) else None
    )
    yield
    handle.remove()


@pytest.mark.usefixtures("hooked_everywhere")
def test_hooks_of_all_modules_count_too() -> None:
    prior, z = EnergyPrior(mlp_energy(3, (4,), "tanh")), torch.randn(5, 3)
    for ours, autograds in zip(twice(frozen(prior), z), twice(prior.log_prob, z), strict=True):
        torch.testing.assert_close(ours, autograds)


def test_a_subclass_of_a_target_keeps_what_it_overrides() -> None:
    class Colder(EnergyPrior):
        def log_prob(self, z: Tensor) -> Tensor:
            return 2 * super().log_prob(z)

    class Sharper(LatentModel):
        def log_likelihood(self, x: Tensor, z: Tensor) -> Tensor:
            return 2 * super().log_likelihood(x, z)

    z, x = torch.randn(5, 3), torch.randn(5, 2)
    prior = Colder(mlp_energy(3, (4,)))
    model = Sharper(mlp_decoder(3, (2,), (4,)), mlp_energy(3, (4,)), 3, 0.5)
    for target, log_prob in (
        (prior, prior.log_prob),
        (model.posterior(x), lambda z: model.log_joint(z, x)),
    ):
        for ours, autograds in zip(twice(frozen(target), z), twice(log_prob, z), strict=True):
            torch.testing.assert_close(ours, autograds)


def ratios(finished: int) -> Ratios:
    net = Ratios(*(mlp_energy(4, (6, 5), activation) for activation in ("lrelu", "gelu", "tanh")))
    net.finish(finished)
    return net


ENERGIES = {
    "a column": lambda: nn.Sequential(nn.Linear(4, 6), nn.SiLU(), nn.Linear(6, 1)),
    "flat": lambda: nn.Sequential(nn.Linear(4, 6), nn.SiLU(), nn.Linear(6, 1), nn.Flatten(0)),
    "no ratio finished": lambda: ratios(0),
    "one ratio finished": lambda: ratios(1),
    "all ratios finished": lambda: ratios(3),
}
DECODER_NETS = {
    "vectors in layers": lambda: mlp_hierarchy((1, 2, 1), 6, mlp_decoder(6, (1, 4, 4), (5,))),
    "vectors, ending in place": lambda: Hierarchy(
        (1, 3), [mlp((n, 6), last="tanh") for n in (1, 3)],
        [mlp((6, 6), last="tanh"), mlp((6, 6), last="relu")], mlp((6, 5), last="tanh"),
    ),
    "maps in layers": lambda: conv_hierarchy((1, 2, 1), (3, 8, 8), width=8),
    "maps in layers, cropped": lambda: conv_hierarchy((1, 3), (1, 7, 10), width=8),
    "one layer": lambda: conv_hierarchy((4,), (1, 8, 8), width=8),
    "cropped": lambda: conv_decoder(4, (UpLayer(2, 4), UpLayer(None, 4, 2)), 1, 2, crop=(7, 6)),
    "of the paper": lambda: conv_decoder(4, DECODERS["mnist"], 1, width=1),
}  # fmt: skip


@pytest.fixture
def no_graph(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a gradient was left to autograd")

    return lambda: monkeypatch.setattr(torch.autograd, "grad", refuse)


@pytest.mark.parametrize("name", ENERGIES)
def test_energies_need_no_graph(name: str, no_graph: Callable[[], None]) -> None:
    prior = EnergyPrior(ENERGIES[name]()).double()
    z = torch.randn(6, 4, dtype=torch.float64)
    expected = value_and_grad(prior.log_prob, z)
    no_graph()
    for ours, autograds in zip(value_and_grad(frozen(prior), z), expected, strict=True):
        torch.testing.assert_close(ours, autograds, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", DECODER_NETS)
def test_decoders_need_no_graph(name: str, no_graph: Callable[[], None]) -> None:
    model = LatentModel(DECODER_NETS[name](), mlp_energy(4, (5,)), 4, 0.3).double()
    z = torch.randn(3, 4, dtype=torch.float64)
    x = torch.randn_like(model.decoder(z).detach())
    kept = z.clone()
    expected = value_and_grad(lambda z: model.log_joint(z, x), z)
    no_graph()
    for ours, autograds in zip(
        value_and_grad(frozen(model.posterior(x)), z), expected, strict=True
    ):
        torch.testing.assert_close(ours, autograds, rtol=1e-9, atol=1e-10)
    assert z.equal(kept)


def test_a_ratio_that_joins_later_is_seen_by_the_next_run() -> None:
    net = ratios(1)
    prior, z = EnergyPrior(net), torch.ones(2, 4)
    ends = []
    for stage in (1, 3):
        net.finish(stage)
        ends.append(Langevin(0.5, 1, noise=False).run(z, prior)[0].z)
    assert not ends[0].allclose(ends[1])


def test_a_constant_stage_has_no_gradient() -> None:
    """As autograd has it, where the rest of the density depends on z."""

    class Constant(nn.Module):
        def forward(self, h: Tensor) -> Tensor:
            return torch.ones_like(h)

    prior = EnergyPrior(nn.Sequential(nn.Linear(2, 3), Constant(), nn.Linear(3, 1)))
    z = torch.randn(4, 2)
    assert has_rule(prior.energy)  # type: ignore[arg-type]
    torch.testing.assert_close(value_and_grad(frozen(prior), z)[1], -z)


@pytest.mark.parametrize(
    ("energy", "name", "got"),
    [
        (nn.Linear(3, 2), "Linear", r"\(5, 2\)"),
        (nn.Sequential(nn.Linear(3, 1), nn.Flatten(0), nn.Unflatten(0, (5, 1, 1))), "Sequential",
         r"\(5, 1, 1\)"),
        (nn.Identity(), "Identity", r"\(5, 3\)"),
    ],
)  # fmt: skip
def test_an_energy_of_another_shape_is_refused_by_name(
    energy: nn.Module, name: str, got: str
) -> None:
    prior, z = EnergyPrior(energy), torch.randn(5, 3)
    words = (
        rf"energy {name} must give one number for each point.*\(5,\) or \(5, 1\), got shape {got}"
    )
    for evaluate in (prior.log_prob, prior.energy_of, lambda z: Langevin(0.1, 1).run(z, prior)):
        with pytest.raises(BadInput, match=words):
            evaluate(z)


def test_a_column_of_energies_is_what_its_numbers_are() -> None:
    column = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    flat = nn.Sequential(column, nn.Flatten(0))
    z = torch.randn(5, 3)
    torch.testing.assert_close(EnergyPrior(column).log_prob(z), EnergyPrior(flat).log_prob(z))
    torch.testing.assert_close(EnergyPrior(column).energy_of(z), flat(z))
    assert EnergyPrior().energy_of(z).equal(torch.zeros(5))
