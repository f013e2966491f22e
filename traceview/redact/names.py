"""A name as the copy has it. Figures depend on little of a name, and that little survives hashing."""

from __future__ import annotations

import hashlib
import re

from traceview.measure.iterations.candidates import NUMBER, SIGNED
from traceview.normalise.operations import COMMUNICATION
from traceview.redact.secrets import LETTERS, Secrets
from traceview.rules.host_bound import DATA, OPTIMIZER

PLAIN_PATH = re.compile(r"(?:[A-Za-z]:)?[^\s:]*")
LONG = 7  # digits; a number that long may be a secret of its own


class Names:
    """Names of ranges, kernels, threads and programs, kept or hashed, without secrets either way."""

    def __init__(self, secrets: Secrets, hashed: bool) -> None:
        """Take who finds the secrets, and whether names are hashed."""
        self._secrets = secrets
        self._hashed = hashed
        self._numbers: dict[str, str] = {}

    def word(self, text: str) -> str:
        """Return a text that is nobody's name: an API call, a setting, a message."""
        return self._secrets.cleaned(text)

    def kernel(self, text: str) -> str:
        """Return a kernel's name; hashed or cleaned, it still says whether it communicates."""
        clean = self._secrets.cleaned(text)
        kind = COMMUNICATION.match(text)
        if self._hashed:
            return f"{kind[0]}_{_digest(clean)}" if kind else _digest(clean)
        return f"{kind[0]}_{clean}" if kind and not COMMUNICATION.match(clean) else clean

    def range(self, text: str) -> str:
        """Return a range's name; hashed, its numbers stay, for they make iterations one kind.

        A word that the rules look for stays, also where the secret that held it goes.
        """
        clean = self._secrets.cleaned(text)
        if not self._hashed or clean == "":
            lost = [hint for hint in (DATA, OPTIMIZER) if clean != text and not hint.search(clean)]
            return " ".join([clean, *(word.lower() for hint in lost for word in hint.findall(text)[:1])])
        numbers = [found[1] or found[2] for found in re.finditer(rf"(?:^|[^\w.])(-\d+)|({NUMBER})", clean)]
        shape = re.sub(NUMBER, "#", re.sub(SIGNED, r"\1#", clean))
        hint = DATA.search(text) or OPTIMIZER.search(text)
        return " ".join(
            [f"{hint[0].lower()}_{_digest(shape)}" if hint else _digest(shape), *map(self._number, numbers)]
        )

    def program(self, text: str) -> str:
        """Return a program's name without the folders it lies in."""
        whole = text if PLAIN_PATH.fullmatch(text) else self._secrets.cleaned(text)
        return self.range(re.split(r"[/\\]", whole)[-1])

    def _number(self, digits: str) -> str:
        if len(digits) < LONG:
            return digits
        return self._numbers.setdefault(digits, str(10**LONG + len(self._numbers)))


def _digest(text: str) -> str:
    """Return 64 bits as letters: digits would be folded, and vowels would spell what rules look for."""
    return "".join(LETTERS[int(nibble, 16)] for nibble in hashlib.sha256(text.encode()).hexdigest()[:16])
