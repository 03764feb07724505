from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

# Before jax and numpy start. Eight simulated devices, as a machine with accelerators has. Most of a test's time is
# compilation, and most of that code generation for what runs once: it is as plain as can be, XLA's own passes are not.
# `XLA_FLAGS=--xla_force_host_platform_device_count=8 make test` is a run with all of them.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0 "
    "--xla_llvm_disable_expensive_passes=true --xla_cpu_use_fusion_emitters=false "
    "--xla_cpu_parallel_codegen_split_count=1",  # in one piece: a program here is too small to be cut up
)
# Nor does a program carry the stack of every line of it.
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")
# One thread of BLAS for each worker: with as many as there are cores, the workers' threads wait for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
# The same plans on every machine.
os.environ.setdefault("NFK_RATES", "typical")

# A shell's background, or nohup, has its programs ignore Ctrl-C; the tests of it need it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import jax
import numpy as np
import pytest
from registry import CASES, Case

# Files and folders of what stands around the library. A test elsewhere that starts programs of its own has the mark.
AROUND = {
    "commands", "test_choices", "test_code_metrics", "test_demo", "test_distributed", "test_docs", "test_examples",
    "test_notebook", "test_package", "test_progress", "test_report", "test_report_page", "test_torch_processes",
}  # fmt: skip


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A file whose tests are all left out is not imported, nor are the libraries that it needs."""
    left_out = {mark for mark in ("around", "reproduction") if f"not {mark}" in config.option.markexpr.split(" and ")}
    if "around" in left_out and {collection_path.stem, collection_path.parent.name} & AROUND:
        return True
    if collection_path.suffix == ".py" and "reproduction" in left_out:
        return "\npytestmark = pytest.mark.reproduction\n" in collection_path.read_text() or None
    return None


def pytest_collection_finish() -> None:
    """What was imported stays: the garbage collector need not look at a million objects again and again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of one model of the registry, or of one family, go to one worker: what they share is compiled once."""
    for item in items:
        if AROUND & {item.path.stem, item.path.parent.name}:
            item.add_marker(pytest.mark.around)
        params = getattr(item, "callspec", None) and item.callspec.params
        if params and (model := params.get("case") or params.get("double")):
            item.add_marker(pytest.mark.xdist_group(f"{model} {params.get('dtype', 'float64')}"))
        elif params and (family := params.get("family")):
            item.add_marker(pytest.mark.xdist_group(family.label))


@pytest.fixture(params=["float32", "float64"])
def dtype(request):
    """Each precision in turn; float64 with jax's 64-bit types switched on."""
    if request.param == "float32":
        yield np.dtype(np.float32)
    else:
        with jax.enable_x64(True):
            yield np.dtype(np.float64)


@pytest.fixture(params=list(CASES))
def case(request, dtype) -> Case:
    return CASES[request.param](dtype)


# One of each kind that treats moments, noise, outputs or pytrees in its own way.
KINDS = (
    "classifier_mlp", "classifier_undamped", "classifier_unnormalised", "classifier_identity_centred", "gan", "vae",
    "density_sequences", "network_three_outputs",
)  # fmt: skip


@pytest.fixture(params=KINDS)
def double(request) -> Iterator[Case]:
    """A model of each kind in float64 alone."""
    with jax.enable_x64(True):
        yield CASES[request.param](np.dtype(np.float64))


@pytest.fixture
def close(dtype):
    """Compare with a tolerance that suits the precision, relative to the largest entry."""
    tolerance = 2e-4 if dtype == np.float32 else 1e-9

    def check(actual, expected, factor: float = 1.0):
        actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
        scale = np.abs(expected).max() or 1.0
        np.testing.assert_allclose(actual / scale, expected / scale, rtol=0, atol=tolerance * factor)

    return check
