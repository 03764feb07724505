"""One program a contestant: `python -m benchmarks.peers.contestants.NAME JOB.npz` prints one line of JSON."""
