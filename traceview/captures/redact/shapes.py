"""Patterns of secrets: values that a name announces, places, tokens of vendors, and what looks random.

A range name may embed a secret without a word boundary or a quote (`auth_ghp_...x2`), so tokens require none. Each
pattern takes time in proportion to the text: a repetition that something must follow has a bound, and no check looks
beyond its match.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from traceview.model.catalogue import read_toml

LISTED = read_toml(Path(__file__).with_name("secrets.toml"))


def _any_word(name: str) -> str:
    return "|".join(LISTED[name]["words"].split())


W, HEX = "[A-Za-z0-9_-]", "[0-9A-Fa-f]"
_QUOTE = r"(?:\\{0,3}[\"'`]|&quot;|&#(?:34|39|x27);|%2[27])"  # plain, or as JSON, HTML or an address writes it
_STRONG = (
    r"pass(?:wor[dt]|wd|phrase|code)|kennwort|contrase(?:n|ñ|\\u00f1|%C3%B1)a|mot_?de_?passe|pwd|secret|credential|accesskeyid|"
    r"(?:api|app|access|account|auth|bot|client|database|db|deploy|encryption|host|license|master|private|service|"
    r"session|shared|signing|ssh|storage|subscription|webhook)[ _.-]?key"
)
_WEAK = r"token|bearer|pass|pw|auth|t?otp|[2m]fa|sid|session[_-]?id|cookie|jwt|sig|signature|dsn"
_CLOSING = rf"(?:{_QUOTE}|[\])}}]){{0,3}}"
# The first two letters of these: Python tests a set of letters much faster than a list of words in any case.
_FIRST = "a[cpu] b[eo] c[lor] d[abes] e[n] h[o] j[w] k[e] l[i] m[afo] o[t] p[arw] s[ehistu] t[o] w[e] 2[f]"
_START = (
    "(?=" + "|".join(f"[{pair[0]}{pair[0].upper()}][{pair[2:-1]}{pair[2:-1].upper()}]" for pair in _FIRST.split()) + ")"
)
_SET = r"[ \t]{0,8}(?:=>|:=|[=!]={1,2}|=|:|%3[ADad])[ \t]{0,8}"
# A value ends at the quote that began it, or at a space. The mark of an earlier round is none.
_VALUE = (
    rf"(?!\[?removed )[\[({{<@]{{0,2}}[bru]?(?:(?P<quote>{_QUOTE})(?P<quoted>[^\n]{{1,1000}}?)(?P=quote)|"
    rf"{_QUOTE}?(?P<bare>(?!:)[^\s\"'`;&\\]+))"
)
_FLAG = r"(?<![\w-])--?[A-Za-z]?[\w.-]{0,40}?"
_SLASH = r"(?:\\{0,3}/|%2[Ff])"
_PART = r"(?:[^\s:,;\"'()<>|/\\%]|%(?!2[Ff])|\\ )+"
_FOLDER = r"[^\\/\s:*?\"'<>|]+(?: [^\\/\s:*?\"'<>|]+){0,3}"  # folders of Windows may have spaces
_DOMAINS = _any_word("domains")
_WORDS = frozenset(("app", "cloud", "cluster", "dev", "home", "info", "online", "site", "svc", "tech", "us"))
_PUBLIC_PATH = re.compile(  # a path that every machine has
    r"/(?:proc/sys(?:/[a-z_]+)+|dev/(?:null|shm|nvidia[\w-]*)|usr/local/cuda[\d.-]*(?:/(?:bin|include|lib64))*)[.,]?"
)
_PLAIN_VALUE = re.compile(r"\W*(?:true|false|none|null|nil|yes|no|on|off|[*x]+|\d{1,6}(?:\.\d*)?)?\W*", re.IGNORECASE)

_OPERATOR = re.compile(rf"(?:{_any_word('operators')})(?:_\d+)*(?:_output_\d+)?[\]}})]*")


def _always_true(_match: re.Match[str]) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Shape:
    """One kind of secret.

    `core` is a regular expression without look-around, because polars searches with it. `before` and `after` are
    look-arounds that only Python uses; `exact` is the whole pattern of Python where these do not suffice. A text with a
    match of Python's pattern has a match of `core`. `is_secret` checks each match.
    """

    kind: str
    core: str
    before: str = ""
    after: str = ""
    is_secret: Callable[[re.Match[str]], bool] = _always_true
    exact: str = ""
    pattern: re.Pattern[str] = field(init=False)

    def __post_init__(self) -> None:
        exact = self.exact or f"{self.before}(?:{self.core}){self.after}"
        object.__setattr__(self, "pattern", re.compile(exact))


def _has_digit(match: re.Match[str]) -> bool:
    """Return whether a match has a digit."""
    return any(map(str.isdigit, match[0]))


def _is_key(match: re.Match[str]) -> bool:
    """Return whether `sk-...` does not follow a letter or has 16 mixed characters; `task-loader-12` is a name."""
    if not match.string[max(match.start() - 1, 0) : match.start()].isalpha():
        return True
    longest = max(match[0].replace("_", "-").split("-"), key=len)
    return len(longest) >= 16 and all(any(map(kind, longest)) for kind in (str.isupper, str.islower, str.isdigit))


def _is_value(match: re.Match[str]) -> bool:
    """Return whether a value is more than true, None or a number, and behind `token:` no ordinary word."""
    value = match["quoted"] or match["bare"]
    if match["strong"]:
        return not re.fullmatch(r"(?i)\W*(?:true|false|none|null)?\W*", value)
    is_word = value.isalpha() and value.islower() and len(value) < 12
    return not (_PLAIN_VALUE.fullmatch(value) or (is_word and ":" in match["set"]))


def _is_private_path(match: re.Match[str]) -> bool:
    return not (_PUBLIC_PATH.fullmatch(match[0]) or _OPERATOR.fullmatch(match[0].rsplit("/", 1)[-1]))


def _is_host(match: re.Match[str]) -> bool:
    """Return whether dotted words are a host and not a module of Python such as `skimage.io`."""
    words = match[0].lower().split(".")
    return len(words) > 2 or words[-1] not in _WORDS or re.search(r"[0-9-]", match[0]) is not None


def _is_ip4(match: re.Match[str]) -> bool:
    return all(int(part) < 256 for part in match[0].split("."))


def _is_ip6(match: re.Match[str]) -> bool:
    """Return whether a match is an IPv6 address and not a C++ name, whose parts never begin with a digit."""
    try:
        ipaddress.IPv6Address(match[0])
    except ValueError:
        return False
    groups = [group for group in match[0].split(":") if group]
    single = re.search(r"[^:]:[^:]", match[0]) is not None
    return len(groups) > 1 and (single or any(group[0].isdigit() for group in groups))


def _is_hash(match: re.Match[str]) -> bool:
    """Return whether hexadecimal digits are something else than Triton's specialized arguments (`0d1d2d3de4d...`)."""
    return re.fullmatch(r"(?:\d{1,3}(?:dc|de|d|e|c)){8,}\d{0,3}", match[0]) is None


def _is_random(match: re.Match[str]) -> bool:
    """Return whether base64 looks random: high entropy, and few letters in words. Mangled C++ names do not."""
    text = match[0].rstrip("=")
    changes = _share_of_changes(text)
    if re.match(_MANGLED, text) or (sum(map(text.count, "/_-")) > len(text) // 10 + 1 and changes < 0.5):
        return False  # a path of layers, or words
    if sum(map(len, _LOWER_CASE_RUN.findall(text))) / len(text) > MAX_IN_WORDS:
        return False
    if min(sum(map(str.islower, text)), sum(map(str.isupper, text))) < 4:
        return False
    entropy = -sum(times / len(text) * math.log2(times / len(text)) for times in Counter(text).values())
    return entropy >= MIN_ENTROPY and changes >= MIN_CHANGES_OF_LONG


def _is_mixed(match: re.Match[str]) -> bool:
    """Return whether letters and digits alternate as in a random key, and not as in `bf16x8` or CamelCase."""
    text = match[0]
    if re.match(_MANGLED, text) or sum(map(str.isdigit, text)) < 2 or len(set(text)) < 0.6 * min(len(text), 24):
        return False
    return _share_of_changes(text) >= MIN_CHANGES and _is_hash(match)


def _share_of_changes(text: str) -> float:
    """Return how often a digit, lower-case or upper-case letter follows one of another kind, per letter."""
    kinds = [(char.isdigit(), char.isupper()) for char in text if char.isalnum()]
    return sum(before != after for before, after in pairwise(kinds)) / len(text)


_LOWER_CASE_RUN = re.compile("[a-z]{3,}")
# 997 of 1000 random base64 texts of 40 letters pass both tests.
MIN_ENTROPY = 4.1  # bits per letter; mangled names have less
MAX_IN_WORDS = 0.48  # share of letters in runs of three or more lower-case ones; CamelCase has more
MIN_CHANGES, MIN_CHANGES_OF_LONG = 0.35, 0.3  # base36 has 0.4, base62 0.6, names in CamelCase 0.3 and less
_MANGLED = r"_Z(?:NK?|L)?(?:[0-9]{1,3}|S[a-z])[A-Za-z_][\w$.]*"


def _outside_mangled(kind: str, core: str, is_secret: Callable[[re.Match[str]], bool]) -> Shape:
    """Return a shape that passes over mangled C++ names as a whole."""
    return Shape(kind, core, is_secret=is_secret, exact=rf"{_MANGLED}|{core}")


# By the kind of a token, where its pattern alone does not show it.
_CHECKS = {
    "API key": _is_key,
    "Discord token": _has_digit,
    "Modal, Fireworks, Anyscale or NuGet key": _has_digit,
    "Atlassian token": _has_digit,
    "Alibaba key": _has_digit,
}
TOKENS = [Shape(kind, core, is_secret=_CHECKS.get(kind, _always_true)) for kind, core in LISTED["tokens"].items()]

# Applied in this order; a later pattern does not see what an earlier one replaced.
SHAPES: tuple[Shape, ...] = (
    Shape("private key", r"-----BEGIN[ A-Z0-9]{0,40}PRIVATE KEY(?: BLOCK)?-----(?s:.*)"),
    Shape("SSH key", r"(?:ssh-(?:rsa|dss|ed25519)|ecdsa-sha2-nistp[0-9]{3})[ \t]+AAAA[A-Za-z0-9+/=]{20,}"),
    Shape(
        "header with a key",
        r"(?i:authorization|cookie|bearer|x-[a-z-]*(?:key|token|auth))",
        exact=rf"(?i:authorization|cookie|x-[\w-]{{0,40}}(?:key|token|auth)){_CLOSING}{_SET}{_QUOTE}?[^\n\r\"'`]{{4,}}|"
        r"(?i:bearer)[ \t]+[^\s\"'`,;]{8,}",
    ),
    Shape(
        "password, key or token that is set",
        rf"(?i:{_STRONG}|(?:{_WEAK}))",
        is_secret=_is_value,
        exact=rf"{_START}(?i:(?:(?P<strong>{_STRONG})\w{{0,24}}|(?:{_WEAK})s?){_CLOSING}(?P<set>{_SET}|\(){_VALUE})",
    ),
    Shape(
        "password, key or token of a command line",
        rf"-(?i:[a-z0-9_.-]*(?:{_STRONG}|{_WEAK}))",
        is_secret=_is_value,
        exact=rf"(?i:{_FLAG}(?:(?P<strong>{_STRONG})[\w-]{{0,24}}|(?:{_WEAK})s?){_QUOTE}?(?P<set>[\s,\0=]{{1,4}}){_VALUE})",
    ),
    Shape(
        "user and password", "(?:-u|--user)[ =]", exact=r"(?<![\w-])(?:-u|--user)[ =][\"']?[^\s:\"']{1,100}:[^\s:\"']+"
    ),
    Shape(
        "address",
        r"[A-Za-z0-9+.-]+(?::(?:\\?/){2}|%3[Aa]%2[Ff]%2[Ff])(?:\[[0-9A-Fa-f:.]{2,45}\])?[^\s\"'<>\[\]]+",
        before="(?<![A-Za-z0-9+.-])",
    ),
    Shape("ARN", r"arn:aws[a-z-]{0,12}:[a-z0-9-]*:[a-z0-9-]*:[0-9]{0,12}:[^\s\"'<>\[\]]+"),
    Shape(
        "path",
        r"[A-Za-z]:[\\/]|\\\\",
        exact=rf"[A-Za-z]:(?:\\{{1,4}}|/(?=\w))(?:{_FOLDER}[\\/]{{1,4}})*[^\s:,;\"'()<>|]*|"
        rf"\\{{2,4}}[\w.$-]{{1,255}}\\{{1,4}}[^\s:,;\"'()<>|]+",
    ),
    Shape(
        "path",
        rf"{_SLASH}[^\s/]+{_SLASH}|/root|~[a-z0-9_-]*{_SLASH}",
        is_secret=_is_private_path,
        exact=rf"(?<=[\"'])(?:{_SLASH}[^\"'\n/\\]{{1,255}}){{2,}}(?=\\{{0,3}}[\"'])|{_SLASH}(?:home|Users)(?:{_SLASH}{_PART})+|"
        rf"(?<![A-Za-z0-9)\]~\\-])(?:(?:{_SLASH}{{1,3}}{_PART}){{2,}}/?|/root\b|~[\w-]{{0,32}}(?:{_SLASH}{_PART})+)",
    ),
    Shape(
        "git address",
        r"[A-Za-z0-9_.%+-]+@[A-Za-z0-9.-]+:[A-Za-z0-9_.~-]*/[A-Za-z0-9_./~-]+",
        before="(?<![A-Za-z0-9_.%+-])",
    ),
    Shape(
        "e-mail address",
        r"(?:@|%40)[A-Za-z0-9-]+\.[A-Za-z0-9]",
        exact=r"(?<![\w.%+-])[\w.%+-]+(?:@|%40)[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+",
    ),
    *TOKENS,
    Shape("UUID", rf"(?:GPU-|MIG-)?{HEX}{{8}}-(?:{HEX}{{4}}-){{3}}{HEX}{{12}}"),
    Shape("MAC address", rf"(?:{HEX}{{2}}:){{5,19}}{HEX}{{2}}|(?:{HEX}{{2}}-){{5}}{HEX}{{2}}"),
    Shape(
        "IP address",
        r"(?:[0-9]{1,3}\.){3}[0-9]{1,3}|(?:ip-)(?:[0-9]{1,3}-){3}[0-9]{1,3}",
        r"(?<![0-9.])",
        r"(?!\.?[0-9])",
        _is_ip4,
    ),
    Shape("IP address", rf"(?:{HEX}{{1,4}}:){{7}}{HEX}{{1,4}}"),
    Shape(
        "IP address",
        rf"(?:{HEX}{{1,4}}:){{1,7}}(?::{HEX}{{1,4}}){{0,7}}",
        before=rf"(?<!{HEX})(?<!:)",
        after=r"(?![A-Za-z0-9:])",
        is_secret=_is_ip6,
    ),
    Shape(
        "host name",
        rf"(?i:[a-z0-9-]\.(?:{_DOMAINS}))",
        is_secret=_is_host,
        exact=rf"(?i:(?<![a-z0-9.-])\.?(?:[a-z0-9-]+\.)+(?:{_DOMAINS}))(?![A-Za-z0-9-]|\.[A-Za-z]|\()",
    ),
    Shape("long hexadecimal", r"[0-9a-f]{32,}|[0-9A-F]{32,}", is_secret=_is_hash),
    _outside_mangled("long base64", r"[A-Za-z0-9+/]{32,}={0,2}", _is_random),
    _outside_mangled("long base64", rf"{W}{{43,}}", _is_random),
    _outside_mangled("random letters and digits", r"[A-Za-z0-9]{20,}", _is_mixed),
    _outside_mangled("base32", r"[A-Z2-7]{16,}", _has_digit),
)


def values_that_are_set(text: str) -> Iterator[str]:
    """Yield the values that a text gives to passwords, keys and tokens."""
    for shape in SHAPES:
        if shape.is_secret is _is_value:
            yield from (match["quoted"] or match["bare"] for match in shape.pattern.finditer(text) if _is_value(match))
