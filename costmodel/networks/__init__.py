"""What does a whole network cost, built from mixers and the parts around them?

from costmodel import networks
networks.model("gpt-2").parameters().at()  # 124439808
networks.model("chen-v1", mixers=("she",)).count("inference").at(t=128).total
net = networks.model("config.json")        # or the fields of one, a dict
net.parameters().at(), networks.memory(net).at(131072)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from costmodel.errors import ModelError as ModelError, shortened
from costmodel.language.equations import Mixer
from costmodel.language.options import braces, listed
from costmodel.mixers.load import mixer as load_mixer
from costmodel.networks import huggingface
from costmodel.networks.answers import whole
from costmodel.networks.assembly import matches, module_name
from costmodel.networks.blocks import (
    Description as Description,
    Use as Use,
    crosses,
)
from costmodel.networks.choices import Choices as Choices
from costmodel.networks.configuration import MOST_LAYERS
from costmodel.networks.experts import entries_read
from costmodel.networks.from_choices import description as description, refuse_inputs
from costmodel.networks.held import Holding as Holding
from costmodel.networks.memory_budget import MemoryOptions as MemoryOptions
from costmodel.networks.network import (
    Generation as Generation,
    Network as Network,
    generation as generation,
    network as built,
    network as network,
)
from costmodel.networks.part_costs import Counting as Counting, counting as counting
from costmodel.networks.presets import names as names, preset as preset, presets as presets
from costmodel.networks.training import recomputed_layers
from costmodel.program.adapters import adapted
from costmodel.program.element_types import Dtypes
from costmodel.questions.parameters import parameters
from costmodel.symbolic.polynomial import Poly
from costmodel.symbolic.sizes import LETTERS, whole_number


def model(
    name: str | Path | Mapping[str, Any],
    /,
    *,
    sizes: dict[str, int] | None = None,
    ignore: Collection[str] = (),
    **changes: Any,
) -> Network:
    """Make the network with this name ("gpt-2"), or of this published model's configuration: the
    path of its `config.json`, or its fields as a dict.

    Args:
        sizes: letter -> value, in place of the network's own.
        ignore: fields of a configuration that are left out, so that the class's defaults hold.
        changes: fields of `Choices`, such as `mixers=("she",)` or `norm="none"`, of a network with
            a name, or of a configuration that is read as choices (GPT-2's or BERT's).

    Raises:
        ModelError: an unknown network or choice, a configuration that cannot be read, a change of a
            configuration read as blocks, `ignore` beside a name; UnknownMixer: an unknown mixer.

    >>> from costmodel import networks
    >>> net = networks.model({"model_type": "llama", "num_hidden_layers": 2})
    >>> net.parameters().at(), net.count("inference").at(t=128).total, net.state().at(t=128)
    (666914816, 1075995850, 2097152)
    """
    if not isinstance(name, str) or name.endswith(".json"):
        source = Path(name) if isinstance(name, str) else name
        found = described(None, source, {}, ignore)
        if changes:
            made = description(_with(found.name, found.choices, changes))
            found = replace(made, model_type=found.model_type, quantised=found.quantised)
        return built(found, **(sizes or {}))  # `network` may be the submodule
    if ignore:
        raise ModelError(
            f"{name} is the name of a network, and ignore leaves out fields of a config.json: "
            "leave out ignore, or give a config.json"
        )
    return built(_with(name, preset(name), changes), **(sizes or {}))


def _with(name: str, choices: Choices | None, changes: Mapping[str, Any]) -> Choices:
    """A copy of a network's choices with changes, field of `Choices` -> value. ModelError for an
    unknown field, or for a network without choices, which is read as blocks; `name`: its name."""
    if choices is None:
        raise ModelError(
            f"{name} is read from its configuration and takes no choice '{next(iter(changes))}': "
            "change the configuration"
        )
    if unknown := sorted(set(changes) - set(Choices.__dataclass_fields__)):
        known = ", ".join(Choices.__dataclass_fields__)
        raise ModelError(f"{name}: a network has no choice '{unknown[0]}': its choices are {known}")
    return replace(choices, **changes)


def memory(
    network: Network,
    *,
    dtype: str = "",
    weight_dtype: str | None = None,
    cache_dtype: str | None = None,
    state_dtype: str | None = None,
) -> Holding:
    """What a network holds while it generates, in bytes, as `costmodel memory` says: `weights`, one
    sequence `at` a context or what a `further` token adds, and `parts`, layer by layer; `active`
    are the parameters that a token goes through.

    Args:
        dtype: the element type where no other is named; "": the configuration's, else bf16.
        weight_dtype, cache_dtype, state_dtype: types of weights, of rows of tokens such as keys,
            and of recurrent states.

    Raises:
        ValueError: an unknown type. The result raises Unanswered for a part without one-token
            inference.

    >>> from costmodel import networks
    >>> held = networks.memory(networks.model("gpt-2"))
    >>> held.weights, held.at(128), held.further(128)
    (248879616, 4718592, 36864)
    """
    types = Dtypes(dtype, state_dtype, weight_dtype, cache_dtype)
    return Holding(network, types.checked().of(network.described.dtypes))


def described(
    name: str | None,
    config: huggingface.Source | None,
    changes: Mapping[str, str | bool | None],
    ignored: Collection[str] = (),
) -> Description:
    """The description of a network (its stacks of blocks and the parts after them) by its name, or
    by a published model's configuration.

    Args:
        name, config: the name, or the path or the fields of a `config.json`; the other is None.
        changes: choice -> its new value, None for a choice that stays.
        ignored: fields of the configuration that are left out, so that the class's defaults hold.

    Raises:
        ModelError: neither or both are given, fields are ignored without a configuration, it cannot
            be read, or the network is read as blocks and has none of the choices to be changed.
    """
    if (name is None) == (config is None):
        raise ModelError(
            "give one of two: the name of a network, from the list of `costmodel model --list`, or "
            "--hf config.json"
        )
    if ignored and config is None:
        raise ModelError(
            "--ignore leaves out fields of a config.json: name a config.json, or leave out --ignore"
        )
    found = huggingface.read(config, ignored) if config is not None else preset(name or "")
    # the fields again, for the type of model and the quantisation, which choices do not have
    file = huggingface.configuration(config, ignored) if config is not None else None
    sentence = huggingface.unnamed(file) if file else ""  # that asks for a type of weights
    if isinstance(found, Choices):
        made = description(changed(found, changes))
        kind = file.fields["model_type"] if file else ""
        return replace(made, model_type=kind, quantised=sentence)
    if typed := [choice for choice, value in changes.items() if value is not None]:
        option = typed[0].replace("_", "-").replace("mixers", "mixer")
        instead = "change the configuration"
        if option == "mixer":
            instead = (
                "`costmodel model --hf config.json --replace OLD=NEW` replaces mixers of layers"
            )
        raise ModelError(
            f"{found.name} is read from its configuration and takes no --{option}: {instead}"
        )
    return replace(found, quantised=sentence)


def as_mixer(name: str, ignored: Collection[str] = ()) -> Mixer | None:
    """A network as one mixer, so that commands on mixers take it, by its name or the path of a
    `config.json`; sizes may follow in braces, `gpt-2{L=24}`. None for a name that is no network's.

    Args:
        ignored: fields of the configuration that are left out, so that the class's defaults hold.

    Raises:
        ModelError: a configuration that cannot be read, or a network whose layers differ, and
            whose number of layers is open.
    """
    base, sizes = name.partition("{")[0], braces(name)
    is_file = base.endswith(".json")
    if not is_file and base not in names():
        return None
    read, config = (None, Path(base)) if is_file else (base, None)
    found = described(read, config, {}, ignored)
    return whole(built(replace(found, name=name), **sizes), frozenset(sizes))


def memory_options(
    phases: tuple[str, ...],
    blocks: Collection[str] = (),
    *,
    precision: str | None = None,
    **typed: str | None,
) -> MemoryOptions:
    """Check and return the options of a training step's memory as a command line types them:
    `typed` is option -> text, None for an option that is not typed.

    Args:
        blocks: the names of blocks, and of ranges of layers, that `--recompute` may name.
        precision: element types by role, each role once: `parameters=bf16,optimiser=fp32`.

    Raises:
        ModelError: an unknown value, or no phase training-step (`recompute`: nor backward).
    """
    there = {name: value for name, value in typed.items() if value is not None}
    for name in (*there, *(("precision",) if precision is not None else ())):
        step = "training-step" in phases
        if not (step or (name == "recompute" and "backward" in phases)):
            raise ModelError(f"--{name} is about what a training step holds: add "
                             f"--phase training-step")  # fmt: skip
    text = there.get("recompute", "none")
    there["recompute"] = recomputed_layers(text, blocks, "--recompute")
    types: dict[str, str] = {}
    for part in (precision or "").split(",") if precision is not None else ():
        role, equals, dtype = part.strip().partition("=")
        if not equals or role.strip() in types:
            raise ModelError(
                f"--precision '{part}': expected ROLE=TYPE, such as parameters=bf16, each role once"
            )
        types[role.strip()] = dtype.strip()
    return MemoryOptions(**there, precision=types)


def exchanged(
    described: Description, typed: str | None, layers: str | None, number: int | None
) -> Description | None:
    """The description that `--replace OLD=NEW --layers 2,4,6` asks for; None if nothing is typed. A
    mixer of two sequences, such as a cross-attention, gives way to another one of two alone.

    Args:
        typed: the text "OLD=NEW", names of mixers with options and sizes. A layer's mixer gives way
            that has those of OLD, and perhaps more: self-attention is any self-attention.
        layers: the text "2,4,6" or "3-7", counted from 1; None: every layer with the mixer OLD.
        number: the number of layers; None if it is open, which raises ModelError.

    Sizes of the new mixer that neither braces nor the network give are those of the mixer that the
    first of the layers loses, such as its number of heads, or else the catalogue's defaults.

    Raises:
        ModelError: `layers` without `typed`, a text of another form, or a layer that lacks the
            mixer OLD; UnknownMixer: no such mixer.
    """
    if typed is None:
        if layers is not None:
            raise ModelError("--layers says where a mixer is replaced: add --replace OLD=NEW")
        return None
    old_name, *after = re.split(r"=(?![^{}]*\})", typed, maxsplit=1)  # no = between braces
    new = "".join(after)
    if not old_name or not new:
        raise ModelError(f"--replace '{typed}': expected OLD=NEW, such as self-attention=mamba-2")
    asked = None if layers is None else layer_numbers("--layers", layers)
    if number is None:
        raise ModelError("--replace needs a number of layers: give --L")
    old, mixer, blocks = load_mixer(old_name), load_mixer(new), described.decoder.blocks
    # a mixer that reads an encoder's output gives way to another one that does, and to no other
    parts = [s.part for block in blocks for s in block.sublayers]
    named = [part for part in parts if described.is_called(part, old)]
    gone = [part for part in parts if described.gives_way(part, old, mixer)]
    refuse_inputs(described.name, mixer, cross=crosses(mixer) == bool(gone or not named))
    having = [
        k + 1
        for k in range(number)
        if any(s.part in gone for s in blocks[k % len(blocks)].sublayers)
    ]
    if asked is None and not having:
        there = ", ".join(dict.fromkeys(part.label for part in parts))
        raise ModelError(
            f"--replace {old_name}: no layer has the mixer {old_name}: the layers have {there}"
        )
    chosen = having if asked is None else asked
    losing = (s.part for k in chosen for s in blocks[(k - 1) % len(blocks)].sublayers)
    lost: Mapping[str, Poly] = next((part.sizes for part in losing if part in gone), {})
    return described.exchanged(old, _instead(described, new, mixer, lost), chosen, number)


def _instead(described: Description, new: str, mixer: Mixer, lost: Mapping[str, Poly]) -> Use:
    """The part of the mixer that `new` names ("mamba-2{N=64}"). A size is that of the braces, else
    the network's, else that of the part replaced (`lost`: its sizes), else, of a letter that mixers
    do not share (`LETTERS`), the mixer's default; other letters are left to the network."""
    own: dict[str, object] = {
        x: lost[x] if x in lost else mixer.letter(x).default
        for x in mixer.letters
        if (x in lost or x not in LETTERS) and x not in described.sizes
    }
    own |= mixer.given
    braces = ",".join(f"{x}={value}" for x, value in own.items() if value is not None)
    mixer = load_mixer(new.partition("{")[0] + (f"{{{braces}}}" if braces else ""))
    sizes = {letter: Poly.of(value) for letter, value in mixer.given.items()}
    return Use(mixer.origin, mixer, sizes=sizes)


def layer_numbers(option: str, typed: str) -> list[int]:
    """The numbers of the layers, from 1, that the text `typed` of an `option`, such as 2,4,6 or
    3-7, names, each once, as typed: [4, 2] for 4,2,4. ModelError for another text, or an empty
    one."""
    found: dict[int, None] = {}
    for text in listed(typed) or [typed]:
        typed_first, dash, typed_last = text.partition("-")
        first = whole_number(typed_first)
        last = whole_number(typed_last) if dash else first
        if first is None or last is None or not 1 <= first <= last <= MOST_LAYERS:
            raise ModelError(
                f"{option} '{shortened(text)}': expected numbers of layers from 1 to "
                f"{MOST_LAYERS:,}, such as 2,4,6 or 3-7"
            )
        found |= dict.fromkeys(range(first, last + 1))
    return [*found]


def apart(
    described: Description,
    number: int | None,
    train: str | None,
    recompute: str | None,
    adapter: str | None = None,
) -> Description:
    """A copy of the description in which the layers that `--train layers.3-7.attn`, `--recompute
    layers.3-7` or `--adapter` name by their numbers (from 1) are parts of their own, since equal
    layers are else one part, of which no share can be trained; unchanged if no option has numbers.

    Args:
        number: the number of layers, None if it is not known.

    Raises:
        ModelError: a text that is no range of layers, one that is not there, or no number.
    """
    ranges: dict[str, list[int]] = {}
    options = {"--train": train, "--recompute": recompute, "--adapter": adapter}
    for option, typed in options.items():
        for pattern in listed(typed or ""):
            first, _, rest = pattern.partition("=")[0].partition(".")  # without an adapter's rank
            text = rest.partition(".")[0]
            if first == "layers" and text[:1].isdecimal():
                ranges[text] = layer_numbers(option, text)
    if not ranges:
        return described
    if number is None:
        raise ModelError(f"layers.{next(iter(ranges))} needs a number of layers: give --L")
    return described.with_layers_apart(ranges, number)


def with_adapters(described: Description, typed: str | None) -> Description:
    """A copy of the description with low-rank adapters in the parts that `--adapter
    layers.*.attn=16` names (`typed`; None: unchanged); all other parameters are frozen, but those
    that `--train` names.

    Raises:
        ModelError: no pair of a pattern and a rank, or a pattern that names no part with a linear
            map, or one whose maps are chosen for each token.
    """
    patterns = tuple(listed(typed) or [typed]) if typed else ()
    for text in patterns:
        pattern, _, typed_rank = text.rpartition("=")
        rank = whole_number(typed_rank)
        if not pattern or not rank:
            raise ModelError(
                f"--adapter '{shortened(text)}': expected PATTERN=RANK, such as layers.*.attn=16"
            )
        every = {use: adapted(use.mixer, rank) for use in described.parts()}
        mapped = [use for use, (_, names) in every.items() if names]
        if not (named := [use for use in mapped if matches(use, pattern)]):
            known = ", ".join(dict.fromkeys(map(module_name, mapped)))
            raise ModelError(
                f"--adapter '{pattern}': no part with a linear map has this name: expected one of "
                f"{known}"
            )
        for use in named:
            if {**entries_read(use.mixer)} != {**parameters(use.mixer).arrays}:
                raise ModelError(f"--adapter '{pattern}': the maps of {use.label} are chosen for "
                                 f"each token, and take no adapter: leave them out")  # fmt: skip
            if use.adapters:
                raise ModelError(f"--adapter '{pattern}': an earlier pattern names {use.name} too: "
                                 f"name each part in one pattern")  # fmt: skip
        described = described.with_parts(partial(_with_adapter, {use: every[use] for use in named}))
    return replace(described, adapters=patterns)


def _with_adapter(made: Mapping[Use, tuple[Mixer, frozenset[str]]], use: Use) -> Use:
    """A copy of the part with the mixer and adapters that `made` has for it; else the part. A part
    whose parameters are all counted at another such part shares that part's adapters too."""
    if use not in made:
        return use
    mixer, names = made[use]
    owned = any(other.mixer is use.mixer and not other.shared for other in made)
    whole = use.shared >= parameters(use.mixer).arrays.keys()
    again = names if owned and whole else frozenset()
    return replace(use, mixer=mixer, adapters=names, shared=use.shared | again)


def trained(described: Description, phases: tuple[str, ...], typed: str | None) -> Description:
    """A copy of the description in which a training step changes only the parts that `--train`
    names (`typed`, such as "layers.*.attn,head"); the others are frozen. None: unchanged. `phases`:
    those that are asked for.

    Raises:
        ModelError: a pattern that names no part with parameters, a part with a parameter that a
            frozen part has too, or no phase with gradients.
    """
    if typed is None:
        return described
    if not {"backward", "training-step"} & {*phases}:
        raise ModelError("--train is about gradients: add --phase training-step")
    patterns = tuple(listed(typed) or [typed])
    having = [use for use in described.parts() if parameters(use.mixer).arrays]  # with parameters
    for pattern in patterns:
        if not any(matches(use, pattern) for use in having):
            names = dict.fromkeys(n for use in having for n in (module_name(use), use.label))
            raise ModelError(
                f"--train '{pattern}': no part has this name: expected one of {', '.join(names)}"
            )
    found = replace(described, trained=patterns)
    first = frozenset(name for stack in described.stacks for name in stack.first)
    for one in having:
        for name in sorted(one.shared):
            # other parts may have parameters of this name too, each its own, and so may the same
            # parts of other layers, unless all layers share those of the first
            of = [u for u in having if name in parameters(u.mixer).arrays
                  if u.table or (u.mixer is one.mixer and (name in first or u.ranges == one.ranges))
                  ]  # fmt: skip
            named = [any(matches(use, pattern) for pattern in patterns) for use in of]
            if any(named) and not all(named):
                tied = any(use.table for use in of)
                words = "the head shares the embedding's weights" if tied else (
                    f"'{one.name}' shares {name} with the first layer")  # fmt: skip
                raise ModelError(f"--train: {words}: name both, or neither")
    return found


def formulas_asked(phases: tuple[str, ...], typed: bool) -> bool:
    """Whether formulas for MFU are asked for; ModelError without the phase training-step."""
    if typed and "training-step" not in phases:
        raise ModelError("--mfu is about a training step: add --phase training-step")
    return typed


MANY = ("mixers", "encoder_mixers")
"""The choices that are lists of names; a command line separates the names by commas."""

NEEDED: Mapping[str, tuple[str, Callable[[Choices], bool], str]] = {
    "cross": ("--cross", lambda c: c.kind == "encoder-decoder", "an encoder beside a decoder"),
    "encoder_mixers": (
        "--encoder-mixer", lambda c: c.kind == "encoder-decoder", "an encoder beside a decoder",
    ),
    "activation": ("--activation", lambda c: c.ffn, "feed-forward sublayers"),
    "loss": ("--loss", lambda c: c.head != "none" or not c.loss, "a head"),
}  # fmt: skip
"""Choice -> its option, whether a network has the part that the choice is about, and this part."""


def changed(choices: Choices, changes: Mapping[str, str | bool | None]) -> Choices:
    """A copy of the choices with those changes (name -> text or switch) that are not None, as a
    command line types them: `biases` switches the biases of FFN and norms on or off, and a head's
    bias off; a head over no vocabulary is not tied.

    Raises:
        ModelError: an unknown value, or a change of a part that the network lacks.
    """
    typed: dict[str, Any] = {name: value for name, value in changes.items() if value is not None}
    for name in MANY:
        if name in typed:
            typed[name] = tuple(listed(typed[name]))
    if "biases" in typed:
        typed["norm_bias"] = typed["biases"]
        typed["head_bias"] = choices.head_bias and typed["biases"]
    if typed.get("head", choices.head) != "vocabulary" and "tied" not in typed:
        typed["tied"] = False
    found = replace(choices, **typed)
    for name, (option, there, what) in NEEDED.items():
        if name in typed and not there(found):
            raise ModelError(
                f"{found.name}: {option} is about {what}, which this network lacks: leave out "
                f"{option}"
            )
    return found


__all__ = [
    "Choices",
    "Counting",
    "Description",
    "Generation",
    "Holding",
    "MemoryOptions",
    "ModelError",
    "Network",
    "Use",
    "apart",
    "as_mixer",
    "changed",
    "counting",
    "described",
    "description",
    "exchanged",
    "formulas_asked",
    "generation",
    "memory",
    "memory_options",
    "model",
    "names",
    "network",
    "preset",
    "presets",
    "trained",
    "with_adapters",
]
