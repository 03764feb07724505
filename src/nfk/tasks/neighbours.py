"""Nearest neighbours in an embedding: search, and whether they belong to the same class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from sklearn.neighbors import NearestNeighbors

from nfk.notebook import Shown
from nfk.tasks.checks import all_classes_known, as_features, as_labels, one_of, same_width, whole
from nfk.tasks.estimates import Estimate, average, proportion

Metric = Literal["cosine", "euclidean"]


@dataclass(frozen=True)
class Neighbours(Shown):
    """Rows of the nearest reference examples for each query, nearest first, and their distances: (n, count)."""

    rows: np.ndarray
    distances: np.ndarray


@dataclass(frozen=True)
class Retrieval(Shown):
    """`accuracy` of the neighbours' vote; `precision`, the mean share of neighbours that have the query's label."""

    accuracy: Estimate
    precision: Estimate
    neighbours: Neighbours


def nearest(reference: Any, queries: Any, count: int = 10, metric: Metric = "cosine") -> Neighbours:
    """The `count` nearest reference examples of every query. n_queries * n_reference * d operations.

    Args:
        reference: the examples that are searched, (n, d).
        queries: the examples whose neighbours are asked for, (m, d).
        count: neighbours for each query.
        metric: "cosine" or "euclidean".
    """
    reference, queries = (
        as_features(n, part, sparse_too=True) for n, part in (("reference", reference), ("queries", queries))
    )
    same_width("queries", queries, "reference", reference.shape[1])
    count = whole("count", count, 1, reference.shape[0], "there are no more reference examples")
    one_of("metric", metric, ("cosine", "euclidean"))
    search = NearestNeighbors(n_neighbors=count, metric=metric, algorithm="brute").fit(reference)
    distances, rows = search.kneighbors(queries)
    return Neighbours(rows, distances)


def retrieval(
    reference: Any, labels: Any, queries: Any, query_labels: Any, count: int = 10, metric: Metric = "cosine"
) -> Retrieval:
    """How well labels travel to neighbours. A tie in the vote goes to the class whose neighbours are nearer.

    Args:
        reference: the examples that are searched, (n, d).
        labels: one for each of them.
        queries: the examples whose neighbours vote, (m, d).
        query_labels: one for each of them.
        count: neighbours for each query.
        metric: "cosine" or "euclidean".
    """
    labels = as_labels("labels", labels, "reference", np.shape(reference)[0])
    query_labels = as_labels("query_labels", query_labels, "queries", np.shape(queries)[0])
    all_classes_known("query_labels", query_labels, labels, "labels")
    found = nearest(reference, queries, count, metric)
    classes, codes = np.unique(labels, return_inverse=True)
    votes = np.zeros((len(found.rows), len(classes)))
    for place in range(count):  # a hair more for the nearer ones: it decides ties and nothing else
        votes[np.arange(len(votes)), codes[found.rows[:, place]]] += 1 + (count - place) / (2.0 * count**2)
    same = labels[found.rows] == query_labels[:, None]
    guesses = classes[np.argmax(votes, axis=1)]
    return Retrieval(proportion(guesses == query_labels), average(same.mean(axis=1)), found)
