"""Draws a line of text as a PNG: python draw_text.py sample.png "Ridgeline reads this"."""

from __future__ import annotations

import sys

from PIL import Image, ImageDraw, ImageFont

MARGIN = 8


def draw(text: str, size: int = 32) -> Image.Image:
    """Dark on light, in Pillow's own font."""
    font = ImageFont.load_default(size)
    left, top, right, bottom = font.getbbox(text)
    image = Image.new("RGB", (round(right - left) + 2 * MARGIN, round(bottom - top) + 2 * MARGIN), "white")
    ImageDraw.Draw(image).text((MARGIN - left, MARGIN - top), text, "black", font)
    return image


if __name__ == "__main__":
    draw(" ".join(sys.argv[2:])).save(sys.argv[1], "PNG")
