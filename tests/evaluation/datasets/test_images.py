"""Images from everywhere they may come from, checked before anything is asked, and never held in memory."""

from __future__ import annotations

import base64
import hashlib
import json
from io import BytesIO

import pytest
from PIL import Image as PillowImage

from evaluation.datasets import Message, load_dataset, with_sound_images


def encoded_image(color="red", size=(8, 6), file_format="PNG"):
    buffer = BytesIO()
    PillowImage.new("RGB", size, color).save(buffer, file_format)
    return buffer.getvalue()


def base64_of(data):
    return base64.b64encode(data).decode()


RED, BLUE = encoded_image("red"), encoded_image("blue")


def load_rows(tmp_path, *rows):
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return with_sound_images(load_dataset(path).items)


def write_table(tmp_path, *rows):
    path = tmp_path / "data.tsv"
    path.write_text("\n".join(["index\timage\tquestion", *("\t".join(row) for row in rows)]) + "\n")
    return path


@pytest.mark.parametrize("file_format", ["PNG", "JPEG", "GIF", "BMP", "WEBP"])
def test_formats_that_a_server_reads(tmp_path, file_format):
    data = encoded_image(file_format=file_format)
    (tmp_path / "picture").write_bytes(data)
    (item,) = load_rows(tmp_path, {"question": "q", "images": ["picture"]})
    (image,) = item.images
    assert item.error is None
    assert (image.load(), image.num_bytes, image.media_type) == (data, len(data), f"image/{file_format.lower()}")
    assert image.sha256 == hashlib.sha256(data).hexdigest()


def test_table_is_read_back_from_disk_and_a_reference_may_come_first(tmp_path):
    both = json.dumps([base64_of(RED), base64_of(BLUE)]).replace('"', "'")
    path = write_table(tmp_path, ("0", "2", "q"), ("1", both, "q"), ("2", base64_of(BLUE), "q"), ("3", "1", "q"))
    items = load_dataset(path).items
    path.unlink()
    assert [[image.load() for image in item.images] for item in items] == [[BLUE], [RED, BLUE], [BLUE], [RED, BLUE]]
    assert items[0].images[0] is items[1].images[1], "one distinct image is kept once"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (RED[:-20], "cannot be decoded"),
        (encoded_image(size=(64, 64), file_format="JPEG")[:-200], "cannot be decoded"),
        (RED[:8] + b"garbage after the signature" * 3, "cannot be decoded"),
        (b"BM" + bytes(100), "cannot be decoded"),
    ],
)
def test_image_that_does_not_open_makes_a_bad_row_of_each_that_shows_it(tmp_path, data, reason):
    path = write_table(tmp_path, ("0", base64_of(data), "q"), ("1", base64_of(RED), "q"), ("2", "0", "q"))
    bad, good, same = with_sound_images(load_dataset(path).items)
    assert reason in bad.error and bad.images == ()
    assert good.error is None
    assert same.error == bad.error


def test_more_pixels_than_any_server_takes(tmp_path):
    """A picture of one colour is small as a file, and large once decoded."""
    buffer = BytesIO()
    PillowImage.new("1", (12_000, 12_000)).save(buffer, "PNG")
    (tmp_path / "huge.png").write_bytes(buffer.getvalue())
    (item,) = load_rows(tmp_path, {"question": "q", "images": ["huge.png"]})
    assert "decompression bomb" in item.error


def test_file_that_changes_or_goes_is_noticed(tmp_path):
    for name in ("changed.png", "gone.png"):
        (tmp_path / name).write_bytes(encoded_image(size=(len(name), 1)))
    changed, gone = load_rows(tmp_path, *({"question": "q", "images": [n]} for n in ("changed.png", "gone.png")))
    (tmp_path / "changed.png").write_bytes(BLUE)
    (tmp_path / "gone.png").unlink()
    with pytest.raises(ValueError, match="has changed"):
        changed.images[0].load()
    with pytest.raises(ValueError, match="No such file"):
        gone.images[0].load()


def test_a_directory_or_an_address_is_no_image(tmp_path):
    (tmp_path / "folder").mkdir()
    folder, address = load_rows(
        tmp_path,
        {"question": "q", "images": ["folder"]},
        {"question": "q", "images": ["https://example.org/cat.png"]},
    )
    assert "not a file" in folder.error
    assert "not fetched" in address.error


def test_images_stand_at_their_parts_at_markers_or_first(tmp_path):
    (tmp_path / "red.png").write_bytes(RED)
    url = f"data:image/png;base64,{base64_of(BLUE)}"
    parts = [
        {"type": "text", "text": "a"},
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "image", "image": "red.png"},
        {"type": "image"},
        {"type": "text", "text": "<image>"},
    ]
    system = {"role": "system", "content": "s"}
    by_parts, at_head = load_rows(
        tmp_path,
        {"messages": [system, {"role": "user", "content": parts}], "images": ["red.png"]},
        {"messages": [system, {"role": "user", "content": "u"}], "images": ["red.png", url]},
    )
    assert not by_parts.error and not at_head.error
    red, blue = at_head.all_images()
    assert (red.load(), blue.load()) == (RED, BLUE)
    assert by_parts.messages[1] == Message("user", ("a", by_parts.all_images()[0], by_parts.all_images()[1],
                                                    by_parts.all_images()[2], "<image>"))  # fmt: skip
    assert [image.sha256 for image in by_parts.all_images()] == [blue.sha256, red.sha256, red.sha256]
    assert at_head.messages == (Message("system", "s"), Message("user", (red, blue, "u")))
    assert base64_of(BLUE) not in json.dumps(by_parts.columns), "columns go to files, image bytes do not"


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"question": "<image> and <image>?", "images": ["red.png"]}, "2 <image> markers, the row 1 images"),
        ({"prompt": "<image><image>", "images": ["red.png"]}, "2 <image> markers"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image"}]}], "images": ["red.png", "red.png"]},
            "1 of the 2 images have no part",
        ),
        ({"messages": [{"role": "assistant", "content": "a"}], "images": ["red.png"]}, "needs a message of the user"),
    ],
)
def test_numbers_of_images_and_places_that_differ(tmp_path, row, reason):
    (tmp_path / "red.png").write_bytes(RED)
    (item,) = load_rows(tmp_path, row)
    assert item.error is not None and reason in item.error
