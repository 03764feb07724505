"""Benchmarks: they print JSON, compare side by side in one process, and report medians and ratios."""
