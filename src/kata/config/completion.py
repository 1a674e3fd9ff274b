"""Shell completion: scripts for bash, zsh and fish, and the words that they ask for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from kata.config.option import REQUIRED, Options, option, shown
from kata.config.schema import Entry, alternatives
from kata.config.verb import Verb, chosen_types


@dataclass(frozen=True, kw_only=True)
class CompletionOptions(Options):
    """Options of `kata completion`."""

    shell: str = option(
        REQUIRED,
        "Shell whose script is printed; 'words' answers the scripts.",
        choices=("bash", "zsh", "fish", "words"),
    )
    line: str = option("", "With 'words': the command line up to the cursor.")


SCRIPTS = {
    "bash": """\
# Completion of kata for bash: source <(kata completion bash)
_kata() {
    local line="${COMP_LINE:0:COMP_POINT}" word IFS=$'\\n'
    COMPREPLY=($(kata completion words --line="$line" 2>/dev/null))
    word="${line##* }"
    # bash splits words at '=': what stands before it is typed already.
    if [[ "$word" == *=* && "$COMP_WORDBREAKS" == *=* ]]; then
        COMPREPLY=("${COMPREPLY[@]#*=}")
    fi
    if [[ "${#COMPREPLY[@]}" == 1 && "${COMPREPLY[0]}" == *[=.] ]]; then
        compopt -o nospace 2>/dev/null
    fi
}
complete -o default -F _kata kata
""",
    "zsh": """\
#compdef kata
# Completion of kata for zsh: source <(kata completion zsh)
_kata() {
    local -a found
    found=("${(@f)$(kata completion words --line="${(j: :)words[1,CURRENT]}" 2>/dev/null)}")
    found=(${found:#})
    if (( $#found )); then
        compadd -S '' -- $found
    else
        compset -P '*='
        _files
    fi
}
compdef _kata kata
""",
    "fish": """\
# Completion of kata for fish: kata completion fish | source
complete -c kata -a '(kata completion words --line=(commandline -cp | string collect) 2>/dev/null)'
""",
}


def completions(root: Verb, line: str) -> list[str]:
    """Return the words that may stand where a command line ends.

    Args:
        root: the verb `kata`.
        line: the command line up to the cursor. Its last word is what is being typed.

    Returns: verbs, `--name=`, `--group.`, or `--name=value`; nothing where files may stand.
    """
    words = line.split(" ")[1:] or [""]
    verb, args = _verb_of(root, words[:-1])
    current = words[-1]
    if not args and verb.verbs and not current.startswith("-"):
        return [name for name in verb.verbs if name.startswith(current)]
    if not verb.options or (current and not current.startswith("--")):
        return []
    listed = verb.entries(chosen_types(verb, args))
    name, equals, value = current.removeprefix("--").partition("=")
    if equals:
        values = next((_values(entry) for entry in listed if entry.name == name), [])
        return [f"--{name}={each}" for each in values if each.startswith(value)]
    names = [f"{entry.name}=" for entry in listed if "[]" not in entry.name]
    return [f"--{each}" for each in _up_to_the_dot([*names, "help"], name)]


def _verb_of(root: Verb, words: Sequence[str]) -> tuple[Verb, list[str]]:
    """Return the verb that the words begin with and what follows; after '--', of the verb there."""
    if "--" in words:
        return _verb_of(root, words[list(words).index("--") + 1 :])
    verb, rest = root, list(words)
    while rest and rest[0] in verb.verbs:
        verb = verb.verbs[rest.pop(0)]
    return verb, rest


def _up_to_the_dot(names: Sequence[str], typed: str) -> list[str]:
    """Return the names that begin as typed, those of a group as the group alone."""
    found: dict[str, None] = {}
    for name in names:
        if name.startswith(typed):
            dot = name.find(".", len(typed))
            found[name if dot < 0 else name[: dot + 1]] = None
    return list(found)


def _values(entry: Entry) -> list[str]:
    if entry.declared.choices:
        return [shown(choice) for choice in entry.declared.choices]
    if entry.declared.form is not None:
        return list(dict.fromkeys(entry.declared.form.meant.values()))
    kinds: list[Any] = alternatives(entry.hint)
    if bool in kinds:
        return ["true", "false"]
    words: list[str] = []
    for kind in kinds:
        if isinstance(kind, type) and issubclass(kind, Enum):
            words += [str(member.value) for member in kind]
    return words
