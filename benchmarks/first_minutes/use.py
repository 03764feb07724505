"""Three lines, and two of use."""

import numpy as np
from mine import model

import nfk

images = np.load("images.npy")
embedding = nfk.fit(model(), images[:1000], rank=32)
E = embedding(images[1000:])  # (1000, 32): features for whatever comes next
print(embedding)
print("most like image 1000:", nfk.tasks.nearest(embedding.training, E[:1], count=5).rows[0].tolist())
