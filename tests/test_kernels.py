"""Are operations and bytes of a fused kernel those of its equations?"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import costmodel as cm
from costmodel.errors import Unanswered
from costmodel.prediction.kernels import KERNELS
from costmodel.program.phases import iteration_domains
from costmodel.questions.subject import system_of
from costmodel.questions.traffic import moved_by, traffic

SIZES = {"l": 5, "d": 8, "n": 4, "g": 2, "t": 5, "w": 3, "K": 4, "V": 2, "R": 2, "c": 3, "k": 2,
         "N": 2, "P": 2, "G": 2}  # fmt: skip


@pytest.mark.parametrize("phase", ["training", "inference"])
@pytest.mark.parametrize(
    "name", ["self-attention+grouped+window", "mla", "gated-deltanet", "kda+core", "mamba-2"]
)
def test_a_kernel_of_all_equations_moves_the_compulsory_bytes(name: str, phase: str) -> None:
    """But for entries that weights alone determine, which the kernel computes itself."""
    mixer = cm.mixer(name)
    system = system_of(mixer, None, (), phase)
    parts = iteration_domains(system, phase)
    names = tuple(dict.fromkeys(part.equation.part_of for part in parts))
    sizes = {
        letter: size
        for letter, size in SIZES.items()
        if letter in mixer.letters or letter in "ldnt"
    }
    whole, found = traffic(mixer, phase).compulsory.kinds, moved_by(system, phase, names).kinds
    for kind in {*whole, *found} - {"weights"}:
        one, two = (kinds[kind].at(sizes) if kind in kinds else 0 for kinds in (whole, found))
        assert one == two, kind


def brute_attention(b: int, n: int, g: int, h: int, l: int, w: int) -> Counter[str]:
    """Work of attention over l tokens, counted pair by pair."""
    found: Counter[str] = Counter()
    for i in range(1, l + 1):
        keys = min(i, w)
        found["products"] += b * n * (keys * (2 * h - 1) + (keys - 1) + h * (2 * keys - 1))
        found["exponentials"] += b * n * keys
    found["bytes"] = 2 * b * l * h * (2 * n + 2 * g)
    return found


def test_prefill_attention_counts_pairs_and_bytes() -> None:
    sizes = {"b": 3, "n": 4, "g": 2, "h": 8, "l": 7, "w": 3}
    arrays = {letter: np.array([size, size]) for letter, size in sizes.items()}
    work = KERNELS["prefill attention"].work("bf16", arrays)
    found = {name: int(getattr(work, name)[1]) for name in ("products", "exponentials", "bytes")}
    assert found == brute_attention(**sizes)


def test_a_new_token_reads_the_window_of_keys_and_values_once_a_group() -> None:
    sizes = {"b": 3.0, "n": 4.0, "g": 2.0, "h": 8.0, "t": 100.0, "w": 10.0}
    arrays = {letter: np.array([size]) for letter, size in sizes.items()}
    work = KERNELS["decode attention"].work("bf16", arrays)
    assert work.bytes == 2 * 3 * 8 * (2 * 10 * 2 + 2 * 4)


def test_a_delta_rule_reads_and_writes_its_state_in_fp32() -> None:
    arrays = {
        "b": np.array([3.0]),
        "n": np.array([4.0]),
        "h": np.array([8.0]),
        "t": np.array([9.0]),
    }
    work = KERNELS["decode Kimi delta rule"].work("bf16", arrays)
    state, rows = 2 * 4 * 3 * 4 * 8 * 8, 2 * 3 * (5 * 4 * 8 + 4)
    assert work.bytes == state + rows


def test_a_matrix_product_moves_its_operands_and_result() -> None:
    arrays = {"l": np.array([3.0]), "d": np.array([5.0]), "f": np.array([7.0])}
    work = KERNELS["gemm"].work("bf16", arrays)
    assert work.bytes == 2 * (3 * 5 + 5 * 7 + 3 * 7) and work.products == 3 * 7 * (2 * 5 - 1)


def test_an_equation_that_is_not_there_is_named() -> None:
    system = system_of(cm.mixer("self-attention"), None, (), "training")
    with pytest.raises(Unanswered, match="no equation of 'B' is executed in training"):
        moved_by(system, "training", ("Z", "B"))
