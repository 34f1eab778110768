"""The diffusion model of vectors: noise schedule, denoiser, sampling."""
