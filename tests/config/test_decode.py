"""Options are read as their declared type; a value that breaks type or rule is refused."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, ClassVar

import pytest

from kata.config import (
    BYTES,
    DEVICE,
    DURATION,
    REQUIRED,
    Chosen,
    Options,
    Text,
    assign,
    decode,
    encode,
    flags_of,
    names_where,
    option,
    parse_flags,
)
from kata.errors import ConfigError


class Mode(StrEnum):
    FIRST = "first"
    SECOND = "second"


@dataclass(frozen=True, kw_only=True)
class Shape(Chosen):
    at: ClassVar[str] = "shape."
    width: int = option(1, "Width.", least=1)


@dataclass(frozen=True, kw_only=True)
class Circle(Shape):
    type_name: ClassVar[str] = "circle"
    width: int = 5
    radius: float = option(2.0, "Radius.", above=0)


@dataclass(frozen=True, kw_only=True)
class Square(Shape):
    type_name: ClassVar[str] = "square"


@dataclass(frozen=True, kw_only=True)
class Part(Options):
    name: str = option(REQUIRED, "Name of the part.")
    share: float | None = option(None, "Share.", above=0, most=1)


@dataclass(frozen=True, kw_only=True)
class Switched(Options):
    at: ClassVar[str] = "switched."
    enable: bool = option(False, "On.")
    power: float = option(0.5, "Power.")


@dataclass(frozen=True, kw_only=True)
class All(Options):
    count: int = option(3, "How many.", least=1, most=2**64 - 1, may_change=True)
    rate: float = option(0.5, "Rate.", least=0, below=1)
    is_on: bool = option(False, "Switch.")
    name: str | None = option(None, "Name.")
    kind: str = option("auto", "Kind.", choices=("auto", "full", "clips"))
    level: int = option(0, "Level.", choices=(0, 1, 2))
    bits: int | None = option(None, "Bits.", choices=(None, 8, 4))
    images: bool | str = option(True, "Images.", choices=("none", "all"))
    device: str | None = option(None, "Device.", form=DEVICE)
    time: str | None = option(None, "Time.", form=DURATION)
    memory: str | None = option(None, "Memory.", form=BYTES, per_machine=True)
    episodes: list[int] | str | None = option(None, "Episodes.", least=0)
    gpus: int | list[int] | None = option(None, "GPUs.")
    words: list[str] = option(list, "Words.", aliases=("w",))
    targets: list[str] | str | None = option(None, "Targets.")
    pair: tuple[float, float] = option((0.9, 0.99), "Pair.", least=0)
    sizes: tuple[int, ...] = option((1,), "Sizes.")
    mode: Mode = option(Mode.FIRST, "Mode.")
    modes: dict[str, Mode] = option(dict, "Modes.")
    extra: dict[str, Any] = option(dict, "Anything.")
    parts: list[Part] | None = option(None, "Parts.")
    shape: Shape | None = option(None, "Shape.", may_change=True)
    switched: Switched = option(Switched, "")
    plain: int = field(default=0)


@dataclass(frozen=True, kw_only=True)
class Whole(Options):
    words: list[str] = option(list, "Words.")
    switched: Switched = option(Switched, "")


def read(*args: str) -> All:
    nested: dict[str, Any] = {}
    for name, value in parse_flags(args).items():
        assign(nested, name, value)
    return decode(All, nested, verb="kata try")


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("count=7", 7),
        ("count=1_000", 1000),
        ("count=0123", 123),
        ("count=1e3", 1000),
        ("count=8.0", 8),
        ("rate=1e-4", 1e-4),
        ("rate=0", 0.0),
        ("rate=.5", 0.5),
        ("is_on=true", True),
        ("is_on=on", True),
        ("is_on=no", False),
        ("is_on=False", False),
        ("name=no", "no"),
        ("name=1:30", "1:30"),
        ("name=0123", "0123"),
        ("name=1_000", "1_000"),
        ("name=1e3", "1e3"),
        ("name=2026-11-22", "2026-11-22"),
        ("name=[draft] a, b", "[draft] a, b"),
        ("name=null", None),
        ("name=None", None),
        ("name=", None),
        ("name='null'", "null"),
        ("name=true", "true"),
        ("episodes=[0,3]", [0, 3]),
        ("episodes=0,3", [0, 3]),
        ("episodes=3", [3]),
        ("episodes=1:3", "1:3"),
        ("episodes=available", "available"),
        ("episodes=[]", []),
        ("gpus=2", 2),
        ("gpus=[0,2]", [0, 2]),
        ("gpus=0,2", [0, 2]),
        ("words=a,b", ["a,b"]),
        ("words=[a, 'b c']", ["a", "b c"]),
        ("targets=all-linear", "all-linear"),
        ("targets=.*[qv]_proj", ".*[qv]_proj"),
        ("targets=[q_proj, v_proj]", ["q_proj", "v_proj"]),
        ("targets=[0]", ["0"]),
        ("pair=[0.5,1]", (0.5, 1.0)),
        ("sizes=[]", ()),
        ("mode=second", Mode.SECOND),
        ("modes={a: second}", {"a": Mode.SECOND}),
        ("modes.b=first", {"b": Mode.FIRST}),
        ("extra={a: [1, no, 0x1], b: null}", {"a": [1, "no", "0x1"], "b": None}),
        ("extra.c='1'", {"c": "1"}),
        ("time=90s", "90s"),
        ("memory=4GB", "4GB"),
        ("device=cuda:1", "cuda:1"),
        ("parts=[{name: x, share: 1}]", [Part(name="x", share=1.0)]),
        ("shape={type: circle}", Circle()),
        ("shape.type=square", Square()),
        ("shape=null", None),
        ("bits=null", None),
        ("bits=4", 4),
        ("images=false", False),
    ],
)
def test_a_text_is_read_as_its_options_type(flag, value):
    found = getattr(read(f"--{flag}"), flag.replace(".", "=").partition("=")[0])
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("count=many", "count=many | a whole number"),
        ("count=1.5", "count=1.5 | a whole number"),
        ("count", "count=true | a whole number"),
        ("count=0", "count=0 | of at least 1 and at most 18446744073709551615 | --count=3"),
        (f"count={2**64}", "18446744073709551615"),
        ("rate=1", "rate=1 | a finite number of at least 0 and below 1 | --rate=0.5"),
        ("rate=nan", "rate=nan | a number"),
        ("rate=inf", "rate=inf"),
        ("is_on=maybe", "is_on=maybe | true or false"),
        ("name", "name=true | text"),
        ("kind=clip", "one of: auto, full, clips | did you mean 'clips'?"),
        ("kind=zzz", "for example --kind=auto"),
        ("level=3", "one of: 0, 1, 2"),
        ("bits=2", "bits=2 | one of: null, 8, 4 | for example --bits=null"),
        ("images=some", "images=some | one of: none, all"),
        ("device=gpu", "device=gpu | cpu, cuda, cuda:<number> or mps | 'cuda'"),
        ("device=cdua", "'cuda'"),
        ("time=soon", "seconds, or a number with s, m, h or d | --time=2h"),
        ("memory=0", "--memory=4GB"),
        ("episodes=[-1]", "episodes=[-1] | at least 0"),
        ("gpus=two", "a whole number, or a list of whole numbers, or null"),
        ("gpus=[0,", "gpus=[0,"),
        ("pair=[0.9]", "pair=[0.9] | two numbers in a list"),
        ("pair=[0.9,-1]", "pair=[0.9,-1] | at least 0"),
        ("mode=third", "mode=third | first, second"),
        ("modes={a: third}", "modes={a: third} | first, second"),
        ("extra=5", "extra=5 | a mapping"),
        ("parts=[{share: 1}]", "parts[0].name: not given"),
        ("parts=[{name: a}, {name: b, share: 2}]", "parts[1].share=2 | above 0 and at most 1"),
        ("parts=[5]", "parts[0]=5: not a group of options"),
        ("switched=5", "switched=5: not a group | switched.enable"),
        ("shape.width=2", "shape.type: not given | circle, square"),
        ("shape.type=circel", "'circle'"),
        ("shape={type: circle, radius: 0}", "shape.radius=0 | above 0"),
        (
            "cuont=1",
            "--cuont: no such option of kata try | `kata try --help=all` | did you mean --count",
        ),
        ("share=1", "did you mean --parts[].share"),
        ("shape={type: circle, radiu: 1}", "did you mean --shape.radius?"),
        ("zzzzzz=1", "--help=zzzzzz"),
        ("switched.power=2", "--switched.power without --switched.enable | --switched.enable=true"),
    ],
)
def test_what_cannot_be_is_refused_with_value_rule_and_remedy(flag, words):
    with pytest.raises(ConfigError) as caught:
        read(f"--{flag}")
    for word in words.split(" | "):
        assert word in str(caught.value)
    assert caught.value.rule
    assert caught.value.remedy


def test_a_switch_that_is_named_may_be_off():
    assert read("--switched.enable=false", "--switched.power=2").switched == Switched(power=2.0)


def test_values_of_json_keep_their_type():
    raw = {
        "count": 2,
        "rate": 1e-3,
        "is_on": 1,
        "name": 5,
        "pair": [0, 1],
        "words": ["a"],
        "extra": {"a": "1"},
    }
    found = decode(All, raw)
    assert (found.count, found.rate, found.is_on, found.name, found.pair) == (
        2,
        1e-3,
        True,
        "5",
        (0.0, 1.0),
    )
    assert found.extra == {"a": "1"}
    for wrong in (
        {"count": True},
        {"count": "x"},
        {"rate": False},
        {"name": True},
        {"words": [None]},
    ):
        with pytest.raises(ConfigError):
            decode(All, wrong)


def test_rules_hold_for_what_is_made_in_python_too():
    for wrong in ({"count": 0}, {"kind": "clip"}, {"pair": (0.5, -1.0)}, {"rate": float("nan")}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            All(**wrong)
    with pytest.raises(ConfigError, match=r"shape\.width=0"):
        replace(Circle(), width=0)


def test_a_subclass_keeps_help_and_rules_of_a_default_that_it_changes():
    assert Circle().width == 5
    with pytest.raises(ConfigError, match="at least 1"):
        Circle(width=0)


def test_encoding_and_decoding_give_the_same_again():
    found = read(
        "--shape.type=circle", "--parts=[{name: a}]", "--modes={a: second}", "--pair=[0.1,0.2]"
    )
    plain = encode(found)
    assert plain["shape"] == {"type": "circle", "width": 5, "radius": 2.0}
    assert next(iter(plain["shape"])) == "type"
    assert plain["modes"] == {"a": "second"}
    assert decode(All, plain) == found


def test_what_may_change_and_what_is_a_machines_own_is_declared():
    found = All(parts=[Part(name="a")], shape=Circle())
    assert names_where(found, lambda each: each.may_change) == ["count", "shape"]
    assert names_where(found, lambda each: each.per_machine) == ["memory"]


def test_flags_of_an_instance_give_it_again():
    found = Whole(words=["a", "b"], switched=Switched(enable=True))
    assert flags_of(found) == ["--words=[a,b]", "--switched.enable=true"]


def test_a_text_in_python_is_a_text():
    assert decode(All, {"count": Text("12")}).count == 12
