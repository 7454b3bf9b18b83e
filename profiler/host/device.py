"""The devices and element types that a name stands for, and the precision of fp32 on them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext

import torch

from profiler.records.element_types import SHORT
from profiler.records.reading import MeasureError

DTYPES: Mapping[str, torch.dtype] = {short: getattr(torch, name) for name, short in SHORT.items()}

FIRST_IN_THREAD = "Attempting to run cu(BLAS|FFT), but there was no current CUDA context"
"""A harmless warning: torch creates the missing context in its thread of the backward pass."""


@contextmanager
def on_device(device: str | torch.device) -> Iterator[None]:
    """A context in which a GPU is torch's current device, fp32 work is done in fp32, and torch's
    warning about the first call in a thread is ignored, even if warnings are errors."""
    place = torch.device(device)
    there = torch.cuda.device(place) if place.type == "cuda" else nullcontext()
    with there, full_precision(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=FIRST_IN_THREAD)
        yield


@contextmanager
def full_precision() -> Iterator[None]:
    """A context in which all fp32 work is done in fp32.

    By default torch computes matrix products in fp32, but lets cuDNN round the operands of
    convolutions and recurrent layers to TF32.
    """
    before = torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision()
    try:
        set_precision(False, "highest")
        yield
    finally:
        set_precision(*before)


def set_precision(tf32: bool, products: str) -> None:
    """Set whether cuDNN may round to TF32, and the precision of matrix products. The warning of
    newer versions of torch is ignored: older versions lack the API that it recommends."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Please use the new API settings")
        torch.backends.cudnn.allow_tf32 = tf32
        torch.set_float32_matmul_precision(products)


def default_device() -> str:
    """The name of the default device: cuda if torch finds a GPU, else cpu."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def kind_of_device(name: str) -> torch.device:
    """The torch device that `name` stands for, a CPU or CUDA device, present or not; MeasureError
    for other types of device."""
    try:
        place = torch.device(name)
    except RuntimeError:
        raise MeasureError(f"unknown device '{name}': expected cpu, cuda or cuda:N") from None
    if place.type not in ("cpu", "cuda"):
        raise MeasureError(f"device '{name}' is not measured: expected cpu, cuda or cuda:N")
    return place


def device_name(name: str | None) -> str:
    """Check the name of a device, and return it as torch writes it; for None the GPU where there is
    one, else cpu. MeasureError if the device is not present, or neither a CPU nor a CUDA device."""
    if name is None:
        return default_device()
    place = kind_of_device(name)
    if place.type == "cuda" and not torch.cuda.is_available():
        raise MeasureError("device 'cuda' was asked for, but torch finds no NVIDIA GPU: use cpu")
    if place.type == "cuda" and (place.index or 0) >= torch.cuda.device_count():
        found = torch.cuda.device_count()
        known = " or ".join(f"cuda:{place}" for place in range(found))
        raise MeasureError(f"there is no '{name}': torch finds {found} GPUs: use {known}")
    return str(place)
