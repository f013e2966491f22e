"""Secrets by their shape, and the capture's own host, user and keys, wherever a text holds them."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping

from traceview.measure.iteration_ranges import NUMBER

# Roots that files lie under; `/model/layer.0/attention` is a layer, no file.
_ROOTS = (
    "home|Users|root|mnt|tmp|var|opt|etc|usr|srv|media|nfs|lustre|gpfs|scratch|workspace|work|data|datasets|projects?|"
    "fsx|efs|shared|content|kaggle|proc|sys|dev|run"
)
_SET = r"(?i)(?<![A-Za-z])(?:password|passwd|secret|(?:api|access|private)[_-]?key)\s?(?:=|:(?!:))\s?"
_TOKEN = r"(?i)(?<![A-Za-z])(?:token\s?(?:=|:(?!:))\s?|bearer\s)"
_START, _END = r"(?<![A-Za-z0-9_])", r"(?![A-Za-z0-9_])"
# In this order: what one finds, the next does not see.
SHAPES: Mapping[str, re.Pattern[str]] = {
    kind: re.compile(pattern)
    for kind, pattern in {
        "private key": r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----[\s\S]*",
        "JSON web token": _START + r"eyJ[A-Za-z0-9_-]{5,}\.[A-Za-z0-9_-]{5,}(?:\.[A-Za-z0-9_-]*)?",
        "Hugging Face token": _START + r"(?:hf|api_org)_[A-Za-z0-9]{20,}",
        "GitHub token": _START + r"(?:gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,})",
        "GitLab token": _START + r"glpat-[A-Za-z0-9_-]{16,}",
        "AWS key": _START + r"(?:AKIA|ASIA|AROA|AIDA)[A-Z0-9]{16}" + _END,
        "Google key": _START + r"(?:AIza[A-Za-z0-9_-]{35}|ya29\.[A-Za-z0-9_-]{20,})",
        "Slack token": _START + r"xox[abeoprs]-[A-Za-z0-9-]{10,}",
        "API key": _START + r"(?:sk|pk|rk|nvapi|pypi|npm|dop_v1|wandb_v1)[-_][A-Za-z0-9_-]{20,}",
        "password or key that is set": _SET + r"[^\s,;\"'(){}\[\]]{6,}",
        "token that is set": _TOKEN + r"(?=\S{0,40}\d)[^\s,;\"'(){}\[\]]{8,}",
        "address": r"(?<![A-Za-z0-9])[A-Za-z][A-Za-z0-9+.-]{1,15}://[^\s\"'<>]+",
        "e-mail address": r"(?<![\w.%+-])[\w.%+-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){1,8}",
        "path": rf"(?<![\w./~-])(?:/(?:{_ROOTS})(?:/[^\s:,;\"'()<>|]+)+|~/[^\s:,;\"'()<>|]+|/root(?![\w/]))"
        r"|(?<![A-Za-z])[A-Za-z]:\\[^\s:,;\"'()<>|]+",
        "IP address": r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.])",
        "long hexadecimal": r"(?<![A-Za-z0-9])(?:[0-9a-f]{32,}|[0-9A-F]{32,})(?![A-Za-z0-9])",
        "long base64": r"(?<![A-Za-z0-9+/=_-])[A-Za-z0-9+/]{32,}={0,2}(?![A-Za-z0-9+/=_-])",
    }.items()
}
_GUESSED = "long base64"  # a shape that a long name may have too
_EVEN = 4.2  # bits a letter; written words and mangled names have fewer
_SENSITIVE = re.compile(r"TOKEN|KEY|SECRET|PASS|CRED|AUTH|WEBHOOK", re.IGNORECASE)
_WHO = re.compile(r"(?:USER|LOGNAME|USERNAME|HOSTNAME|SUDO_USER)", re.IGNORECASE)
_EVERYBODYS = frozenset({"root", "user", "localhost", "ubuntu", "admin", "none", "unknown", "python", "python3"})
LETTERS = "bcdfghjkmnpqtvwz"  # no word that the rules look for in a range's name can be written with them


def words_of_environment(variables: str) -> dict[str, str]:
    """Return what should be found elsewhere too, of variables that a `;` or a line end separates."""
    found = {}
    for variable in re.split(r"[;\n]", variables):
        name, _, value = variable.partition("=")
        if len(value) >= 8 and _SENSITIVE.search(name):
            found[value] = "value of an environment variable"
        elif _WHO.fullmatch(name.strip()):
            found[value] = "host or user"
    return found


class Secrets:
    """Finds and replaces secrets; counts the different ones of each kind. Never tells what they were."""

    def __init__(self, private: Mapping[str, str]) -> None:
        """Take the capture's own words with what each is; short words and everybody's are no secrets."""
        self._private = {
            word: kind for word, kind in private.items() if 4 <= len(word) < 1000 and word.lower() not in _EVERYBODYS
        }
        longest_first = sorted(self._private, key=len, reverse=True)
        either = "|".join(map(re.escape, longest_first))
        self._own = re.compile(f"(?<![A-Za-z0-9])(?:{either})(?![A-Za-z0-9])") if either else None
        self._known: dict[str, str] = {}
        self._groups: dict[str, int] = {}
        self._members: Counter[str] = Counter()
        self.found: Counter[str] = Counter()

    def cleaned(self, text: str) -> str:
        """Return the text with `[removed ..]` for each secret; the same for the same secret."""
        for kind, pattern in SHAPES.items():
            if kind == _GUESSED:
                text = pattern.sub(lambda match: self._guess(match[0]), text)
            else:
                text = pattern.sub(lambda match, kind=kind: self._instead(match[0], kind), text)  # type: ignore[misc]
        if self._own is not None:
            text = self._own.sub(lambda match: self._instead(match[0], self._private[match[0]]), text)
        return text

    def _guess(self, text: str) -> str:
        looks = _is_random(text) and not text.startswith("_Z")
        return self._instead(text, _GUESSED) if looks else text

    def _instead(self, secret: str, kind: str) -> str:
        """Return what stands for a secret: names that differ in numbers alone still do so."""
        if secret not in self._known:
            self.found[kind] += 1
            group = re.sub(NUMBER, "#", secret)
            index = self._groups.setdefault(group, len(self._groups))
            self._members[group] += 1
            self._known[secret] = f"[removed {_letters(index)} {self._members[group]}]"
        return self._known[secret]


def _is_random(text: str) -> bool:
    classes = (str.isupper, str.islower, str.isdigit)
    if any(sum(map(one, text)) < 4 for one in classes):
        return False
    shares = [times / len(text) for times in Counter(text).values()]
    return -sum(share * math.log2(share) for share in shares) > _EVEN


def _letters(index: int) -> str:
    text = LETTERS[index % len(LETTERS)]
    while index := index // len(LETTERS):
        text = LETTERS[index % len(LETTERS)] + text
    return text
