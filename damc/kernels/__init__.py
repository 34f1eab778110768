"""MCMC kernels: state in, (state, info) out; one file each."""
