"""Patterns of secrets. The token prefixes come from the rules of gitleaks 8 and detect-secrets 1.5.

Those rules are made for source code: they require a word boundary, a quote or an assignment around a token, and its
exact length. A range name may embed a token without these (`auth_ghp_...x2`), so the patterns here require none.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import field

from traceview.frozen import frozen

W = "[A-Za-z0-9_-]"
HEX = "[0-9A-Fa-f]"
_VALUE = r"[\"']?[^\s:,;\"'(){}\[\]][^\s,;\"'(){}\[\]]"
_ASSIGN = r"[\"']?[ \t]?(?:=|:)[ \t]?"
# Root folders of files; `/model/layer.0/attention` is a layer, not a file.
_ROOTS = (
    "root|mnt|tmp|var|opt|etc|usr|srv|media|nfs|lustre|gpfs|scratch|workspace|work|data|datasets|projects?|private|"
    "Volumes|fsx|efs|shared|content|kaggle|proc|sys|dev|run"
)
_PART = r"(?:/[^\s:,;\"'()<>|]+)+"


def _always_true(_match: re.Match[str]) -> bool:
    return True


@frozen
class Shape:
    """One kind of secret.

    `core` is a regular expression without look-around, because polars searches with it. `before` and `after` are
    look-arounds that only Python uses; every match of Python is a match of `core`. `is_secret` checks each match.
    """

    kind: str
    core: str
    before: str = ""
    after: str = ""
    is_secret: Callable[[re.Match[str]], bool] = _always_true
    pattern: re.Pattern[str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "pattern", re.compile(f"{self.before}(?:{self.core}){self.after}"))


def _has_digit(match: re.Match[str]) -> bool:
    return any(map(str.isdigit, match[0]))


def _is_key(match: re.Match[str]) -> bool:
    """Return whether `sk-...` does not follow a letter or has 16 mixed characters; `task-loader-12` is a name."""
    if not match.string[max(match.start() - 1, 0) : match.start()].isalpha():
        return True
    longest = max(match[0].replace("_", "-").split("-"), key=len)
    return len(longest) >= 16 and all(any(map(kind, longest)) for kind in (str.isupper, str.islower, str.isdigit))


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
    """Return whether base64 looks random: high entropy, and few letters in words."""
    text = match[0].rstrip("=")
    if sum(map(text.count, "/_-")) > len(text) // 10 + 1:
        return False  # a path of layers, or words
    if sum(map(len, _LOWER_CASE_RUN.findall(text))) / len(text) > MAX_IN_WORDS:
        return False
    if min(sum(map(str.islower, text)), sum(map(str.isupper, text))) < 4:
        return False
    if -sum(times / len(text) * math.log2(times / len(text)) for times in Counter(text).values()) < MIN_ENTROPY:
        return False
    start = max(match.string.rfind(letter, 0, match.start()) for letter in " <(,:&*[") + 1
    return "_Z" not in match.string[start : match.start() + 2] and not text.startswith("ZN")  # a mangled C++ name


_LOWER_CASE_RUN = re.compile("[a-z]{3,}")
# 997 of 1000 random base64 texts of 40 letters pass both tests.
MIN_ENTROPY = 4.1  # bits per letter; mangled names have less
MAX_IN_WORDS = 0.48  # share of letters in runs of three or more lower-case ones; CamelCase has more

# Applied in this order; a later pattern does not see what an earlier one replaced.
SHAPES: tuple[Shape, ...] = (
    Shape("private key", r"-----BEGIN[ A-Z0-9]{0,40}PRIVATE KEY(?: BLOCK)?-----(?s:.*)"),
    Shape("SSH key", r"(?:ssh-(?:rsa|dss|ed25519)|ecdsa-sha2-nistp[0-9]{3})[ \t]+AAAA[A-Za-z0-9+/=]{20,}"),
    Shape("age key", r"AGE-SECRET-KEY-1[A-Z0-9]{20,}"),
    Shape(
        "password or key that is set",
        r"(?i:password|passwd|passphrase|pwd|secret|credentials?|(?:api|access|account|auth|client|encryption|private|"
        rf"service|shared|signing)[ _-]?key|secretaccesskey|accesskeyid|[?&]sig){_ASSIGN}{_VALUE}{{2,}}",
    ),
    Shape("authorization header", rf"(?i:authorization){_ASSIGN}[^\s,;\"']+(?:[ \t][^\s,;\"']+)?"),
    Shape(
        "token that is set",
        rf"(?i:token{_ASSIGN}|bearer[ \t]){_VALUE}{{6,}}",
        is_secret=_has_digit,
    ),
    Shape("address", r"[A-Za-z][A-Za-z0-9+.-]{1,15}://(?:\[[0-9A-Fa-f:.]{2,45}\])?[^\s\"'<>\[\]]+"),
    Shape("ARN", r"arn:aws[a-z-]{0,12}:[a-z0-9-]*:[a-z0-9-]*:[0-9]{0,12}:[^\s\"'<>\[\]]+"),
    Shape(
        "path",
        rf"/(?:home|Users){_PART}|[A-Za-z]:\\[^\s:,;\"'()<>|]+|\\\\[A-Za-z0-9_.$-]+\\[^\s:,;\"'()<>|]+",
    ),
    Shape("path", rf"/(?:{_ROOTS}){_PART}|/root|~[a-z0-9_-]{{0,32}}{_PART}", before=r"(?<![A-Za-z0-9./~-])"),
    Shape("git address", r"[A-Za-z0-9_.%+-]{1,64}@[A-Za-z0-9.-]{1,253}:[A-Za-z0-9_.~-]*/[A-Za-z0-9_./~-]+"),
    Shape("e-mail address", r"[A-Za-z0-9_.%+-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){1,8}"),
    Shape("JSON web token", rf"eyJ{W}{{5,}}\.{W}{{5,}}(?:\.{W}*)?"),
    Shape("base64 of JSON", r"eyJ[A-Za-z0-9+/=_-]{20,}"),
    Shape("Hugging Face token", r"(?:hf|api_org)_[A-Za-z0-9]{20,}"),
    Shape("GitHub token", r"gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}"),
    Shape("GitLab token", rf"gl(?:pat|cbt|dt|ffct|ft|imt|agent|oas|ptt|rt|soat)-{W}{{16,}}|GR1348941{W}{{20}}"),
    Shape("AWS key", r"(?:AKIA|ASIA|AROA|AIDA|ABIA|ACCA|AGPA|AIPA|ANPA|ANVA)[A-Z0-9]{16}|ABSK[A-Za-z0-9+/]{80,}={0,2}"),
    Shape("Google key", rf"AIza{W}{{35}}|ya29\.{W}{{20,}}|GOCSPX-{W}{{20,}}|1//0{W}{{30,}}"),
    Shape("Azure secret", r"[A-Za-z0-9_~.]{3}[0-9]Q~[A-Za-z0-9_~.-]{31,}|DefaultEndpointsProtocol=[^\s\"']+"),
    Shape("Slack token", r"xox[abeoprs]-[A-Za-z0-9-]{10,}|xapp-[0-9]-[A-Za-z0-9-]{10,}"),
    Shape("Discord token", rf"[A-Za-z0-9_-]{{23,28}}\.{W}{{6,7}}\.{W}{{27,}}|mfa\.{W}{{60,}}", is_secret=_has_digit),
    Shape("Telegram token", rf"[0-9]{{8,10}}:{W}{{35}}"),
    Shape("Docker token", rf"dckr_(?:pat|oat)_{W}{{20,}}"),
    Shape("Databricks token", r"dapi[a-f0-9]{32}(?:-[0-9])?"),
    Shape("OpenAI or Anthropic key", rf"sk-(?:proj|svcacct|admin|ant|or|lf)-{W}{{20,}}|sk-{W}*T3BlbkFJ{W}+"),
    Shape("API key", rf"(?:sk|pk|rk)-{W}{{20,}}", is_secret=_is_key),
    Shape("NVIDIA key", rf"nvapi-{W}{{20,}}"),
    Shape("Weights & Biases key", rf"wandb_v1_{W}{{20,}}"),
    Shape("Kaggle token", r"KGAT_[a-f0-9]{32}"),
    Shape("Replicate token", r"r8_[A-Za-z0-9]{30,}"),
    Shape("Groq, xAI or Perplexity key", r"(?:gsk_|xai-|pplx-)[A-Za-z0-9]{40,}"),
    Shape("PyPI token", rf"pypi-{W}{{20,}}"),
    Shape("npm token", rf"npm_{W}{{20,}}"),
    Shape("RubyGems or Clojars token", r"rubygems_[a-f0-9]{40,}|CLOJARS_[a-z0-9]{50,}"),
    Shape("DigitalOcean token", r"do[opr]_v1_[a-f0-9]{32,}"),
    Shape("Stripe key", r"(?:sk|rk|pk)_(?:test|live|prod)_[A-Za-z0-9]{10,}|whsec_[A-Za-z0-9+/]{24,}"),
    Shape("SendGrid or Sendinblue key", rf"SG\.{W}{{16,}}\.{W}{{16,}}|xkeysib-[a-f0-9]{{32,}}{W}*"),
    Shape("Twilio key", r"(?:SK|AC)[0-9a-f]{32}"),
    Shape("Mailchimp key", r"[0-9a-f]{32}-us[0-9]{1,2}"),
    Shape("Square token", rf"sq0(?:atp|csp)-{W}{{22,}}"),
    Shape("Shopify token", r"shp(?:at|ca|pa|ss)_[A-Fa-f0-9]{32}"),
    Shape("Grafana token", r"gl(?:c|sa)_[A-Za-z0-9+/_]{32,}={0,2}"),
    Shape("Vault token", rf"hv[sbr]\.{W}{{24,}}"),
    Shape("Terraform token", rf"[A-Za-z0-9]{{14}}\.atlasv1\.{W}{{40,}}"),
    Shape("Pulumi token", r"pul-[a-f0-9]{40}"),
    Shape("PlanetScale token", r"pscale_(?:tkn|oauth|pw)_[A-Za-z0-9_=.-]{32,}"),
    Shape("Postman key", r"PMAK-[a-f0-9]{24}-[a-f0-9]{34}"),
    Shape("New Relic key", r"NRAK-[A-Z0-9]{27}|NRII-[A-Za-z0-9-]{32}"),
    Shape("Sentry token", r"sntry[su]_[A-Za-z0-9+/=_]{40,}"),
    Shape("Linear or Figma token", rf"lin_api_[A-Za-z0-9]{{40}}|figd_{W}{{30,}}"),
    Shape("Notion token", r"ntn_[A-Za-z0-9]{40,}|secret_[A-Za-z0-9]{43}"),
    Shape("Prefect key", r"pn[ub]_[A-Za-z0-9]{36}"),
    Shape("Tailscale key", r"tskey-[a-z]+-[A-Za-z0-9-]{16,}"),
    Shape("Atlassian token", r"AT(?:ATT|CTT|BB)[A-Za-z0-9_=-]{24,}", is_secret=_has_digit),
    Shape("Artifactory key", r"AKCp[A-Za-z0-9]{60,}|cmVmd[A-Za-z0-9]{55,}"),
    Shape("Heroku or Fly.io key", rf"HRKU-{W}{{30,}}|f(?:o1|m1[ar]|m2)_[A-Za-z0-9+/_-]{{43,}}"),
    Shape("1Password key", r"A3-[A-Z0-9]{6}-[A-Z0-9]{6,11}-(?:[A-Z0-9]{5}-?){3,4}"),
    Shape("OpenShift token", rf"sha256~{W}{{43}}"),
    Shape("Alibaba key", r"LTAI[A-Za-z0-9]{16,20}", is_secret=_has_digit),
    Shape("UUID", rf"(?:GPU-|MIG-)?{HEX}{{8}}-(?:{HEX}{{4}}-){{3}}{HEX}{{12}}"),
    Shape("MAC address", rf"(?:{HEX}{{2}}:){{5,19}}{HEX}{{2}}|(?:{HEX}{{2}}-){{5}}{HEX}{{2}}"),
    Shape("IP address", r"(?:[0-9]{1,3}\.){3}[0-9]{1,3}", r"(?<![0-9.])", r"(?!\.?[0-9])", _is_ip4),
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
        r"(?:[A-Za-z0-9-]{1,63}\.){1,8}(?:com|edu|gov|mil|internal|corp|lan)",
        after=r"(?![A-Za-z0-9-]|\.[A-Za-z])",
    ),
    Shape("long hexadecimal", r"[0-9a-f]{32,}|[0-9A-F]{32,}", is_secret=_is_hash),
    Shape("long base64", r"[A-Za-z0-9+/]{32,}={0,2}", is_secret=_is_random),
    Shape("long base64", rf"{W}{{43,}}", is_secret=_is_random),
)
