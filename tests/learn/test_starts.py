"""Where chains start, and that persistent ones really go on: over epochs and over resumes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from damc import Amortizer
from damc.learn import Learner, find_method
from damc.learn.starts import AmortizedStarts, NoiseStarts, PersistentStarts

X = torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(0)) * 2 - 1
TINY: dict[str, Any] = {"posterior_steps": 2, "horizon": 10}


def seeded(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def watched(learner: Learner) -> list[Tensor]:
    """The starts of posterior chains, as they come."""
    seen: list[Tensor] = []
    chain = learner.chains["posterior"]
    move = chain.move

    def watch(x: Tensor, z: Tensor, generator: torch.Generator | None = None) -> Any:
        seen.append(z.clone())
        return move(x, z, generator)

    chain.move = watch  # type: ignore[method-assign]
    return seen


def make(method: str, **changes: Any) -> Any:
    torch.manual_seed(0)
    return find_method(method).from_preset("digits-small", **(TINY | changes))


def test_a_chain_goes_on_where_it_ended_whatever_comes_between() -> None:
    starts = PersistentStarts(3)
    first = starts.draw(X[:2], torch.tensor([7, 2]), seeded())
    assert first.equal(NoiseStarts(3).draw(X[:2], torch.tensor([7, 2]), seeded()))
    ends = torch.arange(6.0).view(2, 3)
    starts.keep(torch.tensor([7, 2]), ends)
    between = starts.draw(X[:3], torch.tensor([0, 9, 8]), seeded(2))
    starts.keep(torch.tensor([0, 9, 8]), between + 1)
    mixed = starts.draw(X[:3], torch.tensor([2, 5, 7]), seeded(3))
    assert mixed[0].equal(ends[1]) and mixed[2].equal(ends[0])
    # A first visit is noise, the same that a start without memory would draw there.
    noise = NoiseStarts(3).draw(X[:3], torch.tensor([2, 5, 7]), seeded(3))
    assert mixed[1].equal(noise[1]) and len(starts.z) == 10


def test_what_is_kept_does_not_change_with_the_batch_it_came_from() -> None:
    starts, z = PersistentStarts(3), torch.ones(2, 3)
    starts.keep(torch.tensor([0, 1]), z)
    z += 1
    drawn = starts.draw(X[:2], torch.tensor([0, 1]), seeded())
    drawn += 5
    assert starts.draw(X[:2], torch.tensor([0, 1]), seeded()).equal(torch.ones(2, 3))


def test_an_amortizer_sees_the_images_or_does_not() -> None:
    encoder = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 8))
    q = Amortizer(3, encoder, embedding=8, widths=(8, 8, 8))
    index = torch.arange(6)
    given = AmortizedStarts(q, "multistep", 3)
    assert given.draw(X, index, seeded()).equal(
        q.sample(x=X, solver="multistep", steps=3, generator=seeded())
    )
    blind = AmortizedStarts(q, "multistep", 3, conditional=False)
    assert blind.draw(X, index, seeded()).equal(blind.draw(-X, index, seeded()))
    assert not given.draw(X, index, seeded()).equal(given.draw(-X, index, seeded()))


def test_posterior_chains_persist_over_epochs() -> None:
    learner = make("abp")
    starts, order = watched(learner), torch.tensor([3, 1, 5, 0, 2, 4])
    for epoch in range(3):
        ends = learner.chains["posterior"].starts.z.clone()
        for part in order.roll(epoch).split(3):  # type: ignore[no-untyped-call]
            learner.step(X[part], part, seeded(epoch))
            if epoch:
                assert starts[-1].equal(ends[part])
    assert not any(a.equal(b) for a, b in zip(starts[:2], starts[2:4], strict=True))


def test_chains_without_memory_do_not_persist() -> None:
    learner = make("sri")
    starts, index = watched(learner), torch.arange(6)
    for k in range(2):
        learner.step(X, index, seeded(k))
    assert starts[1].equal(NoiseStarts(8).draw(X, index, seeded(1)))


def test_prior_chains_persist_by_their_place_in_the_batch() -> None:
    learner = make("lebm-persistent", prior_steps=2)
    learner.step(X, torch.arange(6), seeded())
    ends = learner.chains["prior"].starts.z.clone()
    assert learner.chains["prior"].starts.draw(X[:4], torch.arange(4), seeded()).equal(ends[:4])
    learner.step(X, torch.arange(60, 66), seeded(2))  # other images, the same chains
    kept = learner.chains["prior"].starts.z
    assert len(kept) == 6 and not kept.equal(ends)


def test_persistent_chains_outlive_a_resume_and_would_be_missed() -> None:
    index = torch.arange(6)

    def end(*, keep: bool) -> Tensor:
        learner = make("abp")
        for k in range(2):
            learner.step(X, index, seeded(k))
        again, state = make("abp"), learner.resume_state()
        again.load_state_dict(learner.state_dict())
        if not keep:
            state.pop("chains")
        again.load_resume_state(state)
        again.step(X, index, seeded(2))
        weight: Tensor = next(again.model.decoder.parameters())
        return weight.detach()

    straight = make("abp")
    for k in range(3):
        straight.step(X, index, seeded(k))
    weight = next(straight.model.decoder.parameters()).detach()
    assert end(keep=True).equal(weight) and not end(keep=False).equal(weight)


def test_a_state_that_was_taken_does_not_follow_the_chains() -> None:
    learner, again = make("abp"), make("abp")
    learner.step(X, torch.arange(6), seeded())
    again.load_resume_state(learner.resume_state())
    learner.step(X, torch.arange(6), seeded(2))
    assert not again.chains["posterior"].starts.z.equal(learner.chains["posterior"].starts.z)
