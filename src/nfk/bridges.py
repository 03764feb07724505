"""Modules of flax nnx and of equinox as plain functions: f(params, x) for one example, and the parameters.

    model = nfk.classifier(*nfk.from_nnx(module))

Only a module in its evaluation mode is a function of one example; any other is an error that names the layer. What is
not a parameter (batch statistics, random state) is compiled in as constants. Weights that are large and shall not take
part are better left as parameters and out of the kernel: nfk.classifier(*nfk.from_nnx(module), parameters="head/*").
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import jax

Method = str | Callable | None
Bridge = tuple[Callable, Any]


def from_nnx(module: Any, *, method: Method = None, batched: bool = True) -> Bridge:
    """`(apply, params)` with `apply(params, example, *rest)` = module(example[None], *rest)[0].

    `params` are the `nnx.Param` of the module as nested dicts (paths such as conv1/kernel). `method` names another
    method than `__call__`, or is a function of (module, example, *rest), so that `nfk.vae(*nfk.from_nnx(module,
    method="elbo"))` passes its key on. `batched=False` is for a method of one example.

    Args:
        module: a trained `nnx.Module` in eval mode.
        method: the name of a method, or a function of (module, example, ...); None is `__call__`.
        batched: whether the method takes a batch; it is then given batches of one.
    """
    try:
        from flax import nnx
    except ImportError as error:
        raise ImportError("nfk.from_nnx needs flax: pip install flax") from error
    if not isinstance(module, nnx.Module):
        raise TypeError(f"nfk.from_nnx takes a flax.nnx.Module, not a {type(module).__name__}")
    _check_nnx(nnx.iter_modules(module))
    definition, params, rest = nnx.split(module, nnx.Param, ...)
    call = _caller(module, method, batched)
    return lambda params, *arguments: call(nnx.merge(definition, params, rest), *arguments), nnx.to_pure_dict(params)


def _check_nnx(layers: Iterable[tuple[tuple, Any]]) -> None:
    for path, layer in layers:
        place = f"{'/'.join(map(str, path)) or 'module'} ({type(layer).__name__})"
        if getattr(layer, "use_running_average", True) is not True:
            raise ValueError(
                f"{place} has use_running_average={layer.use_running_average}, so the score of an example depends on "
                "its batch: call module.eval() first"
            )
        rate = getattr(layer, "rate", getattr(layer, "dropout_rate", 1.0))
        if getattr(layer, "deterministic", True) is not True and rate > 0:
            raise ValueError(
                f"{place} has deterministic={layer.deterministic}, so the score of an example is random: call "
                "module.eval() first"
            )


def from_equinox(module: Any, *, method: Method = None, batched: bool = False) -> Bridge:
    """`(apply, params)` with `apply(params, example, *rest)` = module(example, *rest).

    `params` are the floating-point arrays of the module (`eqx.is_inexact_array`); `method` as for `from_nnx`.
    `batched=True` is for a method that takes a batch.

    Args:
        module: a trained equinox module, after `eqx.nn.inference_mode`.
        method: the name of a method, or a function of (module, example, ...); None is `__call__`.
        batched: whether the method takes a batch; it is then given batches of one.
    """
    try:
        import equinox as eqx
    except ImportError as error:
        raise ImportError("nfk.from_equinox needs equinox: pip install 'nfk[equinox]'") from error
    if not isinstance(module, eqx.Module):
        raise TypeError(f"nfk.from_equinox takes an equinox.Module, not a {type(module).__name__}")
    _check_equinox(module)
    params, rest = eqx.partition(module, eqx.is_inexact_array)
    call = _caller(module, method, batched)
    return lambda params, *arguments: call(eqx.combine(params, rest), *arguments), params


def _check_equinox(module: Any) -> None:
    """No layer has `inference=False`, but for a dropout that drops nothing."""
    layers = jax.tree_util.tree_flatten_with_path(module, is_leaf=lambda part: hasattr(part, "inference"))[0]
    for path, layer in layers:
        if getattr(layer, "inference", True) is False and getattr(layer, "p", 1.0) > 0:
            place = jax.tree_util.keystr(path, simple=True, separator="/") or "module"
            raise ValueError(
                f"{place} ({type(layer).__name__}) has inference=False, so the score of an example is random or "
                "depends on its batch: pass eqx.nn.inference_mode(module)"
            )


def _caller(module: Any, method: Method, batched: bool) -> Callable:
    """function(module, example, *rest) for one example."""
    if isinstance(method, str) and not callable(getattr(module, method, None)):
        raise ValueError(f"method={method!r} is no method of {type(module).__name__}: name one, or pass a function")
    if method is not None and not isinstance(method, str) and not callable(method):
        raise TypeError(f"method={method!r} must be a name, or a function of (module, example)")

    def run(module: Any, example: Any, *rest: Any) -> Any:
        if callable(method):
            return method(module, example, *rest)
        return getattr(module, method or "__call__")(example, *rest)

    if not batched:
        return run

    def run_batch_of_one(module: Any, example: Any, *rest: Any) -> Any:
        outputs = run(module, jax.tree.map(lambda leaf: leaf[None], example), *rest)
        return jax.tree.map(lambda leaf: leaf[0], outputs)

    return run_batch_of_one
