"""How do SimpleTRON's Simple, Simple-Res and Simple-ResL run in PyTorch, causal or not?

Yorsh et al. 2021, section 3. A class combines one mixer with one order of its two products, or with
one way to sum over earlier tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from torch import Tensor, nn

from profiler.modules.base import Headed, State
from profiler.modules.registry import implementation
from profiler.modules.running_sums import AllRows, RowByRow, ScoredPairs, Summing, summing

Multiply = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class ProductOrder:
    """An order of the products of q, k and v (b, n, s, h), and the array between the two."""

    form: str
    multiply: Multiply
    between: str


KV_FIRST = ProductOrder("kv-first", lambda q, k, v: q @ (k.transpose(-2, -1) @ v), "M")
QK_FIRST = ProductOrder("qk-first", lambda q, k, v: (q @ k.transpose(-2, -1)) @ v, "Z")


class Simple(Headed):
    """Products of queries, keys and values in n heads of width h = d/n, times 1/sqrt(s).

    W_Q, W_K, W_V are (d, d) and b_Q, b_K, b_V (d,); W_out and b_out exist where `OUTPUT`.
    """

    MIXER: ClassVar[str]
    RESIDUAL: ClassVar[bool] = False
    OUTPUT: ClassVar[bool] = False
    order: ClassVar[ProductOrder]

    def declare(self) -> None:
        """Queries, keys and values with their biases, and the linear layer, if any."""
        d = self.d
        self.W_Q: nn.Parameter = self.weight(d, d)
        self.W_K: nn.Parameter = self.weight(d, d)
        self.W_V: nn.Parameter = self.weight(d, d)
        self.b_Q: nn.Parameter = self.weight(d)
        self.b_K: nn.Parameter = self.weight(d)
        self.b_V: nn.Parameter = self.weight(d)
        if self.OUTPUT:
            self.W_out: nn.Parameter = self.weight(d, d)
            self.b_out: nn.Parameter = self.weight(d)

    def mix(self, x: Tensor) -> Tensor:
        """Q, K, V (b, n, s, h), their product, then y (b, s, d)."""
        q, k, v = (self.heads(rows) for rows in self.project(x))
        y = self.order.multiply(q, k, v).transpose(1, 2).flatten(2) * (1 / math.sqrt(x.shape[1]))
        return self.finish(x, y)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values (..., d) of x (..., d)."""
        return x @ self.W_Q + self.b_Q, x @ self.W_K + self.b_K, x @ self.W_V + self.b_V

    def finish(self, x: Tensor, y: Tensor) -> Tensor:
        """The heads' rows (..., d), through the linear layer and the skip connection where the
        mixer has them."""
        if self.OUTPUT:
            y = y @ self.W_out + self.b_out
        return x + y if self.RESIDUAL else y

    @classmethod
    def kernels(cls) -> dict[str, str]:
        """Kernel class of the arrays around the product."""
        arrays = ["Q", "K", "V", *(["R"] if cls.OUTPUT or cls.RESIDUAL else [])]
        last = "contraction" if cls.OUTPUT or not cls.RESIDUAL else "elementwise"
        return dict.fromkeys(arrays, "contraction") | {"y": last}


_Class = TypeVar("_Class", bound=type[Simple])


def multiplied(order: ProductOrder) -> Callable[[_Class], _Class]:
    """Give the decorated class its order of products, and register it as an implementation."""

    def register(mixer: _Class) -> _Class:
        mixer.order = order
        kernels = mixer.kernels() | {order.between: "contraction"}
        return implementation(mixer.MIXER, form=order.form, kernels=kernels)(mixer)

    return register


class SimpleAlone(Simple):
    """Simple: neither skip connection nor linear layer."""

    MIXER = "simple"


@multiplied(KV_FIRST)
class SimpleKvFirst(SimpleAlone):
    """Simple, keys and values first."""


@multiplied(QK_FIRST)
class SimpleQkFirst(SimpleAlone):
    """Simple, queries and keys first."""


class SimpleRes(Simple):
    """Simple-Res: a skip connection, no linear layer."""

    MIXER = "simple-res"
    RESIDUAL = True


@multiplied(KV_FIRST)
class SimpleResKvFirst(SimpleRes):
    """Simple-Res, keys and values first."""


@multiplied(QK_FIRST)
class SimpleResQkFirst(SimpleRes):
    """Simple-Res, queries and keys first."""


class SimpleResL(Simple):
    """Simple-ResL: a linear layer behind the heads, then a skip connection."""

    MIXER = "simple-resl"
    RESIDUAL = True
    OUTPUT = True


@multiplied(KV_FIRST)
class SimpleResLKvFirst(SimpleResL):
    """Simple-ResL, keys and values first."""


@multiplied(QK_FIRST)
class SimpleResLQkFirst(SimpleResL):
    """Simple-ResL, queries and keys first."""


class SimpleCausal(Simple, Summing):
    """Products of queries with the running sum of keys and values, times 1/sqrt(l).

    l is the length that the module is built for, whatever the length of a sequence.
    """

    def mix(self, x: Tensor) -> Tensor:
        """Q, K, V (b, n, s, h), what the queries read, then y (b, s, d)."""
        q, k, v = (self.heads(rows) for rows in self.project(x))
        reads, _ = self.sums.whole(q, k, v)
        return self.finish(x, reads.transpose(1, 2).flatten(2) * (1 / math.sqrt(self.l)))

    def advance(self, x_t: Tensor, state: State) -> Tensor:
        """The token's query reads the held sums with the token's own key and value included."""
        q, k, v = (self.split(row) for row in self.project(x_t))
        reads, _ = self.sums.latest(q, k, v, state)
        return self.finish(x_t, reads.flatten(1) * (1 / math.sqrt(self.l)))


class SimpleCausalAlone(SimpleCausal):
    """Simple: neither skip connection nor linear layer."""

    MIXER = "simple-causal"


class SimpleCausalRes(SimpleCausal):
    """Simple-Res: a skip connection, no linear layer."""

    MIXER = "simple-causal-res"
    RESIDUAL = True


class SimpleCausalResL(SimpleCausal):
    """Simple-ResL: a linear layer behind the heads, then a skip connection."""

    MIXER = "simple-causal-resl"
    RESIDUAL = True
    OUTPUT = True


@summing(RowByRow(weighted=False))
class SimpleCausalRecurrent(SimpleCausalAlone):
    """Simple, one row after another."""


@summing(AllRows(weighted=False))
class SimpleCausalCumsum(SimpleCausalAlone):
    """Simple, the sums of all rows at once."""


@summing(ScoredPairs(weighted=False))
class SimpleCausalParallel(SimpleCausalAlone):
    """Simple, over scored pairs."""


@summing(RowByRow(weighted=False))
class SimpleCausalResRecurrent(SimpleCausalRes):
    """Simple-Res, one row after another."""


@summing(AllRows(weighted=False))
class SimpleCausalResCumsum(SimpleCausalRes):
    """Simple-Res, the sums of all rows at once."""


@summing(ScoredPairs(weighted=False))
class SimpleCausalResParallel(SimpleCausalRes):
    """Simple-Res, over scored pairs."""


@summing(RowByRow(weighted=False))
class SimpleCausalResLRecurrent(SimpleCausalResL):
    """Simple-ResL, one row after another."""


@summing(AllRows(weighted=False))
class SimpleCausalResLCumsum(SimpleCausalResL):
    """Simple-ResL, the sums of all rows at once."""


@summing(ScoredPairs(weighted=False))
class SimpleCausalResLParallel(SimpleCausalResL):
    """Simple-ResL, over scored pairs."""
