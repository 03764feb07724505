"""The operator V (rows x P) of a model over a data set: its moments, and two engines that apply it."""
