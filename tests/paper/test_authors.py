"""The authors' checkpoints: files of their layout convert, and every network gives what a plain
evaluation of the stored tensors gives.

The evaluation here is written from the layout alone, with functions of torch, and shares nothing
with damc's networks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import damc
from damc import BadInput
from damc.learn.damc import DAMC
from damc.learn.presets import Preset, find_preset
from damc.paper.authors import authors_learner, convert_checkpoint, fill_learner

# Transposed convolutions of the decoder, as (kernel, stride, padding), and its channels in
# multiples of the width; convolutions of the encoder after the first 3 x 3, by channels.
LAYOUT: dict[str, tuple[list[tuple[int, int, int]], list[int], list[int], int]] = {
    "svhn": ([(4, 1, 0), (4, 2, 1), (4, 2, 1), (4, 2, 1)], [8, 4, 2], [2, 4, 8], 4),
    "celeba64": ([(4, 1, 0), *[(4, 2, 1)] * 4], [8, 4, 2, 1], [2, 4, 8, 8], 4),
    "cifar10": ([(8, 1, 0), (4, 2, 1), (4, 2, 1), (3, 1, 1)], [8, 4, 2], [2, 4, 8], 4),
    "celebahq256": ([(4, 1, 0), *[(4, 2, 1)] * 6], [16, 8, 4, 4, 2, 1], [2, 4, 4, 8, 8, 8], 4),
    "mnist": ([(7, 1, 0), (4, 2, 1), (4, 2, 1), (3, 1, 1)], [8, 4, 2], [2, 4, 8], 3),
}
BLOCKS = [
    *(f"p.in_layers.{i}" for i in range(3)),
    "p.mid_layers.0",
    *(f"p.out_layers.{i}" for i in range(3)),
]


class Maker:
    """Random tensors of a seed, small enough that deep networks stay in range."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, *shape: int) -> Tensor:
        fan = math.prod(shape[1:]) if len(shape) > 1 else 16
        return torch.randn(*shape, generator=self.generator) / fan**0.5

    def layer(self, name: str, *shape: int, out: int | None = None) -> Iterator[tuple[str, Tensor]]:
        yield f"{name}.weight", self(*shape)
        yield f"{name}.bias", self(shape[0] if out is None else out)


def decoder_state(make: Maker, name: str, nz: int, width: int, channels: int) -> dict[str, Tensor]:
    kernels, multiples, _, _ = LAYOUT[name]
    sizes = [nz, *(width * m for m in multiples), channels]
    state: dict[str, Tensor] = {}
    for i, (kernel, _, _) in enumerate(kernels):
        shape = (sizes[i], sizes[i + 1], kernel, kernel)
        state |= dict(make.layer(f"gen.{2 * i}", *shape, out=sizes[i + 1]))
    return state


def amortizer_state(
    make: Maker, name: str, nz: int, nif: int, nemb: int, channels: int, nf: int
) -> dict[str, Tensor]:
    _, _, multiples, last = LAYOUT[name]
    state = {"xemb": make(1, nemb)}
    sizes = [channels, nif, *(nif * m for m in multiples)]
    for i in range(len(sizes) - 1):
        kernel = 3 if i == 0 else 4
        shape = (sizes[i + 1], sizes[i], kernel, kernel)
        state |= dict(make.layer(f"encoder.net.{3 * i}", *shape))
        state |= {
            f"encoder.net.{3 * i + 1}.{kind}": make(sizes[i + 1]) for kind in ("weight", "bias")
        }
    state |= dict(make.layer(f"encoder.net.{3 * (len(sizes) - 1)}", nemb, sizes[-1], last, last))
    state["p.B"] = make(nz, nz // 2)
    for i in (1, 3):
        state |= dict(make.layer(f"p.time_mlp.{i}", 128, 128))
    w1, w2, w3 = 32 * nf, 64 * nf, 64 * nf
    outs = [w1, w2, w3, w3, w2, w1, nz]
    ins = [2 * nz, w1, w2, w3, 2 * w3, 2 * w2, 2 * w1]
    for block, inputs, out in zip(BLOCKS, ins, outs, strict=True):
        state |= dict(make.layer(f"{block}._layer.0", out, inputs))
        state |= dict(make.layer(f"{block}._skip", out, inputs))
        state |= dict(make.layer(f"{block}._layer_ctx.1", out, 128 + nemb))
        state |= dict(make.layer(f"{block}._hyper_gate", out, out))
        state[f"{block}._hyper_bias.weight"] = make(out, out)
    state |= dict(make.layer("prior_emb.0", 128, nz))
    state |= dict(make.layer("prior_emb.2", nemb, 128))
    return state


def checkpoint(
    name: str, *, nz: int, width: int, nif: int, nemb: int, nf: int = 4
) -> dict[str, Any]:
    make = Maker(0)
    channels = 1 if name == "mnist" else 3
    energy: dict[str, Tensor] = {}
    for i, shape in enumerate([(200, nz), (200, 200), (1, 200)]):
        energy |= dict(make.layer(f"ebm.{2 * i}", *shape))
    amortizers = [amortizer_state(make, name, nz, nif, nemb, channels, nf) for _ in range(2)]
    return {
        "G_state_dict": decoder_state(make, name, nz, width, channels),
        "E_state_dict": energy,
        "Q_state_dict": amortizers[0],
        "Q_dummy_state_dict": amortizers[1],
        "G_optimizer": {"state": {0: {"step": torch.tensor(1.0)}}, "param_groups": [{"lr": 2e-4}]},
        "E_optimizer": {"state": {}, "param_groups": []},
        "Q_optimizer": {"state": {}, "param_groups": []},
        "iter": 12_345,
    }


# What the stored tensors compute, by the layout.


def decode(state: dict[str, Tensor], name: str, z: Tensor) -> Tensor:
    kernels = LAYOUT[name][0]
    h = z[:, :, None, None]
    for i, (_, stride, padding) in enumerate(kernels):
        weight, bias = state[f"gen.{2 * i}.weight"], state[f"gen.{2 * i}.bias"]
        h = F.conv_transpose2d(h, weight, bias, stride, padding)
        h = F.leaky_relu(h, 0.2) if i + 1 < len(kernels) else h.tanh()
    return h


def energy(state: dict[str, Tensor], z: Tensor) -> Tensor:
    for i in (0, 2):
        z = F.leaky_relu(z @ state[f"ebm.{i}.weight"].t() + state[f"ebm.{i}.bias"], 0.2)
    return (z @ state["ebm.4.weight"].t() + state["ebm.4.bias"]).squeeze(1)


def encode(state: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    levels = len(LAYOUT[name][2]) + 1
    for i in range(levels):
        key = f"encoder.net.{3 * i}"
        x = F.conv2d(x, state[f"{key}.weight"], state[f"{key}.bias"], 1 if i == 0 else 2, 1)
        norm = f"encoder.net.{3 * i + 1}"
        mean = x.mean((2, 3), keepdim=True)
        variance = (x - mean).square().mean((2, 3), keepdim=True)
        x = (x - mean) / (variance + 1e-5).sqrt()
        x = x * state[f"{norm}.weight"][:, None, None] + state[f"{norm}.bias"][:, None, None]
        x = F.leaky_relu(x, 0.2)
    key = f"encoder.net.{3 * levels}"
    return F.conv2d(x, state[f"{key}.weight"], state[f"{key}.bias"]).flatten(1)


def denoise(state: dict[str, Tensor], z: Tensor, log_snr: Tensor, condition: Tensor) -> Tensor:
    v = torch.arctan(torch.exp(-log_snr.double() / 2)) / (math.pi / 2)
    rates = 10_000.0 ** -(torch.arange(64, dtype=torch.float64) / 63)
    phase = 1000 * v[:, None] * rates
    t = torch.cat([phase.sin(), phase.cos()], 1).float()
    t = F.silu(t @ state["p.time_mlp.1.weight"].t() + state["p.time_mlp.1.bias"])
    t = t @ state["p.time_mlp.3.weight"].t() + state["p.time_mlp.3.bias"]
    context = F.silu(torch.cat([t, condition], 1))

    def block(name: str, h: Tensor) -> Tensor:
        def linear(part: str, inputs: Tensor) -> Tensor:
            y = inputs @ state[f"{name}.{part}.weight"].t()
            return y + state[f"{name}.{part}.bias"] if f"{name}.{part}.bias" in state else y

        c = F.silu(linear("_layer_ctx.1", context))
        gate = torch.sigmoid(linear("_hyper_gate", c))
        return linear("_layer.0", h) * gate + linear("_hyper_bias", c) + linear("_skip", h)

    turns = 2 * math.pi * z @ state["p.B"]
    h = torch.cat([turns.sin(), turns.cos(), z], 1)
    skips = []
    for name in BLOCKS[:3]:
        h = block(name, h)
        skips.append(h)
        h = F.leaky_relu(h, 0.01)
    h = block(BLOCKS[3], h)
    for name in BLOCKS[4:]:
        h = block(name, F.leaky_relu(torch.cat([h, skips.pop()], 1), 0.01))
    return z + h


def close(a: Tensor, b: Tensor) -> None:
    assert a.shape == b.shape
    assert float((a - b).abs().max()) < 2e-5 * (1 + float(b.abs().max()))


def compare(learner: DAMC, file: dict[str, Any], name: str) -> None:
    generator = torch.Generator().manual_seed(9)
    d = learner.model.latent_dim
    z = torch.randn(3, d, generator=generator)
    assert learner.networks is not None
    x = torch.rand(3, *learner.networks.shape, generator=generator) * 2 - 1
    log_snr = torch.tensor([-5.1, 0.3, 9.8])
    with torch.no_grad():
        close(learner.model.decoder(z), decode(file["G_state_dict"], name, z))
        close(learner.model.prior.energy_of(z), energy(file["E_state_dict"], z))
        for q, key in ((learner.amortizer, "Q_state_dict"), (learner.target, "Q_dummy_state_dict")):
            state = file[key]
            condition = q.embed(x)
            close(condition, encode(state, name, x))
            angle = torch.arctan(torch.exp(-log_snr / 2))  # sigma / alpha = exp(-lambda / 2)
            close(q.denoiser(z, angle, condition), denoise(state, z, log_snr, condition))
            hidden = F.leaky_relu(
                z @ state["prior_emb.0.weight"].t() + state["prior_emb.0.bias"], 0.01
            )
            null = hidden @ state["prior_emb.2.weight"].t() + state["prior_emb.2.bias"]
            assert isinstance(q.null, torch.nn.Module)
            close(q.null(z), null)


def small(name: str) -> tuple[Preset, dict[str, int]]:
    """The set-up with narrow networks, so that all five fit into a test."""
    preset = find_preset(name)
    sizes = {"nz": preset.networks.latent_dim, "width": 2, "nif": 2, "nemb": 12}
    networks = replace(
        preset.networks,
        decoder={**preset.networks.decoder, "width": 2},
        encoder={**preset.networks.encoder, "width": 2},
        embedding=12,
    )
    return replace(preset, networks=networks), sizes


@pytest.mark.parametrize("name", LAYOUT)
def test_every_set_up_computes_what_the_stored_tensors_do(name: str) -> None:
    preset, sizes = small(name)
    file = checkpoint(name, **sizes, nf=1)
    learner = authors_learner(preset, capacity=0.25)
    used = fill_learner(learner, file, "best.pth.tar")
    stored = sum(len(file[key]) for key in file if key.endswith("state_dict"))
    assert len(used) == stored - 2  # all but the two tokens that are never used
    compare(learner, file, name)


@pytest.fixture(scope="module")
def svhn(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A file of full width, as the authors' script writes it."""
    file = checkpoint("svhn", nz=100, width=64, nif=64, nemb=1024)
    path = tmp_path_factory.mktemp("authors") / "best.pth.tar"
    torch.save(file, path)
    return path, file


def test_a_file_becomes_a_run_that_every_command_opens(
    svhn: tuple[Path, dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from damc.cli import main

    path, file = svhn
    run = tmp_path / "run"
    assert main(["convert", str(path), "--preset", "svhn", "--run", str(run)]) == 0
    said = capsys.readouterr().out
    assert "iteration 12,345" in said and "Q_state_dict[xemb]" in said and "G_optimizer" in said
    learner = damc.load(run)
    assert learner.iteration == 12_345
    compare(learner, file, "svhn")
    assert learner.settings.prior_sample_steps == 100 and learner.amortizer.steps == 100
    assert main(["sample", str(run), "--n", "2", "--source", "energy"]) == 0
    (tmp_path / "x.npy").write_bytes(_array(torch.zeros(2, 3, 32, 32)))
    assert main(["reconstruct", str(run), str(tmp_path / "x.npy")]) == 0
    assert learner.provenance["command"] == "damc convert best.pth.tar --preset svhn"


def _array(x: Tensor) -> bytes:
    import io

    import numpy as np

    buffer = io.BytesIO()
    np.save(buffer, x.numpy())
    return buffer.getvalue()


def test_the_authors_choices_of_sampling_are_kept() -> None:
    with torch.device("meta"):
        cifar = authors_learner(find_preset("cifar10"))
        digits = authors_learner(find_preset("mnist"), sigma=0.1)
    assert cifar.settings.prior_sample_step_size == 1.6
    assert cifar.settings.prior_sample_steps == 100
    assert (digits.settings.test_steps, digits.settings.sigma) == (5, 0.1)
    for learner in (cifar, digits):
        q = learner.amortizer
        assert (q.solver, q.steps, q.gamma, q.config["null"]) == ("ancestral", 100, 1.0, "noise")


def _without(state: dict[str, Tensor], key: str) -> dict[str, Tensor]:
    return {name: t for name, t in state.items() if name != key}


@pytest.mark.parametrize(
    ("place", "change", "words"),
    [
        (
            "Q_state_dict",
            lambda s: _without(s, "p.mid_layers.0._skip.weight"),
            r"Q_state_dict of best must have p.mid_layers.0._skip.weight of shape \(64, 64\), "
            "got no such tensor",
        ),
        (
            "Q_dummy_state_dict",
            lambda s: _without(s, "prior_emb.2.bias"),
            "Q_dummy_state_dict of best must have prior_emb.2.bias",
        ),
        (
            "G_state_dict",
            lambda s: s | {"gen.2.bias": torch.zeros(3)},
            r"must have gen.2.bias of shape \(8,\), got \(3,\)",
        ),
        (
            "E_state_dict",
            lambda s: s | {"ebm.4.bias": torch.tensor([torch.nan])},
            "must have finite values in ebm.4.bias",
        ),
        (
            "G_state_dict",
            lambda s: s | {"gen.99.weight": torch.zeros(1)},
            "G_state_dict of best must have no other tensors, got gen.99.weight",
        ),
    ],
)
def test_a_tensor_that_is_missing_wrong_or_unknown_is_named(
    place: str, change: Any, words: str
) -> None:
    preset, sizes = small("svhn")
    file = checkpoint("svhn", **sizes, nf=1)
    file[place] = change(file[place])
    with pytest.raises(BadInput, match=words):
        fill_learner(authors_learner(preset, capacity=0.25), file, "best")


class Evil:
    def __reduce__(self) -> Any:
        return (print, ("run",))


def test_a_file_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.pth.tar"
    torch.save({"G_state_dict": {}}, path)
    with pytest.raises(BadInput, match=r"which has E_state_dict, .*iter, got G_state_dict"):
        convert_checkpoint(path, "svhn", tmp_path / "run")
    torch.save({"G_state_dict": Evil()}, path)
    with pytest.raises(BadInput, match="objects other than tensors, which damc does not open"):
        convert_checkpoint(path, "svhn", tmp_path / "run")
    with pytest.raises(BadInput, match="preset must be one of svhn, .*got 'mnist-small'"):
        convert_checkpoint(path, "mnist-small", tmp_path / "run")
    with pytest.raises(BadInput, match="got no file at"):
        convert_checkpoint(tmp_path / "none.pth.tar", "svhn", tmp_path / "run")
    assert not (tmp_path / "run").exists()
