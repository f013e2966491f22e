"""Patterns of tokens that vendors mark with a prefix; the prefixes follow gitleaks 8 and detect-secrets 1.5."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

W = "[A-Za-z0-9_-]"


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


def has_digit(match: re.Match[str]) -> bool:
    """Return whether a match has a digit."""
    return any(map(str.isdigit, match[0]))


def _is_key(match: re.Match[str]) -> bool:
    """Return whether `sk-...` does not follow a letter or has 16 mixed characters; `task-loader-12` is a name."""
    if not match.string[max(match.start() - 1, 0) : match.start()].isalpha():
        return True
    longest = max(match[0].replace("_", "-").split("-"), key=len)
    return len(longest) >= 16 and all(any(map(kind, longest)) for kind in (str.isupper, str.islower, str.isdigit))


TOKENS: tuple[Shape, ...] = (
    Shape("age key", r"AGE-SECRET-KEY-1[A-Z0-9]{20,}"),
    Shape("JSON web token", rf"eyJ{W}{{5,200}}\.{W}{{5,}}(?:\.{W}*)?"),
    Shape("base64 of JSON", r"eyJ[A-Za-z0-9+/=_-]{20,}"),
    Shape(
        "hash of a password",
        r"\$(?:2[abxy]?|[156y]|apr1|argon2[a-z]{1,2}|scrypt|pbkdf2[a-z0-9-]{0,12})\$[A-Za-z0-9_./$,=+-]{20,}",
    ),
    Shape("Hugging Face token", r"(?:hf|api_org)_[A-Za-z0-9]{20,}"),
    Shape("GitHub token", r"gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}"),
    Shape("GitLab token", rf"gl(?:pat|cbt|dt|ffct|ft|imt|agent|oas|ptt|rt|soat)-{W}{{16,}}|GR1348941{W}{{20}}"),
    Shape("AWS key", r"(?:AKIA|ASIA|AROA|AIDA|ABIA|ACCA|AGPA|AIPA|ANPA|ANVA)[A-Z0-9]{16}|ABSK[A-Za-z0-9+/]{80,}={0,2}"),
    Shape("Google key", rf"AIza{W}{{35}}|ya29\.{W}{{20,}}|GOCSPX-{W}{{20,}}|1//0{W}{{30,}}"),
    Shape("Azure secret", r"[A-Za-z0-9_~.]{3}[0-9]Q~[A-Za-z0-9_~.-]{31,}|DefaultEndpointsProtocol=[^\s\"']+"),
    Shape("Slack token", r"xox[abeoprs]-[A-Za-z0-9-]{10,}|xapp-[0-9]-[A-Za-z0-9-]{10,}"),
    Shape("Discord token", rf"[A-Za-z0-9_-]{{23,28}}\.{W}{{6,7}}\.{W}{{27,}}|mfa\.{W}{{60,}}", is_secret=has_digit),
    Shape("Telegram token", rf"[0-9]{{8,10}}:{W}{{35}}"),
    Shape("Docker token", rf"dckr_(?:pat|oat)_{W}{{20,}}"),
    Shape("Databricks token", r"dapi[a-f0-9]{32}(?:-[0-9])?"),
    Shape("OpenAI or Anthropic key", rf"sk-(?:proj|svcacct|admin|ant|or|lf)-{W}{{20,}}|sk-{W}{{0,80}}T3BlbkFJ{W}+"),
    Shape("API key", rf"(?:sk|pk|rk)-{W}{{20,}}", is_secret=_is_key),
    Shape(
        "Modal, Fireworks, Anyscale or NuGet key",
        r"(?:a[ks]-|fw_|esecret_|aph0_)[A-Za-z0-9_]{20,}|oy2[a-z0-9]{43}",
        is_secret=has_digit,
    ),
    Shape("Cloudflare key", r"v1\.0-[a-f0-9]{24}-[a-f0-9]{100,}|cf(?:ut|at|k)_[A-Za-z0-9]{30,}"),
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
    Shape("SendGrid or Sendinblue key", rf"SG\.{W}{{16,64}}\.{W}{{16,}}|xkeysib-[a-f0-9]{{32,}}{W}*"),
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
    Shape("Atlassian token", r"AT(?:ATT|CTT|BB)[A-Za-z0-9_=-]{24,}", is_secret=has_digit),
    Shape("Artifactory key", r"AKCp[A-Za-z0-9]{60,}|cmVmd[A-Za-z0-9]{55,}"),
    Shape("Heroku or Fly.io key", rf"HRKU-{W}{{30,}}|f(?:o1|m1[ar]|m2)_[A-Za-z0-9+/_-]{{43,}}"),
    Shape("1Password key", r"A3-[A-Z0-9]{6}-[A-Z0-9]{6,11}-(?:[A-Z0-9]{5}-?){3,4}"),
    Shape("OpenShift token", rf"sha256~{W}{{43}}"),
    Shape("Alibaba key", r"LTAI[A-Za-z0-9]{16,20}", is_secret=has_digit),
)
