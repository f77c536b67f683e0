"""An image of a user made ready for a model: really decoded, small enough, without what else its file holds."""

import base64
import io
from dataclasses import dataclass
from typing import BinaryIO

from PIL import Image, ImageOps

FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
MAX_FILE_BYTES = 20 * 1024 * 1024
MAX_PIXELS = 50_000_000
"""Known from the header, before a pixel is decoded: an image of so many takes 200 MB."""
MAX_EDGE, MAX_AREA = 1_568, 1_200_000
"""Of what a model is sent: what is more, providers scale down themselves, at a cost."""
Image.MAX_IMAGE_PIXELS = None  # the library would only warn; the size is checked here before anything is decoded


class ImageRefused(ValueError):
    """No image that can be shown; the text says why."""


@dataclass(frozen=True, slots=True)
class ReadyImage:
    """``width`` and ``height`` in pixels."""

    base64: str
    mime_type: str
    width: int
    height: int


def ready_image(file: BinaryIO) -> ReadyImage:
    """The image in ``file``; of an animation the first frame. Blocks, for a second at most, and takes 300 MB at most.

    Raises :class:`ImageRefused`.
    """
    data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise ImageRefused(f"the file is larger than {MAX_FILE_BYTES // 1024 // 1024} MB")
    try:
        return _ready(data)
    except ImageRefused:
        raise
    except (OSError, SyntaxError, ValueError, EOFError, MemoryError) as error:  # what a broken file makes of Pillow
        raise ImageRefused("this is no PNG, JPEG, WebP or GIF image, or a damaged one") from error


def _ready(data: bytes) -> ReadyImage:
    with Image.open(io.BytesIO(data), formats=FORMATS) as image:
        width, height = image.size
        if width * height > MAX_PIXELS:
            raise ImageRefused(f"the image has {width} x {height} pixels, more than {MAX_PIXELS // 1_000_000} million")
        photo = image.format == "JPEG"
        scale = min(1.0, MAX_EDGE / max(width, height), (MAX_AREA / (width * height)) ** 0.5)
        if photo:
            image.draft("RGB", (int(width * scale), int(height * scale)))
        image.load()
        shown = ImageOps.exif_transpose(image)
    shown = shown.convert("RGB" if photo else "RGBA")
    most = min(MAX_EDGE, int(max(width, height) * scale) or 1)  # of the longer edge, whichever way it lies now
    shown.thumbnail((most, most))
    return _encoded(shown, photo)


def _encoded(image: Image.Image, photo: bool) -> ReadyImage:
    target = io.BytesIO()
    if photo:
        image.save(target, "JPEG", quality=85)
    else:
        image.save(target, "PNG")
    kind = "image/jpeg" if photo else "image/png"
    return ReadyImage(base64.b64encode(target.getvalue()).decode(), kind, image.width, image.height)
