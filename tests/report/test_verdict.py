"""What a run's numbers mean, in a sentence."""

from __future__ import annotations

import torch

from damc.report.verdict import verdict

HELD = {"evaluated_on": "held-out images", "mean_image_mse": 0.4}


def test_the_mean_image_is_the_baseline() -> None:
    assert verdict({**HELD, "mse": 0.4}).startswith("Not trained: the model leaves 100%")
    assert verdict({**HELD, "mse": 0.3}).startswith("Weak: the model leaves 75% of the mean")
    said = verdict({**HELD, "mse": 0.1})
    assert said == "Learned: the model leaves 25% of the mean image's error on held-out images."


def test_errors_that_are_small_in_training_alone_are_named() -> None:
    said = verdict({**HELD, "mse": 0.3}, training_mse=0.05)
    assert "6.0 times as much there as on training images: more images would help" in said
    assert "6.0" not in verdict({**HELD, "mse": 0.3}, training_mse=0.29)


def test_energies_of_samples_are_compared_with_data() -> None:
    energies = {"data": torch.tensor([0.0, 1, 2]), "amortizer": torch.tensor([0.5, 1, 1.5])}
    table = {**HELD, "mse": 0.1}
    assert "Samples have the energies of data" in verdict(table, energies)
    said = verdict(table, {**energies, "energy": torch.tensor([5.0, 5]), "gaussian": data(99)})
    assert "Samples from energy (+4.0) do not have the energies of data" in said
    assert "gaussian" not in said


def test_what_was_not_tried_gets_no_verdict() -> None:
    assert verdict({}).startswith("No verdict: the method reconstructs no images")
    seen = {"evaluated_on": "training images", "mse": 0.1, "mean_image_mse": 0.4}
    assert "all were trained on" in verdict(seen)


def data(value: float) -> torch.Tensor:
    return torch.full((4,), value)
