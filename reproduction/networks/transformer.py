"""A causal transformer over tokens: words of a sentence, or the grey levels of an image."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx


class CausalTransformer(nnx.Module):
    """log p(t_1 ... t_n) = sum of log p(t_i | t_1 ... t_{i-1}), exact in one forward pass.

    Token `vocabulary` is the start, which only the network sees. Tokens after a sentence's end (mask 0) neither
    count nor are looked at, so padding changes nothing.
    """

    def __init__(
        self, vocabulary: int, length: int, width: int = 32, layers: int = 2, heads: int = 4, hidden: int | None = None,
        *, rngs: nnx.Rngs,
    ) -> None:  # fmt: skip
        self.tokens = nnx.Embed(vocabulary + 1, width, rngs=rngs)
        self.places = nnx.Param(0.02 * jax.random.normal(rngs.params(), (length, width)))
        self.layers = nnx.List([Layer(width, heads, hidden or 2 * width, rngs=rngs) for _ in range(layers)])
        self.norm = nnx.LayerNorm(width, rngs=rngs)
        self.head = nnx.Linear(width, vocabulary, rngs=rngs)
        self.vocabulary, self.length = vocabulary, length

    def hidden(self, tokens: jax.Array) -> jax.Array:
        """The state from which token i is predicted, having seen those before it: (n, length, width)."""
        start = jnp.full((len(tokens), 1), self.vocabulary)
        seen = jnp.concatenate([start, tokens[:, :-1]], axis=1)
        states = self.tokens(seen) + self.places[: tokens.shape[1]]
        for layer in self.layers:
            states = layer(states)
        return self.norm(states)

    def token_log_probs(self, tokens: jax.Array) -> jax.Array:
        """log p(t_i | before): (n, length)."""
        predicted = nnx.log_softmax(self.head(self.hidden(tokens)))
        return jnp.take_along_axis(predicted, tokens[..., None], axis=-1)[..., 0]

    def log_prob(self, tokens: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        """Nats per sequence: (n,)."""
        each = self.token_log_probs(tokens)
        return jnp.sum(each if mask is None else jnp.where(mask > 0, each, 0), axis=-1)

    def sample(self, key: jax.Array, count: int, length: int | None = None) -> jax.Array:
        """Token by token: a forward pass each."""
        length = length or self.length

        def draw(place: jax.Array, tokens: jax.Array) -> jax.Array:
            logits = self.head(self.hidden(tokens)[:, place])
            drawn = jax.random.categorical(jax.random.fold_in(key, place), logits)
            return tokens.at[:, place].set(drawn)

        return jax.lax.fori_loop(0, length, draw, jnp.zeros((count, length), jnp.int32))


class Layer(nnx.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)); a position looks at itself and at those before it."""

    def __init__(self, width: int, heads: int, hidden: int, *, rngs: nnx.Rngs) -> None:
        self.norm1, self.norm2 = nnx.LayerNorm(width, rngs=rngs), nnx.LayerNorm(width, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(heads, width, decode=False, rngs=rngs)
        self.dense1 = nnx.Linear(width, hidden, rngs=rngs)
        self.dense2 = nnx.Linear(hidden, width, rngs=rngs)

    def __call__(self, states: jax.Array) -> jax.Array:
        causal = nnx.make_causal_mask(states[..., 0])
        states = states + self.attention(self.norm1(states), mask=causal)
        return states + self.dense2(nnx.gelu(self.dense1(self.norm2(states))))
