"""Two networks trained here in PyTorch, for the rows that no published weights fill: a CIFAR-10 VAE and an SVHN critic.

    from reproduction.own import load
    critic = load("svhn-dcgan-critic")
    embedding = nfk.fit(critic.model(), critic.inputs(images), rank=64)

`python -m reproduction.own NAME` trains them again; the weights come with this project.
"""

from reproduction.own.weights import OWN, load, untrained

__all__ = ["OWN", "load", "untrained"]
