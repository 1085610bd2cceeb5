"""Torn tails at every byte and every single flipped bit: nothing else is lost, and all of it is reported."""

from __future__ import annotations

import io
import json

import pytest

from evaluation.run_directory.line import decode_line, encode_line
from evaluation.run_directory.log_reader import LogContents, read_lines, read_logs
from evaluation.run_directory.record import Record
from evaluation.status import Status


def make_record(number: int, text: str) -> Record:
    return Record(
        key=f"{number:064x}",
        item_id=f"item {number}",
        row=number,
        status=Status.OK,
        attempt=1,
        text=text,
        answer=text.strip(),
        usage={"prompt_tokens": 1, "completion_tokens": 2},
        started_at=1700000000.25,
    )


RECORDS = [
    make_record(1, 'B\n{"key":"x","crc":"00000000"}'),
    make_record(2, "emoji \U0001f600, \u2028 and \x00\x1f"),
    make_record(3, ""),
]
LINES = [encode_line(record.to_dict()) for record in RECORDS]
LOG = b"".join(LINES)


def read(data: bytes) -> LogContents:
    return read_lines(io.BytesIO(data), "a.jsonl")


def test_whole_log_is_read_back_and_plain_json():
    contents = read(LOG)
    assert contents.records == RECORDS
    assert not contents.damage
    assert all(line.count(b"\n") == 1 for line in LINES)
    assert json.loads(LINES[1])["text"] == RECORDS[1].text
    members = list(json.loads(LINES[0]))
    assert (members[0], members[-1]) == ("key", "crc")


def test_torn_at_every_byte_of_the_last_line():
    start = len(LOG) - len(LINES[2])
    for end in range(start + 1, len(LOG) - 1):
        contents = read(LOG[:end])
        assert contents.records == RECORDS[:2], end
        assert [(damage.kind, damage.line) for damage in contents.damage] == [("torn", 3)], end
    assert read(LOG[:start]) == LogContents(RECORDS[:2], [])
    assert read(LOG[:-1]) == LogContents(RECORDS, []), "only the newline is missing, and the CRC says so"


def test_every_flipped_bit_costs_at_most_its_own_line():
    position = 0
    for number, line in enumerate(LINES):
        for offset in range(len(line)):
            for bit in range(8):
                damaged = bytearray(LOG)
                damaged[position + offset] ^= 1 << bit
                contents = read(bytes(damaged))
                others = RECORDS[:number] + RECORDS[number + 1 :]
                if offset == len(line) - 1:
                    assert contents.records == RECORDS, "a lost newline costs nothing"
                else:
                    assert contents.records == others, (number, offset, bit)
                assert contents.damage or (number, offset) == (2, len(line) - 1), (number, offset, bit)
        position += len(line)


def test_garbage_between_lines_is_reported_and_passed_over():
    contents = read(LINES[0] + b"\xff\xfe garbage\n\n[1, 2]\n" + LINES[1])
    assert contents.records == RECORDS[:2]
    assert [damage.line for damage in contents.damage] == [2, 3, 4]


@pytest.mark.parametrize("change", [{"status": "no such status"}, {"row": None}])
def test_whole_line_of_another_format_is_no_record(change):
    values = {**RECORDS[0].to_dict(), **change}
    values = {name: value for name, value in values.items() if value is not None}
    contents = read(encode_line(values) + LINES[1])
    assert contents.records == [RECORDS[1]]
    assert len(contents.damage) == 1


def test_member_that_a_later_version_adds_is_ignored():
    assert read(encode_line({**RECORDS[0].to_dict(), "mood": "cheerful"})).records == [RECORDS[0]]


def test_empty_line_is_no_record():
    assert decode_line(b"") is None


def test_files_of_several_writers_are_read_together(tmp_path):
    (tmp_path / "b.jsonl").write_bytes(LINES[0])
    (tmp_path / "a.jsonl").write_bytes(LINES[1] + LINES[2][:9])
    contents = read_logs(tmp_path)
    assert contents.records == [RECORDS[1], RECORDS[0]]
    assert [(damage.file, damage.line) for damage in contents.damage] == [("a.jsonl", 2)]
    assert read_logs(tmp_path / "absent") == LogContents([], [])
