"""Names of settings and measurements in words, for people who read a report."""

from __future__ import annotations

__all__ = ["CURVES", "SETTINGS", "in_words"]

SETTINGS = {
    "learner": "method",
    "preset": "preset",
    "networks.shape": "images: channels, height, width",
    "networks.latent_dim": "latent dimensions",
    "networks.decoder.kind": "decoder: kind",
    "networks.decoder.rows": "decoder: layers",
    "networks.decoder.hidden": "decoder: hidden sizes",
    "networks.decoder.width": "decoder: width",
    "networks.encoder.kind": "encoder: kind",
    "networks.encoder.rows": "encoder: layers",
    "networks.encoder.hidden": "encoder: hidden sizes",
    "networks.encoder.side": "encoder: images averaged down to, pixels",
    "networks.energy.hidden": "energy: hidden sizes",
    "networks.embedding": "size of the encoder's embedding",
    "networks.amortizer.capacity": "denoiser: capacity",
    "settings.decoder_rate": "learning rate of the decoder",
    "settings.energy_rate": "learning rate of the energy",
    "settings.amortizer_rate": "learning rate of the amortizer",
    "settings.amortizer_weight_decay": "weight decay of the amortizer",
    "settings.beta1": "Adam's beta 1",
    "settings.decay": "how learning rates fall",
    "settings.horizon": "iterations that the schedules are made for",
    "settings.clip": "largest gradient norm",
    "settings.sigma": "sigma, standard deviation of the likelihood",
    "settings.posterior_steps": "moves of a posterior chain",
    "settings.posterior_step_size": "step size of posterior chains",
    "settings.posterior_kernel": "kernel of posterior chains",
    "settings.decoder_updates": "decoder updates in an iteration",
    "settings.prior_steps": "moves of a prior chain",
    "settings.prior_step_size": "step size of prior chains",
    "settings.energy_penalty": "weight of the penalty on energies",
    "settings.prior_sample_steps": "prior moves when images are drawn",
    "settings.prior_sample_step_size": "their step size",
    "settings.updates": "amortizer updates in an iteration",
    "settings.encoder_updates": "of which train its encoder",
    "settings.p_uncond": "share learned without the image",
    "settings.unconditional": "how q(z) is learned",
    "settings.test_steps": "posterior moves at test time",
    "settings.start_solver": "how starts of chains are drawn",
    "settings.start_steps": "steps of that",
    "settings.prior_starts": "where prior chains start",
    "settings.noise_negatives": "prior chains from N(0, I) too",
    "settings.ema_rate": "rate of the averaged amortizer",
    "settings.ema_every": "iterations between averages",
    "settings.store": "posterior samples that q(z) learns from",
    "settings.store_components": "Gaussians that q(z) begins as",
    "settings.store_scales": "spreads of each of them",
    "settings.store_updates": "updates of q(z) in an iteration",
    "settings.store_energy_updates": "further updates of the energy in an iteration",
    "settings.store_batch": "samples in each of them",
    "settings.store_rate": "learning rate of q(z)",
    "settings.warm_up": "share of iterations that auto-encode first",
    "settings.warm_up_batch": "images in an update of the auto-encoder",
    "settings.warm_up_rate": "its learning rate",
    "settings.warm_up_variational": "its codes are draws",
    "settings.decoder_penalty": "weight of the decoder's squared dense weights in its loss",
    "settings.linear_start": "networks begin as principal components",
    "settings.centered": "q(z | x) around a learned mean",
    "data.name": "data",
    "data.count": "training images",
    "data.shape": "images: channels, height, width",
    "data.heldout": "class held out",
    "data.resize": "images resized",
    "data.reading.background": "under transparent pixels",
    "data.reading.value_range": "values that are black and white",
    "data.reading.bits": "bits used by files of 16",
    "data.reading.skip_corrupt": "unreadable pictures left out",
    "data.test_fraction": "share of images held out",
    "data.division": "hash of the division",
    "training.batch": "images in an iteration",
    "training.seed": "seed",
    "training.flip": "images mirrored",
    "training.shift": "images moved, pixels at most",
}
"""Settings of a run by their dotted names, without the leading "config."."""

CURVES = {
    "mse": "training MSE per pixel",
    "displacement": "distance moved by posterior chains",
    "log_prob_start": "log posterior, start of chains",
    "log_prob": "log posterior, end of chains",
    "z_norm": "mean square of z",
    "decoder_gradient": "gradient norm, decoder",
    "amortizer_loss": "loss of the amortizer",
    "amortizer_gradient": "gradient norm, amortizer",
    "prior_sampler_loss": "loss of q(z)",
    "energy_positive": "energy of posterior samples",
    "energy_difference": "energy, posterior minus prior samples",
    "energy_gradient": "gradient norm, energy",
}
"""What is logged in training, by name."""


def in_words(name: str) -> str:
    """A setting in words, by its dotted name.

    Example:
        >>> in_words("config.settings.sigma"), in_words("config.settings.new_one")
        ('sigma, standard deviation of the likelihood', 'new one')
    """
    known = SETTINGS.get(name.removeprefix("config."))
    return known or name.rpartition(".")[2].replace("_", " ")
