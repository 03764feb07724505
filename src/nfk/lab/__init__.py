"""Data sets, networks and their training: what the demo, the benchmarks and the tests run on. Needs `nfk[lab]`."""
