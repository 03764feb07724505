"""An embedding as a step of a scikit-learn pipeline: how many components does a probe need?

python examples/scikit_learn_pipeline.py [--smoke]
"""

import sys

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

import nfk.torch
from nfk.sklearn import FisherEmbedding


def trained(X: np.ndarray, y: np.ndarray, steps: int) -> nn.Module:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))
    optimiser = torch.optim.Adam(module.parameters(), 0.01)
    for _ in range(steps):
        optimiser.zero_grad()
        nn.functional.cross_entropy(module(torch.tensor(X)), torch.tensor(y)).backward()
        optimiser.step()
    return module.eval()


def main(smoke: bool) -> None:
    X, y = load_digits(return_X_y=True)
    count = 120 if smoke else len(X)
    X, y = (X[:count] / 16).astype(np.float32), y[:count]

    model = nfk.torch.classifier(trained(X, y, 20 if smoke else 200))
    pipeline = make_pipeline(FisherEmbedding(model), StandardScaler(), LogisticRegression(max_iter=2000))
    ranks = {"fisherembedding__n_components": [2, 4] if smoke else [4, 8, 16, 32]}
    search = GridSearchCV(pipeline, ranks, cv=2 if smoke else 5).fit(X, y)

    found = search.cv_results_
    for row, score in zip(found["params"], found["mean_test_score"], strict=True):
        print(f"{row['fisherembedding__n_components']:3d} components: {score:.1%}")


if __name__ == "__main__":
    main("--smoke" in sys.argv)
