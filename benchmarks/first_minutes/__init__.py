"""The first ten minutes of a new user: a fresh environment, the wheel, the demo, a PyTorch model of one's own."""
