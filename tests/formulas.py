"""Hand-made texts that a spreadsheet may read as formulas, and texts that it does not."""

SIGNS = "=+-@\uff1d\uff0b\uff0d\uff20"
FORMULAS = (
    *(f"{blank}{sign}1+1" for sign in SIGNS for blank in ("", " ", "\v", "\f", "\xa0", "\u200b", "\ufeff")),
    *("\ttext", "\rtext", "\ntext", "'=1", "="),
)
NO_FORMULAS = ("text", "a=b", " text", "1-1", "(=1)", '"=1', ".-", "é", "a;b", "a; b=1", "a\tb", "a;'b")
# Texts in which another cell begins: after a semicolon, a tab or a line end; and how they are written.
INNER_FORMULAS = {
    ";=1": ";'=1",
    "a;=1;b": "a;'=1;b",
    "a; \u200b=1": "a; \u200b'=1",
    "a;'=1": "a;''=1",
    ";;+1;@x": ";;'+1;'@x",
    "a\n=1": "a\n'=1",
    "a;\t=1": "a;\t'=1",
    **{f"{blank}{sign}1": f"'{blank}'{sign}1" for sign in SIGNS for blank in ("\t", "\n", "\r", "\r\n", " \n\t ")},
}
