"""Random secrets of 75 kinds, twelve positions of a capture where a program may put them, and what a copy still has.

The kinds are those of other vendors and forms than tests/redact/planted.py has, made from formats that vendors publish.
"""

from __future__ import annotations

import json
import random
import sqlite3
import string
from base64 import b32encode, b64encode, urlsafe_b64encode
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from traceview.read import raw

ALL, LOWER, HEX = string.ascii_letters + string.digits, string.ascii_lowercase + string.digits, "0123456789abcdef"
WORDS = ("falcon", "otter", "maple", "quartz", "harbor", "violet", "saddle", "copper", "walnut", "ember")


class Draw(random.Random):
    """Draws the parts of secrets."""

    def letters(self, count: int, alphabet: str = ALL) -> str:
        return "".join(self.choices(alphabet, k=count))

    def password(self) -> str:
        """Return words or letters that only the name before them makes a password."""
        start = self.choice((*WORDS, self.letters(6), f"{self.letters(3)}!{self.letters(3)}"))
        return start + self.letters(6, string.ascii_lowercase)

    def name(self) -> str:
        return self.choice(WORDS) + self.letters(7, string.ascii_lowercase)


Maker = Callable[[Draw], tuple[str, str]]


def _whole(text: Callable[[Draw], str]) -> Maker:
    """Return a maker of secrets in which every character is private."""

    def make(draw: Draw) -> tuple[str, str]:
        secret = text(draw)
        return secret, secret

    return make


def _after(pattern: str) -> Maker:
    """Return a maker of texts with a password in place of `{}`, which is the private part."""

    def make(draw: Draw) -> tuple[str, str]:
        password = draw.password()
        return pattern.replace("{}", password), password

    return make


def _below(pattern: str) -> Maker:
    """Return a maker of paths or hosts with a private name in place of `{}`."""

    def make(draw: Draw) -> tuple[str, str]:
        name = draw.name()
        return pattern.replace("{}", name), name

    return make


# kind: (text, private part of it)
KINDS: dict[str, Maker] = {
    **{
        f"set as {pattern}": _after(pattern)
        for pattern in (
            *(
                "password  =  {}",
                "password=('{}')",
                "--password {}",
                "pass={}",
                "PGPASS={}",
                "PGPASSWORD='{}'",
                "token={}",
            ),
            *(
                '{"db_password": "{}"}',
                r"{\"client_secret\": \"{}\"}",
                "passwd := `{}`",
                "secret => {}",
                "MYSQL_PWD={}",
            ),
            *("--api-key={}", "--auth-token '{}'", "-u admin:{}", "Cookie: session={}", "X-Api-Key: {}", "Bearer {}"),
            *("Set-Cookie: sid={}; Path=/", "password%3D{}", "password&quot;:&quot;{}&quot;", "Pwd={};Encrypt=yes"),
            *("jdbc:postgresql://db/x?user=a&password={}", "redis://:{}@cache:6379/0", "otpauth://totp/x?secret={}"),
            *(
                "passphrase: {}",
                "['--password', '{}']",
                "aws_secret_access_key = {}",
                "contraseña={}",
                "credential=[{}]",
            ),
        )
    },
    **{
        f"folder {pattern}": _below(pattern)
        for pattern in (
            *("/homes/{}/run.py", "/raid/{}/ckpt", "/storage/{}/x", "/global/cfs/{}/x", "/zhome/ab/{}/x", "/lus/{}/y"),
            *("/cluster/work/{}/x", "/beegfs/{}/x", "D:/Projects/{}/x.py", r"E:\\work\\{}\\x.py", "/p/project/{}/a"),
            *("~/{}/x", "/anything/{}/data.bin", "%2Fscratch%2F{}%2Fx", r"\/mnt\/{}\/x", '"/Volumes/My Disk/{} x/y"'),
            *(r"C:\Users\Jane {} Doe\x", r"\\filer\{}\x", "file:///raid/{}/x"),
        )
    },
    **{
        f"host {pattern}": _below(pattern)
        for pattern in (
            *("{}.example.org", "{}.lab.net", "{}.uni.de", "{}.local", "gpu.{}.ai", "db.{}.io", "{}.cloud.internal"),
            *("http%3A%2F%2F{}.x%2Fy", "{}@lab.org", "{}%40lab.org"),
        )
    },
    "bcrypt": _whole(lambda draw: "$2b$12$" + draw.letters(53)),
    "SHA-512 crypt": _whole(lambda draw: "$6$" + draw.letters(16) + "$" + draw.letters(86)),
    "argon2": _whole(lambda draw: "$argon2id$v=19$m=65536,t=3,p=4$" + draw.letters(22) + "$" + draw.letters(43)),
    "NuGet": _whole(lambda draw: "oy2" + draw.letters(43, LOWER)),
    "Modal": _whole(lambda draw: "ak-7" + draw.letters(21)),
    "Fireworks": _whole(lambda draw: "fw_3" + draw.letters(23)),
    "Anyscale": _whole(lambda draw: "esecret_7" + draw.letters(25)),
    "Cloudflare origin": _whole(lambda draw: "v1.0-" + draw.letters(24, HEX) + "-" + draw.letters(146, HEX)),
    "Cloudflare": _whole(lambda draw: "7" + draw.letters(39)),
    "unknown vendor": _whole(lambda draw: "zz_" + draw.letters(30) + "4x9"),
    "base64 of 32 bytes": _whole(lambda draw: b64encode(draw.randbytes(32)).decode()),
    "base64url of 48 bytes": _whole(lambda draw: urlsafe_b64encode(draw.randbytes(48)).decode()),
    "TOTP": _whole(lambda draw: b32encode(draw.randbytes(19)).decode()[:30] + "23"),
    "MD5": _whole(lambda draw: draw.letters(32, HEX)),
    "Windows product key": _after("license_key={}"),
    "JSON web token": _whole(lambda draw: "eyJhbGciOiJFUzI1NiJ9.eyJz" + draw.letters(30) + "." + draw.letters(60)),
}


POSITIONS = (
    "environment",
    "command line",
    "NVTX text",
    "StringIds",
    "kernel",
    "process name",
    "thread name",
    "diagnostic",
    "program output",
    "JSON in text",
    "address",
    "file path",
)


def plant(path: Path, draw: Draw) -> list[tuple[str, str, str]]:
    """Put a secret of each kind into each position of an export. Returns kind, position and private part of each."""
    planted: list[tuple[str, str, str]] = []
    with closing(sqlite3.connect(path)) as export, export:
        export.execute("CREATE TABLE IF NOT EXISTS ANALYSIS_FILE (content TEXT)")
        for kind, make in KINDS.items():
            for position in POSITIONS:
                text, private = make(draw)
                _plant_at(export, position, text)
                planted.append((kind, position, private))
    return planted


def _plant_at(export: sqlite3.Connection, position: str, text: str) -> None:
    thread = "(SELECT globalTid FROM NVTX_EVENTS WHERE eventType = 59 LIMIT 1)"
    if position in ("environment", "command line"):
        key, value = (
            ("ENVIRONMENT_VARIABLE", f'RUN_NOTE="{text}"') if position == "environment" else ("ARGUMENT_9", text)
        )
        export.execute("INSERT INTO META_DATA_CAPTURE VALUES (?, ?)", (f"PROCESS_0:{key}", value))
        return
    if position == "program output":
        export.execute("INSERT INTO ANALYSIS_FILE (content) VALUES (?)", (text,))
        return
    if position == "diagnostic":
        export.execute("INSERT INTO DIAGNOSTIC_EVENT VALUES (0, 0, 0, 0, ?, 0)", (f"cannot start: {text}",))
        return
    if position == "process name":
        name = text.replace("/", "\\/") if "/" in text else text
        export.execute(f"INSERT INTO PROCESSES (globalPid, pid, name) VALUES ({thread}, 0, ?)", (f"run {name} now",))
        return
    forms = {
        "JSON in text": json.dumps({"args": [text]}),
        "address": f"https://example.org/?q={quote(text)}",
        "file path": f"open {text} failed",
        "kernel": f"void run<{text}>(int)",
    }
    name = forms.get(position, f"load {text} now")
    if position == "NVTX text":
        insert = f"INSERT INTO NVTX_EVENTS (start, end, eventType, globalTid, text) VALUES (1, 2, 59, {thread}, ?)"
        export.execute(insert, (name,))
        return
    (number,) = export.execute("SELECT max(id) + 1 FROM StringIds").fetchone()
    export.execute("INSERT INTO StringIds (id, value) VALUES (?, ?)", (number, name))
    if position == "thread name":
        export.execute(f"INSERT INTO ThreadNames (nameId, globalTid) VALUES (?, {thread})", (number,))
    elif position == "kernel":
        row = f"(SELECT min(rowid) + {number % 5000} FROM {raw.KERNEL})"
        export.execute(
            f"UPDATE {raw.KERNEL} SET shortName = ?, demangledName = ? WHERE rowid = {row}", (number, number)
        )
    else:
        insert = f"INSERT INTO NVTX_EVENTS (start, end, eventType, globalTid, textId) VALUES (1, 2, 59, {thread}, ?)"
        export.execute(insert, (number,))


def left_in(copy: Path, planted: list[tuple[str, str, str]]) -> Iterator[str]:
    """Yield the kind, position and private part of each planted secret that a copy still has."""
    content = copy.read_bytes()
    for kind, position, private in planted:
        if any(form.encode() in content for form in {private, json.dumps(private)[1:-1], quote(private)}):
            yield f"{kind}, {position}: {private}"
