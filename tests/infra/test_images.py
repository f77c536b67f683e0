"""Images of users: what is none, what is too much, and what a model gets of the others."""

import base64
import io
import struct
import zlib

import pytest
from PIL import Image

from backend.infra.images import MAX_AREA, MAX_EDGE, ImageRefused, ReadyImage, ready_image


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    target = io.BytesIO()
    image.save(target, kind, **options)
    return target.getvalue()


def ready(data: bytes) -> tuple[ReadyImage, Image.Image]:
    made = ready_image(io.BytesIO(data))
    decoded = Image.open(io.BytesIO(base64.b64decode(made.base64)))
    decoded.load()
    return made, decoded


@pytest.mark.parametrize(
    ("kind", "mime"), [("PNG", "image/png"), ("JPEG", "image/jpeg"), ("WEBP", "image/png"), ("GIF", "image/png")]
)
def test_the_four_formats_are_decoded(kind: str, mime: str):
    made, decoded = ready(encoded(Image.new("RGB", (40, 30), (200, 10, 10)), kind))
    assert (made.mime_type, made.width, made.height) == (mime, 40, 30)
    red, green, _ = decoded.convert("RGB").getpixel((20, 15))
    assert red > 150
    assert green < 60


@pytest.mark.parametrize("size", [(4_000, 3_000), (8_000, 100), (100, 8_000), (2_000, 2_000)])
def test_a_large_one_is_made_small_and_keeps_its_form(size: tuple[int, int]):
    for kind in ("JPEG", "PNG"):
        made, decoded = ready(encoded(Image.new("RGB", size), kind))
        assert decoded.size == (made.width, made.height)
        assert max(decoded.size) <= MAX_EDGE
        assert made.width * made.height <= MAX_AREA * 1.02
        assert made.width / made.height == pytest.approx(size[0] / size[1], rel=0.1)


def test_an_animation_is_its_first_frame():
    frames = [Image.new("RGB", (20, 20), color) for color in ((0, 255, 0), (255, 0, 0), (0, 0, 255))]
    _, decoded = ready(encoded(frames[0], "GIF", save_all=True, append_images=frames[1:], duration=10))
    assert getattr(decoded, "n_frames", 1) == 1
    assert decoded.convert("RGB").getpixel((5, 5)) == (0, 255, 0)


def test_a_photo_is_turned_as_it_was_taken_and_tells_no_place():
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    exif[0x8825] = {1: "N", 2: (52.0, 30.0, 0.0)}
    data = encoded(Image.new("RGB", (60, 20)), "JPEG", exif=exif)
    _, decoded = ready(data)
    assert decoded.size == (20, 60)
    assert not decoded.getexif()


def bomb(width: int, height: int) -> bytes:
    """A PNG whose header says so; little follows."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    rows = zlib.compress(b"\x00" * ((width // 8 + 1) * 1_000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


JPEG = encoded(Image.effect_noise((200, 200), 50), "JPEG")


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"just a text", "no PNG"),
        (b"", "no PNG"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'></svg>", "no PNG"),
        (encoded(Image.new("RGB", (9, 9)), "BMP"), "no PNG"),
        (encoded(Image.new("RGB", (9, 9)), "TIFF"), "no PNG"),
        (JPEG[: len(JPEG) // 2], "damaged"),
        (encoded(Image.new("RGB", (90, 90)), "PNG")[:-40], "damaged"),
        (bomb(10_000, 10_000), "pixels"),
        (bomb(100_000, 100_000), "pixels"),
        (b"\x89PNG\r\n\x1a\n" + b"x" * 100, "no PNG"),
        (b"x" * (21 * 1024 * 1024), "larger"),
    ],
)
def test_what_cannot_be_shown_is_refused_with_its_reason(data: bytes, why: str):
    with pytest.raises(ImageRefused, match=why):
        ready_image(io.BytesIO(data))
