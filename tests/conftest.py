"""How do the tests run: which examples does hypothesis draw, and what happens without a GPU?"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "repeatable",
    derandomize=True,
    deadline=None,
    max_examples=25,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("repeatable")


def pytest_configure(config: pytest.Config) -> None:
    """Declare the one marker."""
    config.addinivalue_line("markers", "gpu: needs a CUDA device; skipped with a reason without")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a GPU where there is none; torch is imported only if anything asks."""
    wanting = [item for item in items if item.get_closest_marker("gpu")]
    reason = _why_no_gpu() if wanting else None
    if reason is not None:
        for item in wanting:
            item.add_marker(pytest.mark.skip(reason=reason))


def _why_no_gpu() -> str | None:
    try:
        import torch
    except ImportError as error:
        return f"torch: {error}"
    return None if torch.cuda.is_available() else "torch.cuda: no CUDA device is available"
