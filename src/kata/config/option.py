"""The declaration of options: type, default, help and rules stand at one field.

A class of options is a frozen dataclass that inherits `Options` and whose fields come from
`option`. Flags, files, help, refusals, the rules of resuming, completion and docs/options.md read
these declarations.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypedDict, Unpack

from kata.errors import ConfigError, KataError, did_you_mean, nearest
from kata.units import duration_s, num_bytes

REQUIRED: Any = dataclasses.MISSING
"""The default of an option that must be given."""

_KEY = "option"


@dataclass(frozen=True, slots=True)
class Form:
    """A form that a text must have.

    Attributes:
        rule: the form in words.
        example: a text that has it.
        fits: return True for a text that has it.
        meant: what words that somebody may write instead stand for.
    """

    rule: str
    example: str
    fits: Callable[[str], object]
    meant: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])


DURATION = Form(
    "seconds, or a number with s, m, h or d", "2h", lambda text: 0 < duration_s(text) < math.inf
)
BYTES = Form(
    "bytes, or a number with KB, MB, GB, TB, KiB, MiB, GiB or TiB",
    "4GB",
    lambda text: num_bytes(text) >= 1,
)
HUB_NAME = Form(
    "a Hub repository, <user>/<name>", "me/my-run", re.compile(r"[\w.-]+/[\w.-]+").fullmatch
)
VARIABLE = Form("NAME=VALUE", "NCCL_DEBUG=INFO", re.compile(r"[A-Za-z_]\w*=[^\n]*").fullmatch)
DEVICE = Form(
    "cpu, cuda, cuda:<number> or mps",
    "cuda",
    re.compile(r"cpu|mps|cuda(:\d+)?").fullmatch,
    {"cpu": "cpu", "cuda": "cuda", "gpu": "cuda", "nvidia": "cuda", "mps": "mps", "metal": "mps"},
)


class OptionRules(TypedDict, total=False):
    """The optional parts of a declaration. The rules of a list hold for each of its entries.

    Attributes:
        choices: the only values.
        least: lower bound of a number; the bound itself is allowed.
        most: upper bound of a number; the bound itself is allowed.
        above: lower bound of a number; the bound itself is not allowed.
        below: upper bound of a number; the bound itself is not allowed.
        form: the form of a text.
        unit: the unit of a number, for help.
        section: the heading in help, which the following fields share.
        is_common: True if a plain --help shows it.
        may_change: True if a resumed run may set it differently.
        per_machine: True if ranks may have different values.
        is_own: True if LeRobot has no such field.
        is_pretrained: True if it names a pretrained model or tokenizer: a Hub name, or a folder,
            which a run keeps as an absolute path.
        aliases: other names on the command line.
    """

    choices: tuple[Any, ...]
    least: float
    most: float
    above: float
    below: float
    form: Form
    unit: str
    section: str
    is_common: bool
    may_change: bool
    per_machine: bool
    is_own: bool
    is_pretrained: bool
    aliases: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Declaration:
    """One option's help and rules; see `OptionRules`."""

    help: str = ""
    choices: tuple[Any, ...] = ()
    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None
    form: Form | None = None
    unit: str = ""
    section: str = ""
    is_common: bool = False
    may_change: bool = False
    per_machine: bool = False
    is_own: bool = False
    is_pretrained: bool = False
    aliases: tuple[str, ...] = ()

    def bounds(self) -> list[tuple[str, str, float]]:
        """Return the bounds as (words, sign, number)."""
        every = (
            ("at least", ">=", self.least),
            ("above", ">", self.above),
            ("at most", "<=", self.most),
            ("below", "<", self.below),
        )
        return [(words, sign, number) for words, sign, number in every if number is not None]

    def allows(self, value: object) -> bool:
        """Return True unless this one value, not a list, breaks a rule."""
        if isinstance(value, str) and self.form is not None and not self.form.fits(value):
            return False
        types = tuple({type(choice) for choice in self.choices} - {type(None)})
        # A value of another type is another form of the option, as the true of `bool | str`.
        if isinstance(value, types) and value not in self.choices:
            return False
        if not isinstance(value, int | float) or isinstance(value, bool):
            return True
        return (
            math.isfinite(value)
            and (self.least is None or value >= self.least)
            and (self.most is None or value <= self.most)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )


_NOTHING = Declaration()


def option(default: Any, help_text: str, **rules: Unpack[OptionRules]) -> Any:
    """Declare an option as a field of a dataclass.

    Args:
        default: the value where none is given; a callable makes it; REQUIRED for none.
        help_text: a sentence for the user, with the unit of a number.
        rules: see `OptionRules`.
    """
    metadata = {_KEY: Declaration(help=help_text, **rules)}
    if callable(default):
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def changed_option(cls: type, name: str) -> Any:
    """Declare an option that changes `name` of other options; null, the default, leaves it."""
    return dataclasses.field(default=None, metadata={_KEY: declaration(cls, name)})


def declaration(cls: type, name: str) -> Declaration:
    """Return the declaration of the field `name` in `cls`, or in the nearest base class that has
    one.

    A subclass that only changes a default writes `name: int = 5` and keeps help and rules.
    """
    for base in cls.__mro__:
        field: Any = base.__dict__.get("__dataclass_fields__", {}).get(name)
        if field is not None and _KEY in field.metadata:
            return field.metadata[_KEY]
    return _NOTHING


class Options:
    """A base class of dataclasses of options that refuses values which break a declared rule."""

    at: ClassVar[str] = ""
    """The prefix of the options' names in messages, such as 'dataset.'."""

    refused_with: ClassVar[type[KataError]] = ConfigError

    beside: ClassVar[dict[str, str]] = {}
    """Names that flags and files may have in addition to the fields, with their help."""

    def __post_init__(self) -> None:
        """Check the values; subclasses with rules between options call this first."""
        for field in dataclasses.fields(self):  # pyright: ignore[reportArgumentType]
            declared = declaration(type(self), field.name)
            value = self.__dict__[field.name]
            refuse_broken(declared, self.at + field.name, value, field.default, self.refused_with)


class Chosen(Options):
    """A base class of options that a `type` key chooses among: optimizers, schedules, policies.

    The class directly below this one is the family; each subclass with a `type_name` is a member.
    """

    type_name: ClassVar[str] = ""
    members: ClassVar[dict[str, Any]]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Register the class with its family."""
        super().__init_subclass__(**kwargs)
        if Chosen in cls.__bases__:
            cls.members = {}
        elif cls.__dict__.get("type_name"):
            cls.members[cls.type_name] = cls

    @property
    def type(self) -> str:
        """Return the name under which flags and files choose this class."""
        return self.type_name

    @classmethod
    def type_names(cls) -> list[str]:
        """Return the names of all members."""
        return list(cls.members)

    @classmethod
    def type_class(cls, name: str) -> type[Chosen]:
        """Return the member called `name`.

        Raises: ConfigError with the nearest name for an unknown one.
        """
        if name not in cls.members:
            raise ConfigError(
                f"{cls.at}type={name}: unknown",
                rule=f"one of: {', '.join(sorted(cls.members))}",
                remedy=did_you_mean(name, cls.members),
            )
        return cls.members[name]


def refuse_broken(
    declared: Declaration,
    name: str,
    value: object,
    default: object = None,
    error: type[KataError] = ConfigError,
    *,
    written: str = "",
) -> None:
    """Raise `error` where a value, or an entry of a list, breaks a declared rule.

    Args:
        declared: the rules.
        name: the dotted name of the option in the message.
        value: the value, of the option's type.
        default: the option's default, which the remedy names.
        error: class of the error.
        written: the value as the user wrote it, where that is known.
    """
    entries: list[object] = list(value) if isinstance(value, list | tuple) else [value]
    broken = [entry for entry in entries if not declared.allows(entry)]
    if not broken:
        return
    rule = rule_text(declared, is_whole=isinstance(broken[0], int))
    is_list = isinstance(value, list | tuple)
    remedy = _remedy(declared, name, broken[0], default, is_list=is_list)
    raise error(f"{name}={written or shown(value)}", rule=rule, remedy=remedy)


def rule_text(declared: Declaration, *, is_whole: bool) -> str:
    """Return the declared rule in words."""
    if declared.choices:
        return f"one of: {', '.join(map(shown, declared.choices))}"
    if declared.form is not None:
        return declared.form.rule
    bounds = " and ".join(f"{words} {number}" for words, _, number in declared.bounds())
    joint = "of " if bounds.startswith("at") else ""
    return f"a {'whole' if is_whole else 'finite'} number {joint}{bounds}".rstrip()


def _remedy(
    declared: Declaration, name: str, value: object, default: object, *, is_list: bool
) -> str:
    if declared.choices:
        near = nearest(shown(value), map(shown, declared.choices))
        default = default if default in declared.choices else declared.choices[0]
        return f"did you mean '{near}'?" if near else f"for example --{name}={shown(default)}"
    if declared.form is not None:
        near = nearest(str(value).lower(), declared.form.meant)
        if near:
            return f"did you mean '{declared.form.meant[near]}'?"
        if not isinstance(value, str):
            return f"leave out --{name} for the default"
        return f"for example --{name}={declared.form.example}"
    candidates = [default, declared.least, declared.most, 1, 0.5]
    fitting = [
        each for each in candidates if each not in (None, REQUIRED) and declared.allows(each)
    ]
    if is_list or not fitting:
        return f"leave out --{name} for the default"
    return f"for example --{name}={shown(fitting[0])}"


def shown(value: object) -> str:
    """Return a value as one would write it in a flag."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{','.join(map(shown, value))}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {shown(inner)}" for key, inner in value.items()) + "}"
    return str(value)


def names_where(options: Any, rule: Callable[[Declaration], bool], prefix: str = "") -> list[str]:
    """Return the dotted names of the options, or groups of them, whose declaration fits `rule`.

    Args:
        options: a dataclass instance; groups and lists of groups below it are entered.
        rule: returns True for the declaration of an option to name.
        prefix: of every name.
    """
    found: list[str] = []
    for field in dataclasses.fields(options):
        name = prefix + field.name
        value = options.__dict__[field.name]
        if rule(declaration(type(options), field.name)):
            found.append(name)
        elif isinstance(value, Options):
            found += names_where(value, rule, name + ".")
        elif isinstance(value, list):
            for number, entry in enumerate(value):
                if isinstance(entry, Options):
                    found += names_where(entry, rule, f"{name}[{number}].")
    return found
