"""Pages to chunks of three levels: L1 large, L2 middle, L3 leaf.

Structure comes first: a leaf holds whole sentences of one section, an L2 chunk whole leaves, an L1 chunk whole L2
chunks, and none crosses a page, so that whatever is cited is on the page that is named. Nothing overlaps: retrieval
finds leaves and reads their parents, so a leaf needs no margin.
Texts are cut out of the page as they stand; only a chunk that begins within a table has the table's header row before
it, because cells say nothing without it. The same pages give the same chunks.

A table or a code fence is not torn when a leaf can hold it; a larger one is cut between its lines.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from uuid import UUID, uuid5

from backend.infra.analyze import sentence_spans
from backend.knowledge.parse import Page

LEAF_TOKENS, LEAF_MAX_TOKENS, LEAF_MIN_TOKENS = 128, 160, 48
"""A leaf is closed at the sentence that reaches the first, does not grow over the second, and goes on over the end of
its paragraph or section while it is smaller than the last; a rest smaller than the last is added to the leaf before."""
MIDDLE_TOKENS, LARGE_TOKENS = 400, 1_200
MAX_HEADER_TOKENS = 64
"""A larger table header is not repeated."""

_HEADING = re.compile(r"(#{1,6})[ \t]+(\S.*)")
_FENCE = re.compile(r"[ \t]*(```|~~~)")
_TABLE_LINE = re.compile(r"[ \t]*\|")
_TABLE_RULE = re.compile(r"[|:\- \t]*-[|:\- \t]*")
_MAX_HEADING_CHARS = 300
_PATH_SEPARATOR = " > "
_MAX_SENTENCE_CHARS = 4_000
"""A longer sentence is cut without counting it first."""
_CLOSING_HASHES = re.compile(r"[ \t]+#+[ \t]*$")


@dataclass(frozen=True, slots=True)
class NewChunk:
    """A chunk as it will be stored; ``ordinal`` counts within its level, ``heading`` is the path of headings."""

    id: UUID
    level: int
    parent_id: UUID | None
    root_id: UUID | None
    ordinal: int
    page_number: int | None
    heading: str | None
    text: str

    @property
    def indexed_text(self) -> str:
        """What is embedded and analysed."""
        return indexed_text(self.heading, self.text)


def indexed_text(heading: str | None, text: str) -> str:
    """What is embedded and analysed of a leaf: the text below its headings."""
    return f"{heading}\n{text}" if heading and heading not in text else text


@dataclass(frozen=True, slots=True)
class _Sentence:
    page: int
    start: int
    end: int
    tokens: int
    heading: str | None
    is_heading: bool
    new_paragraph: bool
    block: "_Block | None" = None


@dataclass(frozen=True, slots=True)
class _Block:
    """A table or code fence of one page, of which each line counts as a sentence.

    ``header`` is the span of a table's header rows, to be repeated where the table is cut, or ``None``.
    """

    start: int
    tokens: int
    header: tuple[int, int] | None
    header_tokens: int


@dataclass(slots=True)
class _Piece:
    """Sentences that stand together; of all levels."""

    sentences: list[_Sentence]
    tokens: int = 0
    children: list["_Piece"] = field(default_factory=list["_Piece"])

    @property
    def repeated_header(self) -> _Block | None:
        """The table within which the piece begins, when it has a header to repeat."""
        first = self.sentences[0]
        block = first.block
        return block if block is not None and block.header is not None and first.start >= block.header[1] else None

    @property
    def heading(self) -> str | None:
        """The path of the section that holds the piece; when it leaves the section that it begins within, of that one.

        A piece of several small sections has their headings in its text, and the path that they share.
        """
        first = self.sentences[0]
        paths = {sentence.heading or "" for sentence in self.sentences if not sentence.is_heading}
        shared = _PATH_SEPARATOR.join(_shared([path.split(_PATH_SEPARATOR) for path in paths or {first.heading or ""}]))
        return shared or (None if first.is_heading else first.heading)


def _shared(paths: Sequence[Sequence[str]]) -> Iterator[str]:
    """What all the paths begin with."""
    for titles in zip(*paths, strict=False):
        if len(set(titles)) > 1:
            return
        yield titles[0]


def chunk_pages(pages: Sequence[Page], version_id: UUID, count_tokens: Callable[[str], int]) -> list[NewChunk]:
    """The chunks of a document, L1 before its L2 before their leaves. Ids are made from ``version_id`` and position.

    Counts every sentence once; of a long document that takes seconds, so run it in a thread.
    """
    leaves = list(_leaves(_sentences(pages, count_tokens)))
    middles = list(_groups(leaves, MIDDLE_TOKENS))
    large = list(_groups(middles, LARGE_TOKENS))
    return list(_number(large, pages, version_id))


def _sections(text: str) -> Iterator[tuple[int, int, re.Match[str] | None]]:
    """Start and end of each part of a page, with the heading line that opens it; ``#`` in a code fence opens none."""
    start, position, opened, fenced = 0, 0, None, False
    for line in text.splitlines(keepends=True):
        if _FENCE.match(line):
            fenced = not fenced
        elif not fenced and (heading := _HEADING.match(line)):
            yield start, position, opened
            start, opened = position, heading
        position += len(line)
    yield start, position, opened


def _sentences(pages: Sequence[Page], count_tokens: Callable[[str], int]) -> Iterator[_Sentence]:
    path: list[tuple[int, str]] = []
    for index, page in enumerate(pages):
        for start, end, opened in _sections(page.text):
            if opened is not None:
                depth, title = len(opened[1]), _CLOSING_HASHES.sub("", opened[2][:_MAX_HEADING_CHARS]).strip()
                path = [item for item in path if item[0] < depth] + [(depth, title)]
            heading = _PATH_SEPARATOR.join(title for _, title in path)[:_MAX_HEADING_CHARS] or None
            yield from _section_sentences(index, page.text, (start, end), heading, opened is not None, count_tokens)


def _section_sentences(
    page: int,
    text: str,
    span: tuple[int, int],
    heading: str | None,
    opened: bool,
    count_tokens: Callable[[str], int],
) -> Iterator[_Sentence]:
    previous, is_heading = span[0], opened
    for start, end, lines in _blocks(text, span):
        spans = lines or [(start + left, start + right) for left, right in sentence_spans(text[start:end])]
        fitted = [list(_fit(text, left, right, count_tokens)) for left, right in spans]
        block = _block(text, spans, [sum(part[2] for part in parts) for parts in fitted]) if lines else None
        for parts in fitted:
            new_paragraph = "\n\n" in text[previous : parts[0][0]]
            for left, right, tokens in parts:
                yield _Sentence(page, left, right, tokens, heading, is_heading, new_paragraph, block)
                previous, new_paragraph = right, False
            is_heading = False


def _blocks(text: str, span: tuple[int, int]) -> Iterator[tuple[int, int, list[tuple[int, int]]]]:
    """The section in parts: tables and code fences with the spans of their lines, and what lies between, without."""
    start = span[0]
    lines: list[tuple[int, int]] = []
    kind: str | None = None
    for left, right in _lines(text, span):
        line = text[left:right]
        fence = _FENCE.match(line)
        if kind != "fence":
            new_kind = "fence" if fence else "table" if _TABLE_LINE.match(line) else None
            if new_kind != kind:
                yield start, left, lines
                start, lines, kind = left, [], new_kind
        if kind is not None and line.strip():
            lines.append((left + len(line) - len(line.lstrip()), left + len(line.rstrip())))
        if kind == "fence" and fence and len(lines) > 1:
            yield start, right, lines
            start, lines, kind = right, [], None
    yield start, span[1], lines


def _lines(text: str, span: tuple[int, int]) -> Iterator[tuple[int, int]]:
    position = span[0]
    for line in text[span[0] : span[1]].splitlines(keepends=True):
        yield position, position + len(line)
        position += len(line)


def _block(text: str, lines: Sequence[tuple[int, int]], tokens: Sequence[int]) -> _Block:
    header = None
    if len(lines) > 2 and _TABLE_RULE.fullmatch(text, *lines[1]) and sum(tokens[:2]) <= MAX_HEADER_TOKENS:
        header = (lines[0][0], lines[1][1])
    return _Block(lines[0][0], sum(tokens), header, sum(tokens[:2]))


def _fit(text: str, start: int, end: int, count_tokens: Callable[[str], int]) -> Iterator[tuple[int, int, int]]:
    """The sentence, or the parts of one that is too long for a leaf, cut at white space where there is some."""
    tokens = count_tokens(text[start:end]) if end - start <= _MAX_SENTENCE_CHARS else LEAF_MAX_TOKENS + 1
    if tokens <= LEAF_MAX_TOKENS or end - start <= 1:
        yield start, end, tokens
        return
    middle = (start + end) // 2
    cut = max(text.rfind(" ", start + 1, middle), text.rfind("\n", start + 1, middle))
    cut = cut if cut > start + (middle - start) // 2 else middle
    yield from _fit(text, start, cut, count_tokens)
    left = cut + (len(text[cut:end]) - len(text[cut:end].lstrip()))
    if left < end:
        yield from _fit(text, left, end, count_tokens)


def _leaves(sentences: Iterator[_Sentence]) -> Iterator[_Piece]:
    """Leaves in order; what is left at the end of a section is joined to the leaf before it when it is small."""
    previous: _Piece | None = None
    for piece in _full_leaves(sentences):
        if previous is not None and _is_rest(previous, piece):
            previous.sentences.extend(piece.sentences)
            previous.tokens += piece.tokens
            continue
        if previous is not None:
            yield previous
        previous = piece
    if previous is not None:
        yield previous


def _is_rest(previous: _Piece, piece: _Piece) -> bool:
    last, first = previous.sentences[-1], piece.sentences[0]
    same = last.page == first.page and {last.heading} == {sentence.heading for sentence in piece.sentences}
    return (
        same and piece.tokens < LEAF_MIN_TOKENS and previous.tokens + piece.tokens <= LEAF_MAX_TOKENS + LEAF_MIN_TOKENS
    )


def _full_leaves(sentences: Iterator[_Sentence]) -> Iterator[_Piece]:
    piece: _Piece | None = None
    for sentence in sentences:
        if piece is not None and _closes(piece, sentence):
            yield piece
            piece = None
        if piece is None:
            piece = _Piece([sentence])
            table = piece.repeated_header
            piece.tokens = sentence.tokens + (table.header_tokens if table is not None else 0)
            continue
        piece.sentences.append(sentence)
        piece.tokens += sentence.tokens
    if piece is not None:
        yield piece


def _closes(piece: _Piece, sentence: _Sentence) -> bool:
    """Whether the leaf ends before ``sentence``."""
    last, block = piece.sentences[-1], sentence.block
    if last.page != sentence.page:
        return True
    if block is not None and block.tokens <= LEAF_MAX_TOKENS:  # all of it stands in one leaf
        begins = last.block is not block
        return begins and piece.tokens + block.tokens > LEAF_MAX_TOKENS + (LEAF_MIN_TOKENS if last.is_heading else 0)
    if piece.tokens + sentence.tokens > LEAF_MAX_TOKENS:
        return True
    if last.is_heading or (block is not None and last.block is block):  # a heading stays with what it names
        return False
    if piece.tokens >= LEAF_TOKENS:
        return True
    new_section = last.heading != sentence.heading or sentence.is_heading
    return (new_section or sentence.new_paragraph) and piece.tokens >= LEAF_MIN_TOKENS


def _groups(pieces: Sequence[_Piece], limit: int) -> Iterator[_Piece]:
    """Neighbours of one page together up to ``limit`` tokens; from half of it on a new section begins a new group."""
    group: _Piece | None = None
    for piece in pieces:
        if group is not None:
            last, first = group.sentences[-1], piece.sentences[0]
            new_section = last.heading != first.heading and group.tokens >= limit // 2
            if last.page != first.page or new_section or group.tokens + piece.tokens > limit:
                yield group
                group = None
        if group is None:
            group = _Piece([])
        group.children.append(piece)
        group.sentences.extend(piece.sentences)
        group.tokens += piece.tokens
    if group is not None:
        yield group


def _text(piece: _Piece, pages: Sequence[Page]) -> str:
    """The text of a piece as it stands on its page, below the header of the table that it begins within."""
    first, last = piece.sentences[0], piece.sentences[-1]
    page = pages[first.page].text
    text = page[first.start : last.end]
    table = piece.repeated_header
    return text if table is None or table.header is None else f"{page[slice(*table.header)]}\n{text}"


def _number(large: Sequence[_Piece], pages: Sequence[Page], version_id: UUID) -> Iterator[NewChunk]:
    ordinals = [0, 0, 0]

    def make(piece: _Piece, level: int, parent: UUID | None, root: UUID | None) -> Iterator[NewChunk]:
        ordinal = ordinals[level - 1]
        ordinals[level - 1] += 1
        chunk_id = uuid5(version_id, f"{level}:{ordinal}")
        page_number = pages[piece.sentences[0].page].number
        yield NewChunk(chunk_id, level, parent, root, ordinal, page_number, piece.heading, _text(piece, pages))
        for child in piece.children:
            yield from make(child, level + 1, chunk_id, root or chunk_id)

    for piece in large:
        yield from make(piece, 1, None, None)
