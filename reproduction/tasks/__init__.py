"""The experiments of `make tasks`: what the embedding is good for, on real data, each beside its baselines."""
