"""SimpleTRON's Simple, Simple-Res and Simple-ResL in PyTorch, bidirectional or causal.

Yorsh et al. 2021, section 3. A class combines a mixer with an order of its two products, or, if
causal, with an algorithm of `running_sums`.
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
    """An order of the two products of q, k and v (b, n, s, h), with the form of the equations that
    has it; `between` names the array of the first product."""

    form: str
    multiply: Multiply
    between: str


KV_FIRST = ProductOrder("kv-first", lambda q, k, v: q @ (k.transpose(-2, -1) @ v), "M")
QK_FIRST = ProductOrder("qk-first", lambda q, k, v: (q @ k.transpose(-2, -1)) @ v, "Z")


class Simple(Headed):
    """Q K^T V / sqrt(s) in n heads of width h = d/n.

    W_Q, W_K, W_V are (d, d) and b_Q, b_K, b_V (d,); W_out (d, d) and b_out (d,) exist if `OUTPUT`.
    """

    MIXER: ClassVar[str]
    RESIDUAL: ClassVar[bool] = False
    OUTPUT: ClassVar[bool] = False
    order: ClassVar[ProductOrder]

    def declare(self) -> None:
        """Declare the linear maps (d, d) to queries, keys and values with biases (d,), and an
        output map if `OUTPUT` says so."""
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
        """y (b, s, d) of x (b, s, d): Q, K, V (b, n, s, h), their product."""
        q, k, v = (self.heads(rows) for rows in self.project(x))
        y = self.order.multiply(q, k, v).transpose(1, 2).flatten(2) * (1 / math.sqrt(x.shape[1]))
        return self.finish(x, y)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values (..., d) of x (..., d)."""
        return x @ self.W_Q + self.b_Q, x @ self.W_K + self.b_K, x @ self.W_V + self.b_V

    def finish(self, x: Tensor, y: Tensor) -> Tensor:
        """y (..., d) from the concatenated heads `y` (..., d) of rows x (..., d): with the output
        map (`OUTPUT`) and the skip connection (`RESIDUAL`), if the class has them."""
        if self.OUTPUT:
            y = y @ self.W_out + self.b_out
        return x + y if self.RESIDUAL else y

    @classmethod
    def kernels(cls) -> dict[str, str]:
        """A dict: array -> kernel class, for the arrays outside of the product."""
        arrays = ["Q", "K", "V", *(["R"] if cls.OUTPUT or cls.RESIDUAL else [])]
        last = "contraction" if cls.OUTPUT or not cls.RESIDUAL else "elementwise"
        return dict.fromkeys(arrays, "contraction") | {"y": last}


_Class = TypeVar("_Class", bound=type[Simple])


def multiplied(order: ProductOrder) -> Callable[[_Class], _Class]:
    """Return a decorator that registers a class as an implementation of the mixer in its `MIXER`,
    with this `order` of Q K^T V: Q (K^T V) or (Q K^T) V."""

    def register(cls: _Class) -> _Class:
        cls.order = order
        kernels = cls.kernels() | {order.between: "contraction"}
        return implementation(cls.MIXER, form=order.form, kernels=kernels)(cls)

    return register


class SimpleAlone(Simple):
    """Simple, without skip connection and output map."""

    MIXER = "simple"


@multiplied(KV_FIRST)
class SimpleKvFirst(SimpleAlone):
    """Simple as Q (K^T V)."""


@multiplied(QK_FIRST)
class SimpleQkFirst(SimpleAlone):
    """Simple as (Q K^T) V."""


class SimpleRes(Simple):
    """Simple-Res, with a skip connection, without output map."""

    MIXER = "simple-res"
    RESIDUAL = True


@multiplied(KV_FIRST)
class SimpleResKvFirst(SimpleRes):
    """Simple-Res as Q (K^T V)."""


@multiplied(QK_FIRST)
class SimpleResQkFirst(SimpleRes):
    """Simple-Res as (Q K^T) V."""


class SimpleResL(Simple):
    """Simple-ResL, with output map and skip connection."""

    MIXER = "simple-resl"
    RESIDUAL = True
    OUTPUT = True


@multiplied(KV_FIRST)
class SimpleResLKvFirst(SimpleResL):
    """Simple-ResL as Q (K^T V)."""


@multiplied(QK_FIRST)
class SimpleResLQkFirst(SimpleResL):
    """Simple-ResL as (Q K^T) V."""


class SimpleCausal(Simple, Summing):
    """Queries times the running sum of k v^T, divided by sqrt(l).

    l is the length that the module is built for, whatever the length of a sequence.
    """

    def mix(self, x: Tensor) -> Tensor:
        """y (b, s, d) of x (b, s, d): Q, K, V (b, n, s, h), the reads of the queries."""
        q, k, v = (self.heads(rows) for rows in self.project(x))
        reads, _ = self.sums.whole(q, k, v)
        return self.finish(x, reads.transpose(1, 2).flatten(2) * (1 / math.sqrt(self.l)))

    def advance(self, x_t: Tensor, state: State) -> Tensor:
        """y_t (b, d) of one token x_t (b, d): add the token's key and value to the state, then read
        it with the token's query."""
        q, k, v = (self.split(row) for row in self.project(x_t))
        reads, _ = self.sums.latest(q, k, v, state)
        return self.finish(x_t, reads.flatten(1) * (1 / math.sqrt(self.l)))


class SimpleCausalAlone(SimpleCausal):
    """Causal Simple, without skip connection and output map."""

    MIXER = "simple-causal"


class SimpleCausalRes(SimpleCausal):
    """Causal Simple-Res, with a skip connection, without output map."""

    MIXER = "simple-causal-res"
    RESIDUAL = True


class SimpleCausalResL(SimpleCausal):
    """Causal Simple-ResL, with output map and skip connection."""

    MIXER = "simple-causal-resl"
    RESIDUAL = True
    OUTPUT = True


@summing(RowByRow(weighted=False))
class SimpleCausalRecurrent(SimpleCausalAlone):
    """Causal Simple by a recurrence over rows."""


@summing(AllRows(weighted=False))
class SimpleCausalCumsum(SimpleCausalAlone):
    """Causal Simple by a running sum over all rows."""


@summing(ScoredPairs(weighted=False))
class SimpleCausalParallel(SimpleCausalAlone):
    """Causal Simple by masked scores of all pairs."""


@summing(RowByRow(weighted=False))
class SimpleCausalResRecurrent(SimpleCausalRes):
    """Causal Simple-Res by a recurrence over rows."""


@summing(AllRows(weighted=False))
class SimpleCausalResCumsum(SimpleCausalRes):
    """Causal Simple-Res by a running sum over all rows."""


@summing(ScoredPairs(weighted=False))
class SimpleCausalResParallel(SimpleCausalRes):
    """Causal Simple-Res by masked scores of all pairs."""


@summing(RowByRow(weighted=False))
class SimpleCausalResLRecurrent(SimpleCausalResL):
    """Causal Simple-ResL by a recurrence over rows."""


@summing(AllRows(weighted=False))
class SimpleCausalResLCumsum(SimpleCausalResL):
    """Causal Simple-ResL by a running sum over all rows."""


@summing(ScoredPairs(weighted=False))
class SimpleCausalResLParallel(SimpleCausalResL):
    """Causal Simple-ResL by masked scores of all pairs."""
