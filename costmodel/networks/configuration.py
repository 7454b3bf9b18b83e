"""What does a field of a published `config.json` say, and which fields did nobody read?

A reader takes fields one by one. What it leaves must say nothing that a count depends on: the field
is in `COUNT_NOTHING`, or has the value that the class has by default. Any other field is refused,
so that no number is printed that a skipped field would change.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

from costmodel.data import data_dir, read_data
from costmodel.errors import ModelError
from costmodel.symbolic.sizes import LARGEST

ACTIVATIONS: Mapping[str, str] = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_fast": "gelu-tanh",
    "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "tanh": "tanh",
    "silu": "silu",
    "swish": "silu",
}
"""Activation in transformers -> its name here."""

DTYPES: Mapping[str, str] = {
    "float64": "fp64",
    "float32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
}
"""Element type in torch -> its name here."""

COUNT_NOTHING = frozenset(
    """
    _attn_implementation _name_or_path architectures attention_dropout attn_implementation auto_map
    bos_token_id decoder_start_token_id dtype eos_token_id finetuning_task forced_bos_token_id
    forced_eos_token_id gradient_checkpointing id2label initializer_range
    keys_to_ignore_at_inference label2id layer_norm_eps layer_norm_epsilon max_position_embeddings
    model_type output_attentions output_hidden_states output_router_logits pad_token_id prefix
    pretraining_tp problem_type quantization_config return_dict rms_norm_eps rope_theta
    router_aux_loss_coef router_jitter_noise sep_token_id task_specific_params tokenizer_class
    torch_dtype torchscript transformers_version unsloth_version use_bfloat16 use_cache
    use_return_dict

    attention_softmax_in_fp32 bad_words_ids begin_suppress_tokens cache_implementation
    diversity_penalty do_sample early_stopping encoder_no_repeat_ngram_size
    exponential_decay_length_penalty length_penalty max_length min_length model_max_length
    no_repeat_ngram_size num_beam_groups num_beams num_return_sequences
    original_max_position_embeddings output_scores
    remove_invalid_values repetition_penalty return_dict_in_generate scale_attention_softmax_in_fp32
    summary_activation summary_first_dropout summary_proj_to_labels summary_type summary_use_proj
    suppress_tokens temperature tf_legacy_loss top_k top_p typical_p
    """.split()  # noqa: SIM905 - a list of 80 words reads better as text
)
"""Fields that change no number of parameters, operations or cached entries: names, tokens, types,
constants of a norm, the base of angles, and what only training's random numbers depend on; in the
second paragraph what older files have: how tokens are drawn, and a class for summaries."""

ANYWHERE: Mapping[str, Any] = {
    "add_cross_attention": False,
    "chunk_size_feed_forward": 0,
    "cross_attention_hidden_size": None,
    "is_decoder": False,
    "is_encoder_decoder": False,
    "pruned_heads": {},
    "tie_encoder_decoder": False,
    "activation_dropout": 0.0,
    "attn_window_size": None,
    "for_llm_compressor": False,
    "hidden_dropout": 0.0,
    "mlp_bias": False,
    "rms_norm": True,
    "scale_attn_weights": True,
    "sliding_window": None,
    "use_cla": False,
    "use_mrope": False,
}
"""Fields of every class and of released files, with the value that goes without saying. A class
that has no windows still gives a cache object with windows if `sliding_window` has a width."""

TABLES_OF_ANGLES = frozenset(
    """
    alpha attention_factor beta_fast beta_slow factor high_freq_factor llama_4_scaling_beta
    long_factor long_mscale low_freq_factor max_position_embeddings mscale mscale_all_dim
    original_max_position_embeddings rope_theta rope_type short_factor short_mscale truncate type
    """.split()  # noqa: SIM905 - as above
)
"""Names of rotary parameters that only change numbers in tables of cosines and sines, and of a
scale of queries, `llama_4_scaling_beta`, that remarks on its classes call not counted."""


MOST_LAYERS = 10_000
"""The largest number of layers, and of a layer that an option names: readers make a block for each
layer."""


class FieldSize(int):
    """A size, with the name of its field for messages, or a formula of such names."""

    field: str

    @classmethod
    def of(cls, field: str, size: int) -> FieldSize:
        """The size that the field `field` has."""
        found = cls(size)
        found.field = field
        return found


@dataclass
class Configuration:
    """The fields of the file `path` (name -> value), the defaults of the model's class for missing
    fields, and the names of the fields that a reader took (`fields_read`)."""

    path: Path
    fields: Mapping[str, Any]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    fields_read: set[str] = field(default_factory=set)
    spellings: Mapping[str, str] = field(default_factory=dict)
    """Usual name of a field -> the name that the class has for the field."""
    older: frozenset[str] = frozenset()
    """Names of fields of older files, which the class reads too."""
    around: Mapping[str, Any] = field(default_factory=dict)
    """The fields of the whole file where `fields` are those of its text alone, which an object in
    it has ("text_config"); {} where `fields` are the whole file's."""
    remark: str = ""
    """A sentence on what counts leave out, such as towers for images; "" for nothing."""
    by_default: dict[str, int] = field(default_factory=dict)
    """The sizes that a reader took and the file does not give, of objects in it too: name of the
    field -> the default of the class."""

    def with_defaults(self, defaults: Mapping[str, Any]) -> Configuration:
        """This configuration, changed: with the defaults of its class for fields not given."""
        self.defaults = defaults
        return self

    def with_class(self) -> Configuration:
        """This configuration, changed: with the defaults and spellings of transformers' class, from
        tables/transformers; ModelError if two spellings of a field say different values."""
        found = read_data(data_dir("transformers") / "defaults.json")[self.fields["model_type"]]
        self.spellings, self.older = found["spellings"], frozenset(found["older"])
        for name, own in self.spellings.items():
            one, two = self.fields.get(name), self.fields.get(own)
            if None not in (one, two) and one != two:
                raise self.refused(
                    f"{name} = {one!r} and {own} = {two!r} are two names of one field: leave out "
                    "one of the two"
                )
        return self.with_defaults(found["defaults"])

    def nested(self, name: str, defaults: Mapping[str, Any] | None = None) -> Configuration:
        """The object in a field as a configuration of its own, without fields if the field is
        missing or null; ModelError for any other value."""
        given = self.get(name)
        if not isinstance(given, dict | None):
            raise self.refused(f"'{name}' must be an object, got {given!r}")
        return Configuration(self.path, given or {}, defaults or {}, by_default=self.by_default)

    def inside(
        self, name: str, read: Mapping[str, Any], numbers: str = "", **only: Any
    ) -> Configuration:
        """Read the object in the field `name`, such as MPT's "attn_config": {"attn_type": ...}, as
        a configuration of its own, without fields if none is given.

        Args:
            read: the fields of the object that the caller reads -> their defaults.
            numbers: fields of the object that change no count, separated by spaces.
            only: fields of the object with the one value that is read, `prefix_lm=False`.

        Raises:
            ModelError: no object, another field, or another value.
        """
        found = self.nested(name, {**ANYWHERE, **read})
        found.require({field: (value,) for field, value in only.items()})
        found.fields_read.update((*read, *numbers.split()))
        found.refuse_unread()
        return found

    @property
    def name(self) -> str:
        """The model's name: its own, or else its type."""
        name = self.fields.get("_name_or_path")
        return name if isinstance(name, str) and name else str(self.fields["model_type"])

    @property
    def source(self) -> str:
        """The file and its type of model, for documents: "config.json, model_type llama"."""
        return f"{self.path}, model_type {self.fields['model_type']}"

    @property
    def dtype(self) -> str:
        """The element type of the weights, "" if none is named; ModelError for an unknown one."""
        for name in ("dtype", "torch_dtype"):
            if (found := self.fields.get(name)) is not None:
                if (known := DTYPES.get(str(found).removeprefix("torch."))) is None:
                    raise self.refused(
                        f"{name} = {found!r} is unknown: expected {', '.join(DTYPES)}; --ignore "
                        f"{name} leaves the field out"
                    )
                return known
        return ""

    def refused(self, words: str) -> ModelError:
        """The error that says what is wrong with the file."""
        return ModelError(f"{self.path}: {words}")

    def get(self, *names: str) -> Any:
        """The value of a field under the first of its spellings `names` that is given and not null,
        else the default of the model's class; None if there is none, or if the first spelling is
        null in spite of a default. All spellings count as read, those of the class included."""
        names = self._spelled(names)
        self.fields_read.update(names)
        for name in names:
            if self.fields.get(name) is not None:
                return self.fields[name]
        if names[0] in self.fields and names[0] in self.defaults:
            return None
        return next((self.defaults[name] for name in names if name in self.defaults), None)

    def _spelled(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """The spellings of a field, and those of the model's class."""
        # the class may have another name for a usual one, and a caller may give either
        own = (self.spellings[n] for n in names if n in self.spellings)
        return (*names, *own, *(n for n, of in self.spellings.items() if of in names))

    def of_class(self, *names: str) -> list[str]:
        """Of the names of a field, those that the model's class reads, in the order given."""
        known = {*self.defaults, *self.spellings, *self.spellings.values(), *self.older}
        return [name for name in names if name in known]

    def size(self, *names: str) -> FieldSize:
        """The positive integer in a field, whose name has the spellings `names`: the first that is
        given counts; ModelError for any other value, or none."""
        found = self.size_or_none(*names)
        if found is None:
            raise self.refused(f"the size '{names[0]}' is missing: add the field")
        return found

    def size_or_none(self, *names: str, least: int = 1) -> FieldSize | None:
        """The integer in a field, whose name has the spellings `names`, positive or, if `least` is
        0, from 0 on, and at most `LARGEST`, of layers `MOST_LAYERS`; None if it is missing or null,
        ModelError for any other value."""
        value = self.get(*names)
        if value is None:
            return None
        spelled = self._spelled(names)
        places = (self.fields, self.defaults)
        there = (n for place in places for n in spelled if place.get(n) is not None)
        name = next(there, names[0])
        most = MOST_LAYERS if name.endswith(("layer", "layers")) else LARGEST
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not whole or not least <= value <= most:
            expected = "a positive integer" if least else "0 or a positive integer"
            bound = f" of {most:,} at most" if whole and value > most else ""
            raise self.refused(f"'{name}' must be {expected}{bound}, got {value!r}")
        if value and self.fields.get(name) is None:
            self.by_default[name] = value
        return FieldSize.of(name, value)

    def divide(self, part: str, whole: str) -> None:
        """Raise ModelError, with the names that the file has for the fields, unless the number in
        the field `part` divides that in the field `whole`, or one of the two is missing."""
        small, large = self.size_or_none(part), self.size_or_none(whole)
        if small and large and large % small:
            raise self.refused(f"{small.field} = {small} does not divide {large.field} = {large}")

    def number(self, *names: str) -> int:
        """The integer, 0 or positive, in a field with the spellings `names`; 0 if it is missing or
        null, ModelError for any other value."""
        return self.size_or_none(*names, least=0) or 0

    def positive(self, name: str) -> float:
        """The positive, finite number in a field; ModelError for any other value, or none."""
        value = self.get(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < inf:
            raise self.refused(f"'{name}' must be a positive number, got {value!r}")
        return value

    def listing(self, name: str) -> list[Any] | None:
        """The list in a field; None if it is missing or null, ModelError for any other value."""
        value = self.get(name)
        if not isinstance(value, list | tuple | None):
            raise self.refused(f"'{name}' must be a list, got {value!r}")
        return None if value is None else [*value]

    def layers(self, name: str) -> list[int] | None:
        """The integers in the list of the field `name`, numbers of layers from 0 on (-1 or 99 stay,
        and name no layer); None if it is missing or null, ModelError for any other value."""
        found = self.listing(name)
        if any(type(one) is not int for one in found or ()):
            raise self.refused(f"'{name}' must list layers by number, from 0 on, got {found!r}")
        return found

    def flags(self, name: str, layers: int) -> list[bool] | None:
        """A list with a bool for each of a number of `layers`, from a list of 0 and 1 in the field
        `name`; None if it is missing, null or empty, ModelError for any other value."""
        found = self.listing(name) or None
        if found and (len(found) != layers or any(one not in (0, 1) for one in found)):
            raise self.refused(f"'{name}' must say 0 or 1 for each of {layers} layers")
        return found and [*map(bool, found)]

    def replaced(self, **older: str) -> None:
        """Let a field of released files, if given, take the place of the class's field, whatever
        that says, as the class does: `replaced(tie_word_embeddings="tie_embedding")`."""
        self.fields_read.update(older.values())
        given = {name: self.fields[own] for name, own in older.items() if own in self.fields}
        self.fields = {**self.fields, **given}

    def switch(self, name: str, usual: bool | None = None) -> bool:
        """The value of a field that is true or false; `usual` if it is not given and the class has
        no default. ModelError for any other value."""
        found = self.get(name)
        found = usual if found is None else found
        if not isinstance(found, bool):
            raise self.refused(f"'{name}' must be true or false, got {found!r}")
        return found

    def some(self, *names: str) -> bool:
        """Whether one of the fields, each a probability, is above 0; ModelError for a value that is
        no number from 0 to 1."""
        values = [self.get(name) for name in names]
        for name, found in zip(names, values, strict=True):
            number = isinstance(found, (int, float)) and not isinstance(found, bool)
            if not number or not 0 <= found <= 1:
                raise self.refused(f"'{name}' must be a number from 0 to 1, got {found!r}")
        return any(values)

    def activation(self, name: str) -> str:
        """The name that this project gives the activation in a field; ModelError if unknown."""
        found = self.get(name)
        if not isinstance(found, str) or found not in ACTIVATIONS:
            raise self.refused(
                f"{name} '{found}' is unknown: expected one of {', '.join(ACTIVATIONS)}"
            )
        return ACTIVATIONS[found]

    def require(self, wanted: Mapping[str, tuple[Any, ...]]) -> None:
        """Check fields whose other values are not modelled here: raise ModelError if a field has a
        value other than those that `wanted` (field -> values) lists. A missing field counts as the
        first value listed. The fields count as read."""
        for name, allowed in wanted.items():
            self.fields_read.add(name)
            value = self.fields.get(name, allowed[0])
            if value not in allowed:
                raise self.refused(
                    f"{name} = {value!r} is not supported: expected "
                    f"{' or '.join(map(repr, allowed))}"
                )

    def agree(self, **values: Any) -> None:
        """Check fields that repeat what other fields say, and that the model's class itself does
        not read: raise ModelError if a field's value differs from that in `values`. The fields
        count as read. A missing field passes."""
        for name, value in values.items():
            self.fields_read.add(name)
            found = self.fields.get(name)
            if found is not None and found != value:
                raise self.refused(
                    f"{name} = {found!r} contradicts other fields, from which {value!r} follows: "
                    f"leave out {name}"
                )

    def architecture(self, *known: str) -> str:
        """The name of the model's class: the first of `known` if the configuration names none;
        ModelError for a class that is not in `known`."""
        self.fields_read.add("architectures")
        named = self.fields.get("architectures") or [known[0]]
        name = named[0] if isinstance(named, list) else named
        if not isinstance(name, str) or name not in known:
            raise self.refused(
                f"architecture '{name}' is not supported: expected one of {', '.join(known)}"
            )
        return name

    def layer_types(
        self, layers: int, known: Collection[str], listed: Any = None, field: str = "layer_types"
    ) -> list[str] | None:
        """The kind of each of `layers` layers ("full_attention", "linear_attention", ...), as the
        list `listed`, or else the field `field`, says; None without a list. Older names of kinds
        are replaced by today's.

        Raises:
            ModelError: a list of another length, or a kind that is not in `known`.
        """
        found = self.get(field) if listed is None else listed
        if found is None:
            return None
        if not isinstance(found, list) or len(found) != layers:
            raise self.refused(f"'{field}' must name the kind of each of {layers} layers")
        renamed = {"mamba": "linear_attention", "attention": "full_attention"}
        kinds = [kind if kind in known else renamed.get(kind, kind) for kind in map(str, found)]
        for kind, written in zip(kinds, found, strict=True):
            if kind not in known:
                raise self.refused(f"{field} has '{written}': expected {', '.join(known)}")
        return kinds

    def rotary(self, kind: str = "") -> Mapping[str, Any]:
        """The parameters of the rotary embedding, name -> value, except those that change angles
        alone and so no count (`TABLES_OF_ANGLES`). Where each kind of layer has an object of its
        own, those of `kind`, or of all for ""; a null says nothing. ModelError if a field holds no
        object."""
        found: dict[str, Any] = {}
        for name in ("rope_parameters", "rope_scaling"):
            for key, value in self.nested(name).fields.items():
                if isinstance(value, dict) and kind in ("", key):
                    found.update({k: v for k, v in value.items() if k not in TABLES_OF_ANGLES})
                elif not isinstance(value, dict | None) and key not in TABLES_OF_ANGLES:
                    found[key] = value
        return found

    def refuse_unread(self) -> None:
        """Raise ModelError for a field that no reader has read, since a count may depend on it,
        unless its value is the default, or no count of any model depends on it."""
        usual = {**ANYWHERE, **self.defaults}
        for name, value in self.fields.items():
            if name in self.fields_read or name in COUNT_NOTHING:
                continue
            if name in usual and value == usual[name]:
                continue
            known = f" (the default is {usual[name]!r})" if name in usual else ""
            if isinstance(value, list) and len(value) == self.get("num_hidden_layers"):
                known += " (the class reads layer_types)" * ("layer_types" in self.defaults)
            raise self.refused(
                f"the field '{name}' = {value!r} is not read{known}, but counts may depend on the "
                f"field: --ignore {name} counts without the field"
            )
