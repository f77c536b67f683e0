"""Names of files as they lie on the disk: made of what a user typed, but only of what is allowed (ADR 0012)."""

import unicodedata

from backend.text import clean_text

MAX_NAME_BYTES = 180
MAX_EXTENSION_BYTES = 20
_SIGNS = frozenset(" ._-()+,@&=")
_UNNAMED = "file"


def safe_filename(name: str) -> str:
    """``name`` as a single name in a directory, the same for the same name, and for what it gives itself.

    Of a path (of either kind of slash) the last part. Letters, marks and digits of any script and the signs
    `` ._-()+,@&=`` stay, each other character becomes ``_``: no slash, no control, nothing that turns the direction of
    writing. In NFC, 180 bytes at most with its extension kept, without a dot, space or minus in front. Never empty.
    """
    last = clean_text(name).replace("\\", "/").rpartition("/")[2]
    kept = "".join(char if _allowed(char) else "_" for char in last)
    return _cut(unicodedata.normalize("NFC", kept).lstrip(" .-").rstrip(" .")) or _UNNAMED


def _allowed(char: str) -> bool:
    return char in _SIGNS or unicodedata.category(char)[0] in "LMN"


def _cut(name: str) -> str:
    if len(name.encode()) <= MAX_NAME_BYTES:
        return name
    stem, dot, extension = name.rpartition(".")
    tail = f".{extension}" if dot and stem and len(extension.encode()) <= MAX_EXTENSION_BYTES else ""
    head = (stem if tail else name).encode()[: MAX_NAME_BYTES - len(tail.encode())].decode(errors="ignore")
    return head.rstrip(" .") + tail
