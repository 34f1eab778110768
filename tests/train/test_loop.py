"""The loop: resuming is exact, processes add up to one, any data will do, memory stays flat."""

from __future__ import annotations

import multiprocessing
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from damc import DAMC, BadInput, Diverged, fit, load
from damc.data import load_images
from damc.learn.processes import average as average_gradients
from damc.train.run import Run

TINY: dict[str, Any] = {
    "posterior_steps": 2,
    "prior_steps": 2,
    "updates": 2,
    "start_steps": 2,
    "ema_every": 2,
    "warm_up": 0.0,
}


def learner(**changes: Any) -> DAMC:
    torch.manual_seed(0)
    return DAMC.from_preset("digits-small", **(TINY | changes))


def images(n: int = 40) -> Tensor:
    return torch.rand(n, 1, 8, 8, generator=torch.Generator().manual_seed(1)) * 2 - 1


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def quiet(trained: DAMC, data: Any, iterations: int, **options: Any) -> DAMC:
    fit(trained, data, iterations=iterations, batch=16, progress=False, **options)
    return trained


@pytest.mark.parametrize(
    ("warm_up", "changes"),
    [(0.0, {}), (0.7, {}), (0.7, {"linear_start": True}), (0.7, {"warm_up_variational": True})],
)
def test_five_and_five_are_ten_bit_for_bit(
    warm_up: float, changes: dict[str, Any], tmp_path: Path
) -> None:
    # Stopped in the warm-up, if there is one.
    stages = {"warm_up": warm_up, "horizon": 10, **changes}
    ten = quiet(learner(**stages), images(), 10, run=tmp_path / "ten")
    quiet(learner(**stages), images(), 5, run=tmp_path / "five")
    # Whatever happened to torch's own random state in between must not matter.
    resumed = learner(sigma=0.3, **stages)
    torch.manual_seed(99)
    quiet(resumed, images(), 10, run=tmp_path / "five")
    assert same(ten.state_dict(), resumed.state_dict())
    for name in ("weights.safetensors", "resume.safetensors", "resume.json"):
        files = [tmp_path / run / "checkpoints/00000010" / name for run in ("ten", "five")]
        assert files[0].read_bytes() == files[1].read_bytes()
    # The comparison has power: another seed ends elsewhere.
    other = quiet(learner(**stages), images(), 10, seed=1)
    assert not same(ten.state_dict(), other.state_dict())


def test_load_gives_the_learner_back(tmp_path: Path) -> None:
    trained = quiet(learner(), images(), 3, run=tmp_path)
    assert same(trained.state_dict(), load(tmp_path).state_dict())
    assert load(tmp_path).iteration == 3


def _one_shot() -> Iterator[Tensor]:
    yield from images().split(16)  # type: ignore[no-untyped-call]


SOURCES: dict[str, Callable[[], Any]] = {
    "tensor": images,
    "array": lambda: images().numpy(),
    "bytes": lambda: (images().numpy() * 127.5 + 127.5).astype(np.uint8),
    "data set": lambda: TensorDataset(images(), torch.zeros(40)),
    "loader": lambda: DataLoader(TensorDataset(images()), batch_size=16),
    "list of batches": lambda: [images(16), images(16)],
    "list of images": lambda: list(images()),
    "function": lambda: _one_shot,
    "name": lambda: "digits",
}


@pytest.mark.parametrize("kind", SOURCES)
def test_any_data_will_do(kind: str) -> None:
    trained = quiet(learner(), SOURCES[kind](), 4)
    assert trained.iteration == 4
    assert not same(trained.state_dict(), learner().state_dict())


def test_a_list_of_single_images_is_no_list_of_batches() -> None:
    one = quiet(learner(), list(images()), 3)
    assert same(one.state_dict(), quiet(learner(), images(), 3).state_dict())


def test_iterations_that_were_had_already_are_said_not_ignored(tmp_path: Path) -> None:
    had = quiet(learner(), images(), 3, run=tmp_path / "one")
    with pytest.raises(BadInput, match="has had 3 iterations"):
        quiet(load(tmp_path / "one"), images(), 2, run=tmp_path / "other")
    assert not (tmp_path / "other").exists()
    with pytest.raises(BadInput, match="has had 3 iterations"):
        quiet(had, images(), 3)
    assert quiet(learner(), images(), 3, run=tmp_path / "one").iteration == 3  # its own folder


def test_an_iterator_that_ends_is_named() -> None:
    with pytest.raises(BadInput, match="ended after 3 batches"):
        quiet(learner(), _one_shot(), 4)


class Initialized(DAMC):
    """Keeps the images that its initial weights were set by, and the number of those it learns."""

    wanted = 40

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.first: list[Tensor] = []
        self.indices: list[Tensor] = []

    @property
    def initial_images(self) -> int:
        return self.wanted

    def initialize(self, x: Tensor) -> None:
        self.first.append(x)

    def step(self, x: Tensor, index: Tensor, generator: Any = None) -> dict[str, Tensor]:
        self.indices.append(index)
        return super().step(x, index, generator)


def test_initial_weights_are_set_once_by_the_first_images(tmp_path: Path) -> None:
    torch.manual_seed(0)
    one = quiet(Initialized.from_preset("digits-small", **TINY), images(), 5, run=tmp_path)
    (first,) = one.first
    assert first.shape == (48, 1, 8, 8)  # whole batches
    seen = torch.cat(one.indices)
    assert first.equal(images()[seen[:48]])  # which it then learns from, none of them lost
    torch.manual_seed(0)
    again = quiet(Initialized.from_preset("digits-small", **TINY), images(), 7, run=tmp_path)
    assert again.first == [] and again.iteration == 7


def test_a_short_iterator_sets_initial_weights_by_what_it_has() -> None:
    class Greedy(Initialized):
        wanted = 1000

    torch.manual_seed(0)
    one = quiet(Greedy.from_preset("digits-small", **TINY), _one_shot(), 3)
    assert one.first[0].equal(images()) and one.iteration == 3
    with pytest.raises(BadInput, match="ended after 3 batches"):
        quiet(Greedy.from_preset("digits-small", **TINY), _one_shot(), 4)


def test_a_linear_start_reconstructs_before_it_learns() -> None:
    """One iteration at a rate of nearly nothing: what is left is the start."""
    data = load_images("digits")
    x = data.batch(torch.arange(300))
    errors = []
    for linear in (False, True):
        trained = learner(warm_up=0.9, horizon=10, linear_start=linear, warm_up_rate=1e-9)
        quiet(trained, data, 1)
        for q in (trained.amortizer, trained.target):
            assert q.center is not None
            with torch.no_grad():
                z = q.center(q.embed(x))
                errors.append(float((trained.decode(z) - x).square().mean()))
    spread = float((x - x.mean(0)).square().mean())
    assert min(errors[:2]) > spread > 1.5 * max(errors[2:])


def test_a_checkpoint_that_cannot_compute_is_not_kept(tmp_path: Path) -> None:
    """A finite decoder whose images overflow: the metrics of the iteration still looked well."""
    with pytest.raises(Diverged, match="nothing was saved"):
        quiet(learner(decoder_rate=1e20), images(), 5, run=tmp_path, checkpoint_every=1)
    assert Run.open(tmp_path).checkpoints() == []


class Modes(DAMC):
    """Notes in which mode its parts are when it learns, and when it draws."""

    seen: list[tuple[str, bool, bool]]

    def step(self, *args: Any, **options: Any) -> Any:
        self.seen.append(("step", self.model.decoder.training, self.target.training))
        return super().step(*args, **options)

    def sample(self, *args: Any, **options: Any) -> Any:
        self.seen.append(("probe", self.model.decoder.training, self.target.training))
        return super().sample(*args, **options)


def test_modules_train_in_iterations_and_evaluate_everywhere_else(tmp_path: Path) -> None:
    trained = learner()
    trained.__class__, trained.seen = Modes, []
    trained.eval()

    def hook(watched: Any, run: Any, k: int) -> None:
        watched.seen.append(("hook", watched.model.decoder.training, watched.training))

    quiet(trained, images(), 3, run=tmp_path, checkpoint_every=2, hook=hook, hook_every=1)
    learning, looking = ("step", True, False), ("hook", False, False)
    probe = ("probe", False, False)  # the EMA copy is frozen: it never learns
    assert trained.seen == [learning, looking, learning, probe, looking, learning, probe, looking]
    assert not any(module.training for module in trained.modules())


def test_modules_evaluate_after_training_that_failed() -> None:
    trained = learner()
    with pytest.raises(BadInput, match="ended after 3 batches"):
        quiet(trained, _one_shot(), 4)
    assert not any(module.training for module in trained.modules())


def dropping() -> DAMC:
    """A learner whose decoder has a dropout layer of torch's, which takes no generator."""
    trained = learner()
    trained.model.decoder = nn.Sequential(nn.Dropout(0.3), trained.model.decoder)
    return trained


def test_dropout_is_repeatable_and_resumes_bit_for_bit(tmp_path: Path) -> None:
    torch.manual_seed(1)
    ten = quiet(dropping(), images(), 10)
    torch.manual_seed(2)  # torch's own random state must not matter
    quiet(dropping(), images(), 5, run=tmp_path)
    torch.manual_seed(3)
    resumed = quiet(dropping(), images(), 10, run=tmp_path)
    assert same(ten.state_dict(), resumed.state_dict())
    # The comparison has power: the layer does drop, and another seed drops elsewhere.
    other = quiet(dropping(), images(), 10, seed=1)
    assert not same(ten.state_dict(), other.state_dict())
    plain = quiet(learner(), images(), 10).model.decoder.state_dict()
    dropped = {k.removeprefix("1."): v for k, v in ten.model.decoder.state_dict().items()}
    assert not same(plain, dropped)


def test_the_random_state_of_the_user_is_left_alone(tmp_path: Path) -> None:
    trained = dropping()
    torch.manual_seed(7)
    before = torch.get_rng_state()
    quiet(trained, images(), 3, run=tmp_path)
    assert torch.equal(before, torch.get_rng_state())
    broken = dropping()
    torch.nn.init.constant_(next(broken.parameters()), torch.nan)
    torch.manual_seed(7)
    with pytest.raises(Diverged):
        quiet(broken, images(), 3)
    assert torch.equal(before, torch.get_rng_state())


def _updates(trained: DAMC, rank: int, world: int) -> dict[str, Tensor]:
    """Gradients, as averaging leaves them, of all three updates on this process's share."""
    generator = torch.Generator().manual_seed(2)
    x, n = images(16), 16
    z, eps = (torch.randn(n, 8, generator=generator) for _ in range(2))
    negative, u = torch.randn(n, 8, generator=generator), torch.rand(n, generator=generator)
    x, z, eps, negative, u = (t[rank::world] for t in (x, z, eps, negative, u))
    together, seen = trained.optimizers.average, {}

    def watch(name: str) -> None:
        def synchronize(gradients: list[Tensor]) -> None:
            if together is not None:
                together(gradients)
            seen[name] = torch.cat([g.flatten() for g in gradients])

        trained.average_gradients(synchronize)

    energy = trained.model.prior.energy
    assert energy is not None
    watch("decoder")
    trained.update("decoder", trained.model.squared_error(x, z).mean())
    watch("energy")
    trained.update("energy", energy(z).mean() - energy(negative).mean())
    watch("amortizer")
    trained.update("amortizer", trained.amortizer.loss(z, x, p_uncond=0.0, u=u, eps=eps))
    return seen


def _process(rank: int, folder: str, average: bool) -> None:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2
    )
    trained = learner()
    trained.average_gradients(average_gradients if average else None)
    np.savez(
        f"{folder}/{rank}.npz", **{k: v.numpy() for k, v in _updates(trained, rank, 2).items()}
    )
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def two_processes(folder: Path, average: bool) -> list[dict[str, Tensor]]:
    folder.mkdir()
    context = multiprocessing.get_context("fork")
    both = [context.Process(target=_process, args=(r, str(folder), average)) for r in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join(60)
        assert process.exitcode == 0
    loaded = [np.load(folder / f"{rank}.npz", allow_pickle=False) for rank in range(2)]
    return [{name: torch.from_numpy(held[name]) for name in held.files} for held in loaded]


def test_gradients_of_two_processes_are_those_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    one = _updates(learner(), 0, 1)

    def worst(seen: dict[str, Tensor]) -> float:
        return max(float((seen[k] - one[k]).norm() / one[k].norm()) for k in one)

    first, second = two_processes(tmp_path / "averaged", True)
    assert worst(first) < 1e-5 and worst(second) < 1e-5
    assert all(torch.equal(first[name], second[name]) for name in one)
    # Without the averaging, each process follows its own half of the batch.
    assert worst(two_processes(tmp_path / "alone", False)[0]) > 1e-2


MEMORY = """
import os, pathlib, torch
from damc import DAMC, fit
from damc.amortize.mixture import GaussianMixture

def look(learner, run, iteration):
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    print(iteration, pages * os.sysconf("SC_PAGE_SIZE"))

torch.set_num_threads(1)
torch.manual_seed(0)
GaussianMixture.fit(torch.randn(10_000, 8), 10)  # what libraries load and keep once is no leak
learner = DAMC.from_preset("digits-small", warm_up=0.0)
fit(learner, "digits", iterations=1000, hook=look, hook_every=20, progress=False)
"""


@pytest.mark.slow
def test_memory_stays_flat() -> None:
    """Resident memory around iteration 900 of digits-small is that around iteration 100, +-1 %.

    In a process of its own, which holds nothing but the training. Without a warm-up, since chains
    need more memory than the auto-encoder before them. Medians of ten looks: what the allocator
    gives back to the system goes up and down by a percent.
    """
    ran = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True)
    seen = {int(k): int(v) for k, v in (line.split() for line in ran.stdout.splitlines())}
    first, last = (statistics.median(seen[i + k] for k in range(20, 201, 20)) for i in (0, 800))
    assert last == pytest.approx(first, rel=0.01), seen
