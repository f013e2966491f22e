"""Hand-made texts that a spreadsheet may read as formulas, and texts that it does not."""

SIGNS = "=+-@\uff1d\uff0b\uff0d\uff20"
IN_FRONT = ("", " ", "\t", "\n", "\r", "\r\n", "\v", "\f", "\xa0", "\u3000", "\u200b", "\ufeff", " \n\t ")
FORMULAS = (*(f"{blank}{sign}1+1" for sign in SIGNS for blank in IN_FRONT), "\ttext", "\rtext", "\ntext", "'=1", "=")
NO_FORMULAS = ("text", "a=b", " text", "1-1", "a\n=1", "(=1)", '"=1', ".-", "é")
