"""A plain transcription of the paper's pseudocode, which tests and benchmarks compare with."""
