"""The verbs of the command line: a table, from which arguments are read and help is answered."""

from __future__ import annotations

import importlib
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kata.config.decode import decode
from kata.config.flags import assign, parse_flags
from kata.config.help import closing, heading, screen, selected, table
from kata.config.schema import EVERYTHING, Entry, choice_of, entries, is_required
from kata.errors import ConfigError, did_you_mean

GROUP = "dataset"
"""The group whose options may be written without it: --root is --dataset.root."""

HELP = ("-h", "--help")


@dataclass(frozen=True, kw_only=True)
class Verb:
    """One verb of the command line. Its modules are imported when it runs.

    Attributes:
        says: a sentence for help.
        usage: what follows the verb.
        work: 'module:function', from an instance of the options (and what stands after '--') to an
            exit status; where `is_raw`, from the arguments themselves.
        options: 'module:name' of the class of options, or of a function from the value of the
            option `variant` to such classes by heading ('*' gives all).
        variant: the option that chooses among classes.
        word: the option that words without a name belong to.
        has_rest: True where arguments of another verb stand after '--'.
        is_raw: True where the work reads the arguments itself.
        verbs: the verbs below this one.
        footer: further lines of a plain --help.
    """

    says: str
    usage: str = "[options]"
    work: str = ""
    options: str = ""
    variant: str = ""
    word: str = ""
    has_rest: bool = False
    is_raw: bool = False
    verbs: Mapping[str, Verb] = field(default_factory=dict[str, "Verb"])
    footer: tuple[str, ...] = ()

    def classes(self, variant: str = "") -> dict[str, type]:
        """Return the class of options, '' before it; of a verb with variants, theirs by heading."""
        if not self.options:
            return {}
        found = _named(self.options)
        return {"": found} if isinstance(found, type) else found(variant)

    def entries(self, chosen: Mapping[str, str]) -> list[Entry]:
        """Return the options, those of chosen types and variants included; see `schema.entries`."""
        listed: list[Entry] = []
        for title, cls in self.classes(choice_of(chosen, self.variant)).items():
            listed += entries(cls, chosen, section=title)
        return listed


def _named(target: str) -> Any:
    module, name = target.split(":")
    return importlib.import_module(module).__dict__[name]


def run_verb(verb: Verb, args: Sequence[str], path: str) -> int:
    """Run the verb that `args` begin with, or answer --help, and return the exit status.

    Args:
        verb: the verb that `path` names.
        args: what stands behind it.
        path: the command so far, such as 'kata data'.

    Raises: ConfigError for an unknown verb or option, with the nearest.
    """
    if args and args[0] in verb.verbs:
        return run_verb(verb.verbs[args[0]], args[1:], f"{path} {args[0]}")
    own, rest = _split(args) if verb.has_rest else (list(args), [])
    query = _help_query(own)
    if query is not None or (verb.verbs and not args):
        print(help_screen(verb, own, path, query or ""), end="")
        return 0
    if not verb.work:
        raise ConfigError(
            f"'{args[0]}': no such verb of {path}",
            rule=f"verbs: {', '.join(verb.verbs)}",
            remedy=did_you_mean(args[0], verb.verbs),
        )
    if verb.is_raw:
        return _named(verb.work)(args)
    options = read_options(verb, own, path)
    work = _named(verb.work)
    return work(options, rest) if verb.has_rest else work(options)


def _split(args: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return what stands before and after the first '--'."""
    where = list(args).index("--") if "--" in args else len(args)
    return list(args[:where]), list(args[where + 1 :])


def _help_query(args: list[str]) -> str | None:
    """Return what `--help=<word>` asks for, '' for a plain --help, None without one."""
    if args[:1] == ["help"]:
        return ""
    for arg in args:
        if arg in HELP:
            return ""
        if arg.startswith("--help="):
            return arg.removeprefix("--help=")
    return None


def read_options(verb: Verb, args: Sequence[str], path: str) -> Any:
    """Return the instance of the verb's options that the arguments ask for.

    Words in front of the flags belong to the option `verb.word`: one, or all where it is a list.

    Raises: ConfigError for an unknown option (with the nearest), a wrong value, or a stray word.
    """
    words: list[str] = []
    rest = list(args)
    while rest and not rest[0].startswith("-") and "=" not in rest[0]:
        words.append(rest.pop(0))
    if verb.has_rest and "train" in args:
        command = path + "".join(f" {arg}" for arg in args[: list(args).index("train")])
        raise ConfigError(
            "'train' without '--' in front of it",
            rule="options of train stand after '--', where they are not taken for others",
            remedy=f"{command} -- train …",
        )
    flags = parse_flags(rest)
    cls = next(iter(verb.classes(str(flags.get(verb.variant, ""))).values()))
    _refuse_other_variant(verb, cls, flags)
    flags = _full_names(cls, flags)
    _name_words(verb, cls, words, flags, path)
    nested: dict[str, Any] = {}
    for name, value in flags.items():
        assign(nested, name, value)
    return decode(cls, nested, verb=path)


def _refuse_other_variant(verb: Verb, cls: type, flags: Mapping[str, Any]) -> None:
    """Refuse an option that only another variant of the verb has, such as --nodes without SLURM."""
    own = {entry.name for entry in entries(cls)}
    for title, other in verb.classes("*").items() if verb.variant else ():
        theirs = {entry.name for entry in entries(other)} - own
        for name in theirs & set(flags):
            raise ConfigError(
                f"--{name}: an option of {title}",
                rule=f"{verb.variant}={flags.get(verb.variant, 'local')} has other options",
                remedy=f"add {title}, or leave out --{name}",
            )


def _full_names(cls: type, flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flags with short forms and aliases written out."""
    listed = list(entries(cls))
    known = {entry.name for entry in listed}
    aliases: dict[str, str] = {}
    for entry in listed:
        aliases |= dict.fromkeys(entry.declared.aliases, entry.name)
    for name in known:
        short = name.removeprefix(f"{GROUP}.")
        if short not in known:
            aliases.setdefault(short, name)
    return {aliases.get(name, name): value for name, value in flags.items()}


def _name_words(verb: Verb, cls: type, words: list[str], flags: dict[str, Any], path: str) -> None:
    """Put the words in front of the flags among them, under the name that they belong to.

    Raises: ConfigError for a word too many, and where the option is required and not there.
    """
    usage = f"usage: {path} {verb.usage}"
    entry = next((each for each in entries(cls) if each.name == verb.word), None)
    takes_all = entry is not None and typing.get_origin(entry.hint) is list
    stray = words if entry is None else words[1:]
    if stray and not takes_all:
        raise ConfigError(f"'{stray[0]}' is not an option", rule=usage, remedy="put '--' in front")
    if words and verb.word in flags:
        what = f"{words[0]}: given beside --{verb.word}"
        raise ConfigError(what, rule="once", remedy=f"leave out '{words[0]}'")
    if words:
        flags[verb.word] = words if takes_all else words[0]
    elif entry is not None and is_required(entry) and entry.name not in flags:
        says = entry.declared.help.rstrip(".")
        raise ConfigError(f"{path}: no {entry.name}", rule=says, remedy=usage)


def help_screen(verb: Verb, args: Sequence[str], path: str, query: str) -> str:
    """Return the help of a verb: its verbs, or the options that `query` selects.

    A type among the arguments, such as --policy.type=act, selects that type's options.
    """
    usage = f"{path} {verb.usage}"
    if not verb.options:
        below = table((name, each.says) for name, each in verb.verbs.items())
        return "\n".join([*heading(usage, verb.says), "", *below, *closing(verb.footer)]) + "\n"
    chosen = chosen_types(verb, args)
    listed = verb.entries(chosen or (EVERYTHING if query else {}))
    if chosen and not query and not verb.variant:
        shown = [entry for entry in listed if entry.section.startswith("--")]
    else:
        shown = selected(listed, query)
    return screen(usage, verb.says, shown, [*_more(path, len(shown), len(listed)), *verb.footer])


def _more(path: str, shown: int, listed: int) -> list[str]:
    """Return what else there is to see."""
    if shown == listed:
        return []
    return [
        f"{shown} of {listed} options are shown, each with its default. `{path} --help=all` lists "
        "all, --help=<word> those that have to do with a word."
    ]


def chosen_types(verb: Verb, args: Sequence[str]) -> dict[str, str]:
    """Return the types and variants that arguments name: --policy.type=act is {'policy': 'act'}."""
    found: dict[str, str] = {}
    for arg in args:
        name, equals, value = arg.removeprefix("--").partition("=")
        if equals and value and (name.endswith(".type") or name == verb.variant):
            found[name.removesuffix(".type")] = value
    return found
