"""What of a model's text may be sent: no reasoning blocks, and no citation number that points nowhere.

Works on text in any chunking and gives the same result for each: what the client sees, what is stored and what is read
again are equal because this is the only place where text is changed.
"""

import re
from collections.abc import Callable

_THINK_OPEN = "<think>"
_THINK_CLOSE = "</think>"
_MAX_CITATION = 12
"""Characters of a citation, brackets included; a longer bracket is text."""

_SPECIAL = re.compile(r"[<\[`\n]")
_CITATION = re.compile(r"\[(?:\^|ID:\s?)?(\d{1,4}(?:\s?[,，、]\s?\d{1,4})*)\]")
_CITATION_PREFIX = re.compile(r"\[(?:\^|I(?:D(?::\s?)?)?)?(?:\d{1,4}(?:\s?[,，、]\s?\d{1,4})*(?:\s?[,，、]\s?|\s)?)?$")


class AnswerFilter:
    """Feed it text, send what it gives, :meth:`flush` at the end of each text.

    ``valid(n)`` tells whether ``[n]`` names a chunk that this run showed to the model. Inside code (inline or fenced)
    nothing is changed. Text is held back only while it may still become a tag or a citation.
    """

    def __init__(self, valid: Callable[[int], bool]) -> None:
        self._valid = valid
        self._held = ""
        self._thinking = 0
        self._ticks = 0
        self._fence = 0
        self._inline = 0
        self._line_is_blank = True
        self.thought = False
        """Whether a reasoning block was dropped."""
        self.cited: set[int] = set()
        """The numbers that were sent as citations."""

    def feed(self, text: str) -> str:
        """The part of all text so far that can be sent now and was not sent before."""
        if not (self._held or self._thinking or self._ticks) and not _SPECIAL.search(text):
            self._line_is_blank = self._line_is_blank and not text.strip()
            return text
        return "".join([self._char(char) for char in text])

    def flush(self) -> str:
        """What was held back, at the end of a text; the next one begins anew, outside code and thoughts.

        An unclosed reasoning block gives nothing.
        """
        held = "" if self._thinking else self._held
        self._held, self._thinking, self._ticks, self._fence, self._inline = "", 0, 0, 0, 0
        self._line_is_blank = True
        return held

    def _char(self, char: str) -> str:
        if self._thinking:
            return self._in_thought(char)
        if not self._held:
            if char not in "<[" or self._in_code(char):
                return self._plain(char)
            self._held = char
            return ""
        return self._extend(char)

    def _in_thought(self, char: str) -> str:
        self._held = (self._held + char)[-len(_THINK_CLOSE) :]
        lowered = self._held.lower()
        if lowered.endswith(_THINK_CLOSE):
            self._thinking -= 1
            self._held = ""
        elif lowered.endswith(_THINK_OPEN):
            self._thinking += 1
            self._held = ""
        return ""

    def _extend(self, char: str) -> str:
        candidate = self._held + char
        if candidate[0] == "<":
            return self._extend_tag(candidate)
        if char == "]" and (match := _CITATION.fullmatch(candidate)):
            self._held = ""
            return "".join(self._plain(item) for item in self._citation(candidate, match[1]))
        if len(candidate) < _MAX_CITATION and _CITATION_PREFIX.fullmatch(candidate):
            self._held = candidate
            return ""
        return self._release(candidate)

    def _extend_tag(self, candidate: str) -> str:
        lowered = candidate.lower()
        if lowered == _THINK_OPEN:
            self._held, self._thinking, self.thought = "", 1, True
            return ""
        if lowered == _THINK_CLOSE:  # a closer without an opener: the tag goes, the text stays
            self._held = ""
            return ""
        if _THINK_OPEN.startswith(lowered) or _THINK_CLOSE.startswith(lowered):
            self._held = candidate
            return ""
        return self._release(candidate)

    def _release(self, candidate: str) -> str:
        """The first character is plain after all; what follows it is looked at again."""
        self._held = ""
        return self._plain(candidate[0]) + self.feed(candidate[1:])

    def _citation(self, candidate: str, numbers: str) -> str:
        wanted = [int(number) for number in re.findall(r"\d+", numbers)]
        kept = [number for number in wanted if self._valid(number)]
        self.cited.update(kept)
        if kept == wanted and len(wanted) == 1 and candidate[1].isdigit():
            return candidate
        return "".join(f"[{number}]" for number in kept)

    def _in_code(self, char: str) -> bool:
        """Whether ``char``, which ends any run of backticks, stands in code."""
        self._end_ticks()
        return bool(self._fence or self._inline)

    def _plain(self, char: str) -> str:
        if char == "`":
            self._ticks += 1
            return char
        self._end_ticks()
        if char == "\n":
            self._inline = 0
            self._line_is_blank = True
        elif not char.isspace():
            self._line_is_blank = False
        return char

    def _end_ticks(self) -> None:
        """A run of backticks is over: it may open or close inline code or a fence."""
        ticks, self._ticks = self._ticks, 0
        if not ticks:
            return
        if self._fence:
            if self._line_is_blank and ticks >= self._fence:
                self._fence = 0
        elif ticks >= 3 and self._line_is_blank:
            self._fence = ticks
        elif self._inline:
            self._inline = 0 if ticks == self._inline else self._inline
        else:
            self._inline = ticks
        self._line_is_blank = False
