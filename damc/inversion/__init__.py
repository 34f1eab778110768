"""GAN inversion, with the StyleGAN that it inverts."""
