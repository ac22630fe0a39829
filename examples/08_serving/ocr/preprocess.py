"""Before the engine: PNG or JPEG images of one line of text each, to what the recogniser was trained on."""

from __future__ import annotations

import io
import math

import numpy as np
from PIL import Image

HEIGHT = 48
WIDTH_STEP, WIDEST = 32, 960  # requests of one width share a batch; longer lines are squeezed
MOST_IMAGES = 8
MOST_BYTES = 8 * 2**20  # of one file
MOST_PIXELS = 16_000_000


def load() -> None:
    """Once, when the model is loaded."""
    Image.MAX_IMAGE_PIXELS = None  # Pillow's own limit is six times ours, and only warns


def run(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A request's images as one batch, as wide as the widest of them. `ValueError` goes to the client."""
    files = inputs["IMAGE"]
    if not 1 <= len(files) <= MOST_IMAGES:
        raise ValueError(f"{len(files)} images in one request, want 1 to {MOST_IMAGES}")
    lines = [_line(file, f"image {place}") for place, file in enumerate(files)]
    widest = max(line.shape[2] for line in lines)
    batch = np.zeros((len(lines), 3, HEIGHT, math.ceil(widest / WIDTH_STEP) * WIDTH_STEP), np.float32)
    for row, line in zip(batch, lines, strict=True):
        row[:, :, : line.shape[2]] = line
    return {"x": batch}


def _line(file: bytes, name: str) -> np.ndarray:
    """Colours by height by width, from -1 to 1, blue first."""
    image = _decoded(file, name)
    width = min(WIDEST, max(1, round(image.width * HEIGHT / image.height)))
    pixels = np.asarray(image.resize((width, HEIGHT), Image.Resampling.BILINEAR), np.float32)
    return (pixels[:, :, ::-1] / 127.5 - 1).transpose(2, 0, 1)


def _decoded(file: bytes, name: str) -> Image.Image:
    if len(file) > MOST_BYTES:
        raise ValueError(f"{name} has {len(file):,} bytes, want at most {MOST_BYTES:,}")
    try:
        image = Image.open(io.BytesIO(file), formats=("PNG", "JPEG"))  # reads the header alone
        width, height = image.size
        if 0 < width * height <= MOST_PIXELS:
            return _on_white(image)
    except MemoryError:
        raise
    except Exception as error:  # decoders raise what they like at bytes that are no image
        raise ValueError(f"{name} does not read as PNG or JPEG") from error
    raise ValueError(f"{name} has {width} x {height} pixels, want 1 to {MOST_PIXELS:,}")


def _on_white(image: Image.Image) -> Image.Image:
    """Opaque: without this, dark text on nothing would be dark text on black."""
    if not image.has_transparency_data:
        return image.convert("RGB")
    layer = image.convert("RGBA")
    paper = Image.new("RGBA", layer.size, "white")
    paper.alpha_composite(layer)
    return paper.convert("RGB")
