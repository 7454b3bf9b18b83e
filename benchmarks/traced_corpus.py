"""Of models that other people wrote, how many are traced, and where not, which operation refuses?

    python -m benchmarks.traced_corpus [NAME...]

Every model is made from a configuration, without weights, on the meta device; models of libraries
that are not installed are left out and said so. One line a model: whether everything has a formula
and a counting rule, the seconds it took, and the products against FlopCounterMode's. Libraries:
transformers, timm, torchvision; torch's own layers always.
"""

from __future__ import annotations

import importlib.util
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from benchmarks.timing import environment
from profiler.tracing import trace
from profiler.tracing.meta_run.target import TraceError
from profiler.tracing.result import Trace


@dataclass(frozen=True)
class Entry:
    """One model: its library, what makes it, and the sizes that its formulas are in."""

    name: str
    library: str
    make: Callable[..., Any]
    over: str
    let: str = ""


def words_of(l: int) -> torch.Tensor:
    """Indices of l words, in one sequence."""
    return torch.zeros(1, l, dtype=torch.long)


def language(config: str, *, decoder: bool = False, **changes: Any) -> Callable[[int], Any]:
    """A language model of transformers over its sequence length."""

    def make(l: int) -> tuple[nn.Module, dict[str, Any]]:
        transformers = importlib.import_module("transformers")
        made = getattr(transformers, config)(**changes)
        module = transformers.AutoModel.from_config(made).eval()
        inputs = {"input_ids": words_of(l)}
        if decoder:
            inputs["decoder_input_ids"] = words_of(l)
        return module, inputs

    return make


def image(config: str) -> Callable[[int], Any]:
    """An image model of transformers over the batch, for images of its own side."""

    def make(b: int) -> tuple[nn.Module, dict[str, Any]]:
        transformers = importlib.import_module("transformers")
        made = getattr(transformers, config)()
        module = transformers.AutoModel.from_config(made).eval()
        return module, {"pixel_values": torch.empty(b, 3, made.image_size, made.image_size)}

    return make


def timm(name: str, *, sized: bool = False) -> Callable[[int], Any]:
    """A model of timm over the side of its images; `sized` where it is built for one side."""

    def make(l: int) -> tuple[nn.Module, torch.Tensor]:
        options: dict[str, Any] = {"img_size": l} if sized else {}
        module = importlib.import_module("timm").create_model(name, **options).eval()
        return module, torch.empty(2, 3, l, l)

    return make


def torchvision(name: str) -> Callable[[int], Any]:
    """A model of torchvision over the side of its images."""

    def make(l: int) -> tuple[nn.Module, torch.Tensor]:
        module = getattr(importlib.import_module("torchvision").models, name)(weights=None).eval()
        return module, torch.empty(2, 3, l, l)

    return make


ENCODERS = """
    Bert Roberta DistilBert Albert Electra MPNet FNet ModernBert XLMRoberta Ernie
"""
UNPADDED = "Deberta DebertaV2 ConvBert SqueezeBert Nystromformer RoFormer IBert"
"""Those that look for the index of padding in their input, unless there is none."""

DECODERS = """
    GPT2 GPTNeo GPTNeoX GPTJ OPT Bloom CodeGen Falcon Llama Mistral Qwen2 Qwen3 Gemma Gemma2 Phi
    Phi3 Olmo StableLm Cohere Granite Mamba
"""
BOTH = "T5 Bart Pegasus Marian MBart"

IMAGES = "ViT DeiT Beit Dinov2 Swin"

TIMM: Mapping[str, tuple[str, bool]] = {
    "resnet18": ("l:32", False), "resnet50": ("l:32", False), "convnext_tiny": ("l:32", False),
    "efficientnet_b0": ("l:32", False), "mobilenetv3_large_100": ("l:32", False),
    "densenet121": ("l:32", False), "regnety_016": ("l:32", False),
    "vit_small_patch16_224": ("l:16", True), "deit_tiny_patch16_224": ("l:16", True),
    "mixer_s16_224": ("l:16", True),
}  # fmt: skip

TORCHVISION = ("alexnet", "vgg11", "squeezenet1_0", "shufflenet_v2_x1_0", "googlenet", "mnasnet1_0")


def layers() -> Iterator[Entry]:
    """torch's own layers."""

    def encoder(d: int, n: int) -> nn.Module:
        layer = nn.TransformerEncoderLayer(d, n, 4 * d, batch_first=True)
        return nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)

    def lstm(d: int) -> nn.Module:
        return nn.LSTM(d, d, num_layers=2, bidirectional=True, batch_first=True)

    def gru(d: int) -> nn.Module:
        return nn.GRU(d, d, num_layers=2, batch_first=True)

    def transformer(l: int, d: int, n: int) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
        x = torch.empty(1, l, d)
        return nn.Transformer(d, n, 2, 2, 4 * d, batch_first=True), (x, x)

    yield Entry("TransformerEncoder", "torch", encoder, "l,h,n", "d=n*h")
    yield Entry("Transformer", "torch", transformer, "l,h,n", "d=n*h")
    yield Entry("LSTM", "torch", lstm, "l,d")
    yield Entry("GRU", "torch", gru, "l,d")


def corpus() -> Iterator[Entry]:
    """Every model, by library."""
    yield from layers()
    for name in ENCODERS.split():
        yield Entry(name, "transformers", language(f"{name}Config"), "l")
    for name in UNPADDED.split():
        yield Entry(name, "transformers", language(f"{name}Config", pad_token_id=None), "l")
    for name in DECODERS.split():
        yield Entry(name, "transformers", language(f"{name}Config", use_cache=False), "l")
    for name in BOTH.split():
        made = language(f"{name}Config", decoder=True, use_cache=False)
        yield Entry(name, "transformers", made, "l")
    for name in IMAGES.split():
        yield Entry(name, "transformers", image(f"{name}Config"), "b")
    for name, (over, sized) in TIMM.items():
        yield Entry(name, "timm", timm(name, sized=sized), over)
    for name in TORCHVISION:
        yield Entry(name, "torchvision", torchvision(name), "l:32")


def verdict(found: Trace) -> tuple[bool, str]:
    """Whether all work, parameters and saved bytes have a formula, and what is said of it."""
    if found.uncounted:
        names = dict.fromkeys(u.name for u in found.uncounted)
        return False, f"refused: no counting rule for {', '.join(names)}"
    broken = dict(found.broken)
    peak = broken.pop(("bytes", "peak"), None)
    for (kind, name), what in broken.items():
        return False, f"refused: {kind} {name}: {what}"
    flops = found.flops
    assert flops is not None
    same = "equal to" if flops.agrees else "other than"
    besides = ", peak without a formula" if peak else ""
    return True, (
        f"traced{besides}, products {same} FlopCounterMode's, which leaves out "
        f"{flops.share_left_out:.1%}"
    )


def traced(entry: Entry) -> tuple[bool, str]:
    """Whether a model is traced whole, and what is said of it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = trace(entry.make, over=entry.over, let=entry.let, grad="both")
    except TraceError as error:
        return False, f"refused: {error}"
    return verdict(found)


def main(names: list[str]) -> None:
    """Trace the corpus, or the models with these names."""
    whole = tried = 0
    missing: set[str] = set()
    libraries = dict.fromkeys(entry.library for entry in corpus())
    installed = [name for name in libraries if importlib.util.find_spec(name) is not None]
    sys.stdout.write(f"{environment(*installed)}\n\n")
    for entry in corpus():
        if names and entry.name not in names:
            continue
        if entry.library not in installed:
            missing.add(entry.library)
            continue
        started = time.perf_counter()
        complete, said = traced(entry)
        tried, whole = tried + 1, whole + complete
        seconds = time.perf_counter() - started
        sys.stdout.write(f"{entry.library:13} {entry.name:24} {seconds:6.1f} s  {said}\n")
        sys.stdout.flush()
    if missing:
        sys.stdout.write(f"not installed, so left out: {', '.join(sorted(missing))}\n")
    if tried:
        sys.stdout.write(f"{whole} of {tried} models traced whole ({whole / tried:.0%})\n")


if __name__ == "__main__":
    main(sys.argv[1:])
