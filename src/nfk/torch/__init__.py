"""The constructors of `nfk` for PyTorch: score(x) = function(module, x), with derivatives by `torch.func`.

    embedding = nfk.fit(nfk.torch.classifier(module.eval()), X, rank=128)

Per-example gradients are taken by plain autograd under vmap, with a formula for each common layer (`layers`),
normalised in torch and written where they stay; what has no formula is taken by vmap(grad).

`module` is a trained `torch.nn.Module` in eval mode. All its parameters take part, whether or not they require
gradients (of a large model of words all but its tables), unless `parameters=` chooses ("*/weight", say; `fc.weight` has
the path `fc/weight`); tied weights count once; buffers are constants; half precision is read as float32. Nothing is
copied but that: a module that is trained on, or put in training mode, after a model was made of it is found at the next
use and is an error. Where the module is not on the CPU, its gradients and blocks stay on its device (`space`).

A function takes ONE example, without a batch axis; floating-point examples come in the precision of the parameters.
"""

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError("nfk.torch needs PyTorch: pip install 'nfk[torch]'") from error

from nfk.torch.calling import output
from nfk.torch.constructors import classifier, density, diffusion, encoder, energy, gan, language_model, network, vae
from nfk.torch.module import TorchNetwork
from nfk.torch.tensors import arrays

__all__ = [
    "TorchNetwork", "arrays", "classifier", "density", "diffusion", "encoder", "energy", "gan", "language_model",
    "network", "output", "vae",
]  # fmt: skip
