"""Models over HTTP: pushed to a Hub on loopback, loaded from it, and from the cache without it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import damc
from damc import DAMC, BadInput
from damc.hub.client import download

pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed: damc[hub]")


def _server() -> Any:
    place = Path(__file__).with_name("server.py")
    spec = importlib.util.spec_from_file_location("hub_server", place)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    with _server().hub() as (address, store):
        monkeypatch.setenv("HF_ENDPOINT", address)
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
        # The server takes large files by LFS; its successor needs a service of its own.
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True, raising=False)
        yield store


@pytest.fixture
def trained() -> DAMC:
    torch.manual_seed(0)
    learner = DAMC.from_preset(
        "digits-small", posterior_steps=2, prior_steps=2, updates=1, start_steps=2
    )
    return damc.fit(learner, "digits", iterations=3, preset="digits-small", progress=False)


def draw(learner: Any, source: str = "amortizer") -> torch.Tensor:
    generator = torch.Generator().manual_seed(5)
    samples: torch.Tensor = learner.sample(6, source=source, generator=generator)
    return samples


def test_a_round_trip_gives_identical_samples(store: Any, trained: DAMC) -> None:
    address = trained.push_to_hub("somebody/digits", token="right")
    assert "somebody/digits/commit/" in address
    again = damc.load("somebody/digits")
    assert type(again) is DAMC and again.iteration == 3
    for source in ("amortizer", "energy"):
        assert torch.equal(draw(trained, source), draw(again, source))
    x = damc.data.load_images("digits", split="test").batch(torch.arange(5))
    seeds = [torch.Generator().manual_seed(1) for _ in range(2)]
    assert torch.equal(
        trained.reconstruct(x, generator=seeds[0]), again.reconstruct(x, generator=seeds[1])
    )
    # The weights went through LFS, as large files do, the others inside the commit.
    assert any(path.endswith("/objects/batch") for _, path in store.calls)
    assert [method for method, path in store.calls if path.startswith("/lfs/")] == ["PUT"]


def test_the_card_tells_data_command_and_hash(store: Any, trained: DAMC) -> None:
    trained.push_to_hub("somebody/digits", token="right")
    files = store.at("somebody/digits", "main")[1]
    assert set(files) == {"README.md", "config.json", "model.safetensors"}
    card = files["README.md"].decode()
    import hashlib

    assert hashlib.sha256(files["model.safetensors"]).hexdigest() in card
    assert "- name: digits" in card and "damc train digits-small --iterations 3 --seed 0" in card
    assert "| decoder | 25,920 |" in card


def test_without_a_network_the_cache_answers(
    store: Any, trained: DAMC, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained.push_to_hub("somebody/digits", token="right")
    wanted = draw(damc.load("somebody/digits"))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nobody listens there
    assert torch.equal(draw(damc.load("somebody/digits")), wanted)
    with pytest.raises(BadInput, match="source must be a folder, .*got 'somebody/else'"):
        damc.load("somebody/else")


def test_an_older_commit_can_be_asked_for(store: Any, trained: DAMC) -> None:
    trained.push_to_hub("somebody/digits", token="right")
    first = store.at("somebody/digits", "main")[0]
    before = draw(trained)
    with torch.no_grad():
        next(trained.model.decoder.parameters()).add_(0.1)
    trained.push_to_hub("somebody/digits", token="right", message="Changed")
    assert torch.equal(draw(damc.load("somebody/digits", revision=first)), before)
    assert not torch.equal(draw(damc.load("somebody/digits")), before)


def tamper(blob: bytes) -> bytes:
    """The same file with one weight another: still a good safetensors file."""
    return blob[:-1] + bytes([blob[-1] ^ 1])


def test_a_tampered_file_is_refused_by_its_hash(store: Any, trained: DAMC) -> None:
    trained.push_to_hub("somebody/digits", token="right")
    files = store.at("somebody/digits", "main")[1]
    store.tampered["model.safetensors"] = tamper(files["model.safetensors"])
    with pytest.raises(
        BadInput, match=r"model.safetensors must have the sha256 \w{64}, got \w{64}"
    ):
        damc.load("somebody/digits")


def test_weights_and_settings_exchanged_together_are_refused_by_the_hash_of_the_card(
    store: Any, trained: DAMC, tmp_path: Path
) -> None:
    import hashlib

    trained.push_to_hub("somebody/digits", token="right")
    files = store.at("somebody/digits", "main")[1]
    known = hashlib.sha256(files["model.safetensors"]).hexdigest()
    assert damc.load("somebody/digits", sha256=known).iteration == 3
    with torch.no_grad():
        next(trained.model.decoder.parameters()).add_(0.1)
    trained.push_to_hub("somebody/digits", token="right")  # complete, and another model
    assert damc.load("somebody/digits").iteration == 3
    with pytest.raises(BadInput, match=f"must have the sha256 {known}"):
        damc.load("somebody/digits", sha256=known)


def test_refusals_are_one_sentence(
    store: Any, trained: DAMC, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BadInput, match="repository must be one that you may write to"):
        trained.push_to_hub("somebody/digits", token="wrong")
    with pytest.raises(BadInput, match="repository must be 'owner/name', got 'digits'"):
        trained.push_to_hub("digits", token="right")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(BadInput, match=r"pip install 'damc\[hub\]'"):
        download("somebody/digits")


def test_own_networks_go_over_the_hub(store: Any) -> None:
    from torch import nn

    def make(seed: int) -> DAMC:
        torch.manual_seed(seed)
        decoder = nn.Sequential(nn.Linear(3, 64), nn.Tanh(), nn.Unflatten(1, (1, 8, 8)))
        encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 8))
        model = damc.LatentModel(decoder, nn.Linear(3, 1), 3, 0.5)
        return DAMC(model, damc.Amortizer(3, encoder, embedding=8, widths=(8, 8, 8)))

    learner = make(0)
    learner.push_to_hub("somebody/own", token="right")
    with pytest.raises(BadInput, match="networks of your own"):
        damc.load("somebody/own")
    assert torch.equal(draw(learner), draw(damc.load("somebody/own", learner=make(1))))
