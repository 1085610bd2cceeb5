"""Questions on images from end to end: what is sent, in which order, and how much of it at a time."""

from __future__ import annotations

import base64
import json
from io import BytesIO
from itertools import groupby

from PIL import Image as PillowImage

from evaluation.cli import main
from evaluation.datasets import load_dataset


def evaluate(url, data, run, *more):
    return main(["--server", url, "--data", str(data), "--output", str(run), "--no-report", *more])


def url_of(entry):
    image, _ = entry["body"]["messages"][-1]["content"]
    return image["image_url"]["url"]


def picture(number):
    buffer = BytesIO()
    PillowImage.new("RGB", (16, 16), (number, 2 * number, 3 * number)).save(buffer, "PNG")
    return buffer.getvalue()


def test_easy_vqa_in_its_own_order_and_its_own_bytes(start_stub, tmp_path):
    stub, run = start_stub(kind="vlm"), tmp_path / "run"

    assert (
        evaluate(stub.url, "easy-vqa:test", run, "--limit", "60", "--concurrency", "1", "--max-image-mb", "0.001") == 0
    )

    items = load_dataset("easy-vqa:test").items[:60]
    assert [entry["question"] for entry in stub.asked()] == [item.question for item in items]
    for entry, item in zip(stub.asked(), items, strict=True):
        assert base64.b64decode(url_of(entry).removeprefix("data:image/png;base64,")) == item.images[0].load()
    summary = json.loads((run / "summary.json").read_text())
    assert summary["scores"]["exact_match"]["n"] == 60
    row = json.loads(next(iter((run / "dataset").iterdir())).read_text().splitlines()[0])
    assert row["images"] == [items[0].images[0].sha256]


def test_questions_on_one_image_follow_each_other(start_stub, tmp_path):
    """In the table the images alternate; the results keep the table's order."""
    pictures = [base64.b64encode(picture(n)).decode() for n in range(4)]
    rows = [f"{n}\t{pictures[n % 4]}\tECHO:{n}\t{n}" for n in range(20)]
    data, run = tmp_path / "data.tsv", tmp_path / "run"
    data.write_text("\n".join(["index\timage\tquestion\tanswer", *rows]))
    stub = start_stub(kind="vlm")

    assert evaluate(stub.url, data, run, "--concurrency", "1") == 0

    assert len(list(groupby(map(url_of, stub.asked())))) == 4
    table = (run / "export" / "results.tsv").read_text().splitlines()[1:]
    assert [line.split("\t")[0] for line in table] == [str(n) for n in range(20)]
    assert json.loads((run / "summary.json").read_text())["scores"]["exact_match"]["mean"] == 1.0
    kept = b"".join(path.read_bytes() for path in run.rglob("*") if path.is_file())
    assert not any(picture.encode() in kept for picture in pictures), "digests are kept, bytes are not"


def test_raw_prompt_sends_its_images_beside_it(start_stub, write_jsonl, tmp_path):
    (tmp_path / "one.png").write_bytes(picture(1))
    data = write_jsonl([{"id": 1, "prompt": "<image>Caption: ECHO:x", "images": ["one.png"]}])
    stub = start_stub(kind="vlm")

    assert evaluate(stub.url, data, tmp_path / "run") == 0

    (entry,) = stub.asked()
    assert entry["path"] == "/generate"
    assert entry["body"]["text"] == "<image>Caption: ECHO:x"
    encoded = base64.b64encode(picture(1)).decode()
    assert entry["body"]["image_data"] == [f"data:image/png;base64,{encoded}"]


def test_image_that_changes_while_the_run_is_under_way_is_bad_data(start_stub, write_jsonl, tmp_path, start_client):
    for number in range(3):
        (tmp_path / f"{number}.png").write_bytes(picture(number))
    rows = [{"id": n, "question": f"ECHO:{n}", "images": [f"{n}.png"]} for n in range(3)]
    stub, run = start_stub(kind="vlm", latency=1.5), tmp_path / "run"
    client = start_client(stub.url, write_jsonl(rows), run, "--concurrency", "1")

    client.wait_for_lines(1)
    (tmp_path / "2.png").write_bytes(picture(9))

    assert client.process.wait(60) == 0
    (log,) = (run / "log").iterdir()
    statuses = {line["item_id"]: line["status"] for line in map(json.loads, log.read_text().splitlines())}
    assert statuses == {"0": "ok", "1": "ok", "2": "client_data"}
