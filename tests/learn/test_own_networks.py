"""Decoders, encoders and energies of the user's own: learned, killed, resumed, loaded, sampled."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import damc
from damc import DAMC, Amortizer, BadInput, LatentModel, fit, load
from damc.learn.damc import DAMCSettings
from damc.tasks.modules import learner_from
from damc.train.run import Run

OWN = '''
import torch
from torch import nn
import damc
from damc.learn.damc import DAMCSettings


class UNet(nn.Module):
    """Up from z with skip connections between levels, dropout and batch statistics: nothing that
    damc could know."""

    def __init__(self):
        super().__init__()
        self.low = nn.Linear(4, 8 * 2 * 2)
        self.skip = nn.Linear(4, 8 * 4 * 4)
        self.up = nn.ConvTranspose2d(8, 8, 2, 2)
        self.norm = nn.BatchNorm2d(8)
        self.drop = nn.Dropout(0.1)
        self.out = nn.ConvTranspose2d(16, 1, 2, 2)

    def forward(self, z):
        low = torch.relu(self.low(z)).view(-1, 8, 2, 2)
        skip = torch.relu(self.skip(z)).view(-1, 8, 4, 4)
        h = self.drop(self.norm(torch.relu(self.up(low))))
        return torch.tanh(self.out(torch.cat([h, skip], 1)))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.gru = nn.GRU(32, 16, batch_first=True)

    def forward(self, x):
        return self.gru(self.conv(x).view(len(x), 8, 32))[1][0]


class Column(nn.Module):
    """An energy (B, 1)."""

    def __init__(self):
        super().__init__()
        self.net = nn.Bilinear(4, 4, 1)

    def forward(self, z):
        return self.net(z, torch.sin(z))


def make():
    settings = DAMCSettings(
        sigma=0.5, posterior_steps=3, prior_steps=3, updates=2, start_steps=3, ema_every=2
    )
    model = damc.LatentModel(UNet(), Column(), latent_dim=4, sigma=0.5)
    q = damc.Amortizer(4, Encoder(), embedding=16, widths=(8, 8, 8))
    return damc.DAMC(model, q, settings)
'''


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("own")
    (folder / "own.py").write_text(OWN)
    sys.path.insert(0, str(folder))
    import own  # type: ignore[import-not-found]

    yield own
    sys.path.remove(str(folder))
    del sys.modules["own"]


def made(own: Any, seed: int = 0) -> DAMC:
    torch.manual_seed(seed)
    learner: DAMC = own.make()
    return learner


def train(own: Any, run: Path, iterations: int, said: Any = None) -> None:
    callbacks = [] if said is None else [lambda progress: said.send(progress.iteration)]
    fit(
        made(own),
        images(40),
        iterations=iterations,
        run=run,
        batch=8,
        log_every=1,
        checkpoint_every=4,
        callbacks=callbacks,
        progress=False,
    )


def test_killed_and_resumed_is_bit_for_bit_the_run_that_was_not(own: Any, tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")  # importing torch again takes seconds
    ours, theirs = context.Pipe()
    killed = context.Process(target=train, args=(own, tmp_path / "killed", 10_000, theirs))
    killed.start()
    while ours.recv() < 6:  # after the checkpoint of iteration 4
        pass
    assert killed.pid is not None
    os.kill(killed.pid, signal.SIGKILL)
    killed.join()
    assert killed.exitcode == -signal.SIGKILL
    total = Run.open(tmp_path / "killed").checkpoints()[-1] + 3
    for run in ("killed", "whole"):
        train(own, tmp_path / run, total)
    files = [tmp_path / run / f"checkpoints/{total:08d}" for run in ("killed", "whole")]
    for name in ("weights.safetensors", "resume.safetensors", "resume.json"):
        assert (files[0] / name).read_bytes() == (files[1] / name).read_bytes(), name

    samples = []
    for run in ("killed", "whole"):
        learner = load(tmp_path / run, learner=made(own, seed=5))
        assert learner.iteration == total
        samples.append(learner.sample(4, generator=torch.Generator().manual_seed(3)))
    assert torch.equal(*samples)
    fresh = made(own).eval().sample(4, generator=torch.Generator().manual_seed(3))
    assert not torch.equal(samples[0], fresh)


def images(n: int = 12) -> Tensor:
    return torch.rand(n, 1, 8, 8, generator=torch.Generator().manual_seed(1)) * 2 - 1


def test_a_run_of_own_networks_says_what_it_needs(own: Any, tmp_path: Path) -> None:
    fit(made(own), images(), iterations=1, run=tmp_path, batch=8, progress=False)
    with pytest.raises(BadInput, match="networks of your own: build the same learner and give it"):
        load(tmp_path)
    other = made(own)
    other.model.decoder = nn.Sequential(nn.Linear(4, 64), nn.Unflatten(1, (1, 8, 8)))
    with pytest.raises(
        BadInput, match=r"the decoder must be a UNet with \S+ parameters, as in the run, got Seq"
    ):
        load(tmp_path, learner=other)
    with pytest.raises(BadInput, match="must be of the method damc, as the run is, got vae"):
        load(tmp_path, learner=damc.learn.find_method("vae").from_preset("digits-small"))
    with pytest.raises(BadInput, match="holds a run with other settings .*modules.decoder"):
        fit(other, images(), iterations=2, run=tmp_path, batch=8, progress=False)


class Returns(nn.Module):
    """Gives whatever it is told to, and learns a number."""

    def __init__(self, give: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.weight, self.give = nn.Parameter(torch.zeros(())), give

    def forward(self, x: Tensor) -> Any:
        return self.give(x)


class Flat(Returns):
    pass


def with_networks(
    decoder: nn.Module | None = None,
    encoder: nn.Module | None = None,
    energy: nn.Module | None = None,
) -> DAMC:
    decoder = decoder or nn.Sequential(nn.Linear(4, 64), nn.Unflatten(1, (1, 8, 8)))
    encoder = encoder or nn.Sequential(nn.Flatten(), nn.Linear(64, 16))
    energy = energy or nn.Linear(4, 1)
    model = LatentModel(decoder, energy, 4, 0.5)
    return DAMC(model, Amortizer(4, encoder, embedding=16, widths=(8, 8, 8)), QUICK)


QUICK = DAMCSettings(sigma=0.5, posterior_steps=2, prior_steps=2, updates=1, start_steps=2)

MISTAKES: dict[str, tuple[dict[str, nn.Module], str]] = {
    "a flat image": (
        {"decoder": nn.Linear(4, 64)},
        r"the decoder Linear must give images of shape \(2, 1, 8, 8\), as the data are, got shape "
        r"\(2, 64\)",
    ),
    "a tuple": (
        {"decoder": Flat(lambda z: (z, z))},
        r"the decoder Flat must give images of shape \(2, 1, 8, 8\), as the data are, got a tuple",
    ),
    "one channel of three": (
        {"decoder": nn.Sequential(nn.Linear(4, 192), nn.Unflatten(1, (3, 8, 8)))},
        r"got shape \(2, 3, 8, 8\)",
    ),
    "another latent size": (
        {"decoder": nn.Sequential(nn.Linear(5, 64), nn.Unflatten(1, (1, 8, 8)))},
        r"the decoder Sequential must take inputs of shape \(2, 4\), got an error: mat1 and mat2",
    ),
    "two energies": (
        {"energy": nn.Linear(4, 2)},
        r"the energy Linear must give one number for each point, shape \(2,\) or \(2, 1\), got "
        r"shape \(2, 2\)",
    ),
    "one energy for all": (
        {"energy": Flat(lambda z: z.sum())},
        r"the energy Flat must give one number for each point, .* got shape \(\)",
    ),
    "another embedding": (
        {"encoder": nn.Sequential(nn.Flatten(), nn.Linear(64, 15))},
        r"the encoder Sequential must give embeddings of shape \(2, 16\), the amortizer's "
        r"`embedding`, got shape \(2, 15\)",
    ),
    "an encoder of larger images": (
        {"encoder": nn.Sequential(nn.Flatten(), nn.Linear(784, 16))},
        r"the encoder Sequential must take inputs of shape \(2, 1, 8, 8\), got an error",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_names_the_module_what_it_gave_and_what_is_wanted(
    name: str, tmp_path: Path
) -> None:
    networks, words = MISTAKES[name]
    with pytest.raises(BadInput, match=words):
        fit(with_networks(**networks), images(), iterations=1, batch=8, progress=False)


def test_an_image_of_another_shape_is_never_broadcast() -> None:
    """x - g(z) of shapes that happen to broadcast would be a number, and a wrong one."""
    model = LatentModel(nn.Linear(4, 8), None, 4, 0.5)
    with pytest.raises(BadInput, match=r"must give images of shape \(8, 1, 8, 8\)"):
        model.squared_error(images(8), torch.zeros(8, 4))
    wide = LatentModel(nn.Sequential(nn.Linear(4, 8), nn.Unflatten(1, (1, 1, 8))), None, 4, 0.5)
    with pytest.raises(BadInput, match=r"got shape \(8, 1, 1, 8\)"):
        damc.Langevin(0.1, 1).run(torch.zeros(8, 4), wide.posterior(images(8)))


def test_an_energy_as_a_column_learns_what_a_flat_one_does() -> None:
    def trained(flat: bool) -> dict[str, Tensor]:
        torch.manual_seed(0)
        column = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        energy = nn.Sequential(*column, nn.Flatten(0)) if flat else column
        learner = with_networks(energy=energy)
        fit(learner, images(), iterations=3, batch=8, progress=False)
        return learner.state_dict()

    flat, column = trained(True), trained(False)
    assert all(torch.equal(flat[name], column[name]) for name in flat)


def test_checking_the_networks_changes_nothing() -> None:
    learner = with_networks(decoder=nn.Sequential(
        nn.Linear(4, 64), nn.BatchNorm1d(64), nn.Dropout(0.5), nn.Unflatten(1, (1, 8, 8))
    )).train()  # fmt: skip
    before = {name: t.clone() for name, t in learner.state_dict().items()}
    state = torch.get_rng_state()
    learner.check_networks(images())
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(before[name], t) for name, t in learner.state_dict().items())
    assert all(part.training for part in learner.model.decoder.modules())


def test_repr_is_short_and_counts() -> None:
    learner = with_networks()
    said = repr(learner)
    assert said.startswith("DAMC(iteration 0; ") and len(said) < 160
    assert "decoder 320" in said and "energy 5" in said and "encoder 1,040" in said
    total = sum(p.numel() for p in learner.parameters() if p.requires_grad)
    assert f"{total:,} parameters" in said


def test_modules_by_name(own: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(learner_from("own:make"), DAMC)
    same = [
        learner_from("own:make", seed=s).state_dict()["model.decoder.out.weight"] for s in (1, 1, 2)
    ]
    assert torch.equal(same[0], same[1]) and not torch.equal(same[0], same[2])
    (tmp_path / "here.py").write_text("def nothing(): return 3\n")
    monkeypatch.chdir(tmp_path)
    for place, words in {
        "own": "module must be PACKAGE.MODULE:FACTORY, got 'own'",
        "no_such_module:make": "module must be one that can be imported, got 'no_such_module:make'",
        "own:missing": "module must name a function of own, got 'missing'",
        "here:nothing": "here:nothing must return a damc.Learner, got int",
    }.items():
        with pytest.raises(BadInput, match=words):
            learner_from(place)


def test_own_networks_from_the_command_line(
    own: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from damc.cli import main

    monkeypatch.chdir(Path(own.__file__).parent)
    words = ["--module", "own:make"]
    run = str(tmp_path / "run")
    train = ["train", "digits-small", "--run", run, *words, "--iterations"]
    assert main([*train, "2"]) == 0, capsys.readouterr().err
    assert Run.open(run).checkpoints() == [2]
    assert main(["sample", run, "--n", "4", *words]) == 0
    assert main(["reconstruct", run, "--n", "4", *words]) == 0
    assert (tmp_path / "run" / "samples" / "samples.npy").is_file()
    assert main(["sample", run]) == 2
    assert "give it as learner=, or --module" in capsys.readouterr().err


def test_own_networks_and_own_images_need_no_preset(
    own: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from damc.cli import main

    monkeypatch.chdir(Path(own.__file__).parent)
    np.save(tmp_path / "pictures.npy", (127.5 * (images() + 1)).round().byte().numpy()[:, 0])
    data = ["--data", str(tmp_path / "pictures.npy"), "--batch", "8"]
    run, words = str(tmp_path / "run"), ["--module", "own:make"]
    assert main(["train", *data, *words, "--run", run, "--iterations", "2"]) == 0
    assert "those of own:make" in capsys.readouterr().out
    # The same command resumes, and so does the folder alone; both need the module.
    assert main(["train", *data, *words, "--run", run, "--iterations", "3"]) == 0
    assert main(["train", *words, "--run", run, "--iterations", "4"]) == 0
    assert Run.open(run).checkpoints()[-1] == 4
    capsys.readouterr()
    assert main(["train", "--run", run, "--iterations", "5"]) == 2
    assert "was trained with networks of your own: give --module" in capsys.readouterr().err
    once = str(tmp_path / "once")
    assert main(["train", *data, *words, "--run", once, "--iterations", "4"]) == 0
    ends = [damc.load(folder, learner=own.make()).state_dict() for folder in (run, once)]
    assert all(torch.equal(ends[0][name], t) for name, t in ends[1].items())
