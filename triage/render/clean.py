"""Make a string that came from a node safe for a terminal: no control, no disguise, no endless line.

Fooled by   escape sequences that move the cursor or set the title; C1 controls (one byte escapes); bidirectional
            overrides that show a name backwards; zero-width characters; piles of combining marks; lone surrogates;
            a newline that fakes a line of the report.
"""

from __future__ import annotations

import re
import unicodedata

# CSI and OSC sequences go as a whole, so that their parameters do not stay behind as text.
_SEQUENCE = re.compile(r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|(?:\x1b\]|\x9d)[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?|\x1b.")
_DROPPED = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Mn", "Me"}


def clean(text: object, limit: int = 300) -> str:
    """One line of at most `limit` characters, printable, blanks collapsed; `...` marks a cut."""
    raw = str(text)[: 8 * limit + 64]
    if not (raw.isascii() and raw.isprintable()):
        raw = _SEQUENCE.sub("", raw)
        raw = re.sub(r"[\s\x85\u2028\u2029]+", " ", raw)
        raw = "".join(c for c in unicodedata.normalize("NFC", raw) if unicodedata.category(c) not in _DROPPED)
    short = " ".join(raw.split())
    return short if len(short) <= limit else short[: limit - 3].rstrip() + "..."


def clean_command(text: object, limit: int = 2000) -> str:
    """A shell line to copy: as `clean`, but blanks stay as they are, since they may stand inside quotes.

    A cut command is worse than none: a longer one becomes a comment that says so.
    """
    raw = _SEQUENCE.sub("", str(text)[: limit + 64])
    raw = re.sub(r"[\n\r\t\x0b\x0c\x85\u2028\u2029]", " ", raw)
    raw = "".join(c for c in raw if unicodedata.category(c) not in _DROPPED).strip()
    return raw if len(raw) <= limit else "# the command is too long to print; take it from --output json"
