"""nfk against other ways to the same eigenvalues: `python -m benchmarks.peers`."""
