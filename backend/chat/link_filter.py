"""Addresses in an answer: those of other hosts are shown, never live.

A document can order a model to write an image whose address holds the conversation; whoever renders it sends it there.
So outside fenced code an address is left alone only if its host is allowed. Any other becomes ``hxxps://host[.]org``,
which nothing renders as a link, and one space breaks the syntax around it: ``](`` and ``]:`` before an address, ``<``
before a tag. Works on text in any chunking and gives the same result for each.
"""

import re
from collections.abc import Collection

ANY_HOST = "*"
_MAX_TARGET = 300
"""Characters within which the destination of a link must be over, or its host known."""
_MAX_LINE = 1_100
"""Characters of a line that are remembered: a label has fewer."""

_HOT = re.compile(
    r"(?P<scheme>(?<![a-z])(?P<name>https?|ftp)://)"
    r"|(?P<www>(?<![a-z0-9_.])www\.)"
    r"|(?P<target>\]\()"
    r"|(?P<definition>\]:)"
    r"|(?P<tag><(?=[a-z/!?]))"
    r"|(?P<end>[\r\n])",
    re.IGNORECASE,
)
_MAYBE_HOT = re.compile(
    r"(?:(?<![a-z])(?:h(?:t(?:t(?:ps?(?::/?)?)?)?)?|f(?:t(?:p(?::/?)?)?)?)|(?<![a-z0-9_.])w{1,3}|\]|<)\Z",
    re.IGNORECASE,
)
"""The end of a text that may go on as something hot."""
_HOST = re.compile(r"[A-Za-z0-9._~%:@-]*")
_HOST_IS_OVER = re.compile(r"[/?#]|[)\]}*_~\"'.,;:!>|`]*(?:[\s<]|\Z)")
"""Behind a host: a path, or the end of the address whatever a renderer counts to it."""
_PUNCTUATION = re.compile(r"[)\]}*_~\"'.,;:!>|`]*\Z")
_TARGET, _DEFINED = re.compile(r"[^\s)]*"), re.compile(r"[ \t]*[^\s]*")
_ABROAD = re.compile(r"[:&\\<\x00-\x08\x0e-\x1f]|^[ \t]*//|^[ \t]*\Z")
"""In a destination: a scheme, what may turn out as one, another host, or nothing (it may follow in the next line)."""
_ABSOLUTE = re.compile(r"[ \t]*https?://(?P<host>[A-Za-z0-9.:-]+)(?=[/?#])", re.IGNORECASE)
_WHOLE = re.compile(r"[ \t]*https?://(?P<host>[A-Za-z0-9.:-]+)", re.IGNORECASE)
_TAG_NAME = re.compile(r"<[a-z/!?][a-z0-9-]{0,31}", re.IGNORECASE)
_MARKERS = re.compile(r"[\s>*+\-\d.)]*")
_LABEL = re.compile(r"[\s>*+\-\d.)]*\[[^\]]*")
_FENCE, _FENCE_LIKE = re.compile(r"(`{3,})[^`]*"), re.compile(r"```|~~~")
_DEFANGED = {"http": "hxxp", "https": "hxxps", "ftp": "fxp"}


class LinkFilter:
    """Feed it text, send what it gives, :meth:`flush` at the end of each text.

    ``allowed`` are lower-case host names, the hosts below them included; ``*`` is every host.
    """

    def __init__(self, allowed: Collection[str] = ()) -> None:
        self._allowed = frozenset(allowed)
        self._held = ""
        self._line = ""
        """The line so far, as it came."""
        self._fence = ""
        """The backticks that opened the code which is being read."""
        self._fences_are_clear = True
        """Whether every fence so far was one for all renderers; from the first other one on nothing passes as code."""

    def feed(self, text: str) -> str:
        """The part of all text so far that can be sent now and was not sent before."""
        return text if ANY_HOST in self._allowed else self._run(text, last=False)

    def flush(self) -> str:
        """What was held back, at the end of a text; the next one begins anew, outside code."""
        sent = self._run("", last=True)
        self._fences_are_clear = self._fences_are_clear and not self._fence
        self._fence = self._line = ""
        return sent

    def _run(self, text: str, *, last: bool) -> str:
        self._held += text
        sent: list[str] = []
        while self._held:
            piece = self._code() if self._fence else self._prose(last)
            if piece is None:
                break
            sent.append(piece)
        return "".join(sent)

    def _take(self, count: int) -> str:
        """The next ``count`` characters, which stay in their line."""
        taken, self._held = self._held[:count], self._held[count:]
        self._line = (self._line + taken)[-_MAX_LINE:]
        return taken

    def _end_line(self) -> str:
        taken, self._held, self._line = self._held[:1], self._held[1:], ""
        return taken

    # --- code -------------------------------------------------------------------------------------------------------

    def _code(self) -> str:
        """The rest of the line, as it is. Only a line of as many backticks ends the code."""
        rest = re.match(r"[^\r\n]*", self._held)
        if rest is not None and rest.end():
            return self._take(rest.end())
        if re.fullmatch(rf" {{0,3}}{self._fence}`*[ \t]*", self._line):
            self._fence = ""
        return self._end_line()

    def _opens_code(self, last: bool) -> bool | None:
        """Whether the line that begins here opens code; ``None``: more text is needed to know."""
        if self._line or not self._fences_are_clear or not self._held.startswith("`"):
            return False
        line = re.split(r"[\r\n]", self._held, maxsplit=1)
        if len(line) == 1 and not last:
            return None if len(self._held) < _MAX_TARGET else False
        opening = _FENCE.fullmatch(line[0])
        if opening is not None:
            self._fence = opening[1]
        return opening is not None

    # --- prose ------------------------------------------------------------------------------------------------------

    def _prose(self, last: bool) -> str | None:
        """The next piece, as it is to be sent; ``None``: more text is needed to know."""
        opens = self._opens_code(last)
        if opens is None:
            return None
        if opens:  # what is behind its line end is code
            return self._take(len(re.split(r"[\r\n]", self._held, maxsplit=1)[0])) + self._end_line()
        done = len(self._line)
        text = self._line + self._held
        found = _HOT.search(text, done)
        if found is None:
            held = None if last else _MAYBE_HOT.search(text, done)
            return self._take((len(text) if held is None else held.start()) - done) or None
        if found.start() > done:
            return self._take(found.start() - done)
        return self._hot(found, last)

    def _hot(self, found: re.Match[str], last: bool) -> str | None:
        match found.lastgroup:
            case "scheme":
                return self._address(len(found[0]), f"{_DEFANGED[found['name'].lower()]}://", last)
            case "www":
                return self._address(0, "", last)
            case "target":
                return self._destination(_TARGET, last)
            case "definition":
                return self._destination(_DEFINED, last) if _LABEL.fullmatch(self._line) else self._take(2)
            case "tag":
                return self._tag(last)
            case _:
                if _FENCE_LIKE.search(self._line):
                    self._fences_are_clear = False
                return self._end_line()

    def _address(self, scheme: int, defanged: str, last: bool) -> str | None:
        """An address of which ``scheme`` characters come before its host."""
        host = _HOST.match(self._held, scheme)
        end = scheme if host is None else host.end()
        rest = self._held[end:]
        if not last and _PUNCTUATION.match(rest) and end < _MAX_TARGET:
            return None
        name = self._held[scheme:end]
        if _HOST_IS_OVER.match(rest) and self._is_allowed(name):
            return self._take(end)
        self._take(end)
        return defanged + name.replace(".", "[.]")

    def _destination(self, form: re.Pattern[str], last: bool) -> str | None:
        """``](`` or ``]:`` with the destination behind it, or its first character and a space."""
        found = form.match(self._held, 2)
        end = 2 if found is None else found.end()
        target = self._held[2:end]
        known = _ABSOLUTE.match(target)
        if known is not None and self._is_allowed(known["host"]):
            return self._take(2 + known.end())
        if end == len(self._held) and not last and len(target) < _MAX_TARGET:
            return None
        whole = _WHOLE.fullmatch(target)
        home = self._is_allowed(whole["host"]) if whole is not None else not _ABROAD.search(target)
        if form is _TARGET and not target and self._held[2:3] == ")":
            home = True
        return self._take(end) if home and len(target) < _MAX_TARGET else f"{self._take(1)} {self._take(1)}"

    def _tag(self, last: bool) -> str | None:
        """``<`` and a space, unless it is a bare ``<name>`` within a line, which renders as nothing that loads."""
        name = _TAG_NAME.match(self._held)
        end = 1 if name is None else name.end()
        if end == len(self._held):
            return self._take(end) if last else None
        if self._held[end] == ">" and not _MARKERS.fullmatch(self._line):
            return self._take(end + 1)
        return f"{self._take(1)} "

    def _is_allowed(self, host: str) -> bool:
        """``host`` may come with a port; one with a user before it is never allowed."""
        name = host.partition(":")[0].lower().rstrip(".")
        return "@" not in host and any(name == known or name.endswith(f".{known}") for known in self._allowed)
