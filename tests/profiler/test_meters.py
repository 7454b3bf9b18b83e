"""Does every missing reading give its reason?"""

from __future__ import annotations

import pytest

from profiler.records.reading import Unavailable, reason_of


def test_a_reason_is_a_sentence() -> None:
    with pytest.raises(ValueError, match="needs a reason"):
        Unavailable(" ")
    assert reason_of(RuntimeError()) == "RuntimeError"
