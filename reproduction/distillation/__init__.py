"""Knowledge distillation on CIFAR-10 in PyTorch: a WRN-16-2 that others trained teaches a WRN-16-1, by every method."""
