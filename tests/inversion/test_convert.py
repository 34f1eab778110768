"""Published weights: read without running them, fitted key by key, made safetensors once."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from damc.cli import main
from damc.errors import BadInput
from damc.inversion.checkpoint import read_checkpoint
from damc.inversion.convert import convert
from damc.inversion.stylegan import StyleDecoder, load_style_decoder
from damc.inversion.stylegan_encoder import StyleEncoder, load_style_encoder
from damc.inversion.vgg import VGG16, load_vgg16

State = dict[str, Tensor]


def decoder(**changes: Any) -> StyleDecoder:
    sizes: dict[str, Any] = {
        "resolution": 16,
        "latent_dim": 6,
        "style": 8,
        "base": 120,
        "widest": 12,
    }
    net = StyleDecoder(**{**sizes, "mapping_layers": 2, **changes})
    net.truncation.w_avg.normal_()
    return net


def encoder() -> StyleEncoder:
    net = StyleEncoder(16, style=4, base=4, widest=8)
    net(torch.randn(8, 3, 16, 16))  # moves the running statistics
    return net.eval()


def vgg() -> VGG16:
    return VGG16(width=2)


# name: the network, its loader, an input of it, and what the command calls it
NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[..., Any], tuple[int, ...], str]] = {
    "decoder": (decoder, load_style_decoder, (3, 6), "StyleGAN decoder"),
    "encoder": (encoder, load_style_encoder, (3, 3, 16, 16), "in-domain encoder"),
    "vgg16": (vgg, load_vgg16, (3, 3, 16, 16), "VGG16"),
}


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_file_and_its_conversion_compute_the_same(
    name: str, zipped: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build, load, shape, words = NETWORKS[name]
    net = build()
    path = tmp_path / f"{name}.pth"
    torch.save(net.state_dict(), path, _use_new_zipfile_serialization=zipped)
    x = torch.randn(shape)
    assert torch.equal(load(path)(x), net(x))
    assert main(["convert", str(path)]) == 0
    out = tmp_path / f"{name}.safetensors"
    assert capsys.readouterr().out.startswith(f"{out}  {words}: {len(net.state_dict())} tensors")
    assert torch.equal(load(out)(x), net(x))
    stored = safetensors.torch.load_file(out)
    assert stored.keys() == net.state_dict().keys()
    assert all(torch.equal(stored[key], value) for key, value in net.state_dict().items())
    assert not load(out).training
    again = tmp_path / "again.safetensors"
    assert main(["convert", str(out), "--out", str(again)]) == 0
    assert again.read_bytes() == out.read_bytes()


@pytest.mark.parametrize(
    "changes",
    [
        {"resolution": 8},
        {"resolution": 32, "channels": 1, "base": 100},
        {"resolution": 16, "fused_from": 8},
        {"resolution": 128, "base": 256, "widest": 4},
        {"resolution": 128, "base": 256, "widest": 4, "fused_from": 4096},
        {"base": 16, "widest": 3, "mapping_layers": 1},
        {"base": 10**6, "widest": 5, "latent_dim": 1, "style": 1},
    ],
)
def test_sizes_are_read_off_the_tensors(changes: dict[str, Any], tmp_path: Path) -> None:
    net = decoder(**changes)
    torch.save(net.state_dict(), tmp_path / "g.pth")
    loaded = load_style_decoder(tmp_path / "g.pth")
    z = torch.randn(2, net.mapping.latent_dim)
    assert torch.equal(loaded(z), net(z))
    frozen = {name: p.requires_grad for name, p in net.named_parameters()}
    assert {name: p.requires_grad for name, p in loaded.named_parameters()} == frozen


def test_truncation_is_given_and_not_read(tmp_path: Path) -> None:
    net = decoder(truncation=0.5, truncated_layers=2)
    state = net.state_dict()
    z = torch.randn(2, 6)
    for change in (lambda: None, lambda: state.pop("truncation.truncation")):
        change()
        torch.save(state, tmp_path / "g.pth")
        loaded = load_style_decoder(tmp_path / "g.pth", truncation=0.5, truncated_layers=2)
        assert torch.equal(loaded(z), net(z))
        usual = load_style_decoder(tmp_path / "g.pth")
        assert torch.equal(usual(z, truncate=False), net(z, truncate=False))
        assert not torch.equal(usual(z), net(z))
        assert usual.truncation.truncation.flatten().tolist() == pytest.approx([0.7] * 6)


def test_a_file_without_batch_counts_is_read(tmp_path: Path) -> None:
    net = encoder()
    state = {key: t for key, t in net.state_dict().items() if "num_batches" not in key}
    torch.save(state, tmp_path / "e.pth")
    x = torch.randn(2, 3, 16, 16)
    assert torch.equal(load_style_encoder(tmp_path / "e.pth")(x), net(x))


def test_other_precisions_become_that_of_the_network(tmp_path: Path) -> None:
    net = decoder()
    state = {key: value.double() for key, value in net.state_dict().items()}
    torch.save(
        OrderedDict((key, nn.Parameter(value)) for key, value in state.items()), tmp_path / "g"
    )
    z = torch.randn(2, 6)
    assert torch.equal(load_style_decoder(tmp_path / "g")(z), net(z))


# --- files that do not fit


def drop(key: str) -> Callable[[State], Any]:
    return lambda state: state.pop(key)


def put(key: str, value: Tensor) -> Callable[[State], Any]:
    return lambda state: state.update({key: value})


def cut_short(state: State) -> None:
    for key in list(state)[40:]:
        del state[key]


FAULTS: dict[str, tuple[str, Callable[[State], Any], str]] = {
    "missing": (
        "decoder",
        drop("synthesis.layer3.epilogue.bias"),
        "must have the key synthesis.layer3.epilogue.bias of shape (12,) for the StyleGAN decoder "
        "of 16 pixels, got no such key",
    ),
    "cut short": (
        "decoder",
        cut_short,
        "must have the key synthesis.",
    ),
    "wrong shape": (
        "decoder",
        put("synthesis.layer3.conv.weight", torch.zeros(99, 12, 3, 3)),
        "must have the key synthesis.layer3.conv.weight of shape (12, 12, 3, 3) for the StyleGAN "
        "decoder of 16 pixels, got (99, 12, 3, 3)",
    ),
    "wrong average": (
        "decoder",
        put("truncation.w_avg", torch.zeros(9)),
        "must have the key truncation.w_avg of shape (8,) for the StyleGAN decoder of 16 pixels, "
        "got (9,)",
    ),
    "wrong code": (
        "encoder",
        put("block3.fc.weight", torch.zeros(100, 128)),
        "must have the key block3.fc.weight of shape (24, 128) for the in-domain encoder of 16 "
        "pixels, got (100, 128)",
    ),
    "not finite": (
        "decoder",
        put("synthesis.layer0.const", torch.full((1, 12, 4, 4), float("nan"))),
        "must have finite values at the key synthesis.layer0.const",
    ),
    "whole numbers": (
        "vgg16",
        put("layer2.bias", torch.zeros(2, dtype=torch.int64)),
        "must have the key layer2.bias of torch.float32, got torch.int64",
    ),
    "surplus": (
        "encoder",
        put("block1.conv3.weight", torch.zeros(1)),
        "must have the keys of the in-domain encoder of 16 pixels only, got the key "
        "block1.conv3.weight",
    ),
    "still growing": (
        "decoder",
        put("synthesis.lod", torch.tensor(1.5)),
        "must have synthesis.lod 0, a fully grown decoder, got 1.5",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_first_key_that_does_not_fit_is_named(
    fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, spoil, sentence = FAULTS[fault]
    build, load, *_ = NETWORKS[name]
    state = dict(build().state_dict())
    spoil(state)
    path = tmp_path / f"{name}.pth"
    torch.save(state, path)
    with pytest.raises(BadInput) as error:
        load(path)
    assert str(error.value).startswith(f"{path} {sentence}")
    assert "\n" not in str(error.value)
    assert main(["convert", str(path)]) == 2
    assert capsys.readouterr().err.strip() == f"damc: {error.value}"
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_another_architecture_is_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "other.pth"
    torch.save({"style.1.weight": torch.zeros(2), "input.input": torch.zeros(2)}, path)
    with pytest.raises(BadInput, match="must hold the weights.*got the key 'style.1.weight'"):
        convert(path)
    with pytest.raises(
        BadInput, match="the key mapping.dense0.fc.weight .*256 pixels, got no such"
    ):
        load_style_decoder(path)
    with pytest.raises(BadInput, match="the key block0.conv.weight .*256 pixels, got no such"):
        load_style_encoder(path)
    torch.save({}, path)
    with pytest.raises(BadInput, match="got no tensors"):
        convert(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"generator": {"a": torch.zeros(1)}}, "a dict under the key 'generator'"),
        ({3: torch.zeros(1)}, "a Tensor under the key 3"),
        (
            {"a": torch.zeros(2, 2).to_sparse()},
            "must hold dense tensors by name, got a Tensor under the key 'a'",
        ),
        (
            {"a": torch.zeros(2, device="meta")},
            "must hold dense tensors by name, got a Tensor under the key 'a'",
        ),
        ([torch.zeros(1)], "must hold a state dict of tensors, got list"),
        (torch.zeros(1), "must hold a state dict of tensors, got Tensor"),
    ],
)
def test_what_is_no_state_dict_is_refused(content: Any, words: str, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "a.pth")
    with pytest.raises(BadInput, match=words):
        read_checkpoint(tmp_path / "a.pth")


class Trap:
    """What a pickle does when it is opened without care."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("zipped", [True, False])
def test_code_in_a_file_is_never_run(zipped: bool, tmp_path: Path) -> None:
    path, sprung = tmp_path / "trap.pth", tmp_path / "sprung"
    torch.save({"a": Trap(sprung)}, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(BadInput, match="objects other than tensors, which damc does not"):
        convert(path)
    assert not sprung.exists()
    torch.load(path, weights_only=False)
    assert sprung.exists()  # so the trap was a real one


@pytest.mark.parametrize("zipped", [True, False])
def test_a_damaged_file_gives_one_sentence(zipped: bool, tmp_path: Path) -> None:
    path = tmp_path / "vgg16.pth"
    torch.save(VGG16(width=1).state_dict(), path, _use_new_zipfile_serialization=zipped)
    whole = path.read_bytes()
    for part in (0, 1, 3, 10, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:part])
        with pytest.raises(
            BadInput, match=r"state dict.*is truncated or was not written by torch\.save"
        ):
            load_vgg16(path)
    for at in range(0, len(whole), len(whole) // 60):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        try:
            load_vgg16(path)  # a flipped bit of a weight cannot be seen
        except BadInput as error:
            assert "\n" not in str(error)
    path.write_bytes(b"<html>404 not found</html>")
    with pytest.raises(BadInput, match="is truncated or was not written by torch.save"):
        load_vgg16(path)


def test_a_damaged_safetensors_file_gives_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "vgg16.safetensors"
    safetensors.torch.save_file(VGG16(width=1).state_dict(), path)
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(BadInput, match="truncated or another kind of file"):
        load_vgg16(path)


def test_what_is_on_the_disk_is_not_harmed(tmp_path: Path) -> None:
    path, out = tmp_path / "vgg16.pth", tmp_path / "vgg16.safetensors"
    torch.save(VGG16(width=1).state_dict(), path)
    convert(path)
    before = out.stat()
    assert convert(path).path == out  # the same content again is accepted
    assert out.stat().st_mtime_ns == before.st_mtime_ns
    out.write_bytes(b"something else")
    with pytest.raises(BadInput, match="must be a new file, got .* which has other content"):
        convert(path)
    assert out.read_bytes() == b"something else"
    with pytest.raises(BadInput, match=r"must have the suffix \.safetensors"):
        convert(path, tmp_path / "vgg16.bin")
    with pytest.raises(BadInput, match="got no file at"):
        convert(tmp_path / "none.pth")
    (tmp_path / "folder.safetensors").mkdir()
    with pytest.raises(BadInput, match="could not write"):
        convert(path, tmp_path / "folder.safetensors")
    assert convert(path, tmp_path / "new" / "vgg.safetensors").path.is_file()


@pytest.mark.slow
def test_the_256_pixel_decoder_goes_to_safetensors_and_back(tmp_path: Path) -> None:
    net = StyleDecoder()
    torch.save(net.state_dict(), tmp_path / "styleganinv_ffhq256_generator.pth")
    done = convert(tmp_path / "styleganinv_ffhq256_generator.pth")
    buffers = sum(buffer.numel() for buffer in net.buffers())
    assert done.numbers == 29_500_758 + buffers
    z = torch.randn(1, 512)
    with torch.no_grad():
        x = net(z)
        assert x.shape == (1, 3, 256, 256) and x.abs().max() <= 1
        assert torch.equal(load_style_decoder(done.path)(z), x)
