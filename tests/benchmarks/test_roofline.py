"""The roofline's arithmetic, against numbers worked out by hand, and rates that are measured."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks import roofline
from benchmarks.roofline import DecodeStep, DeviceRates, decode_step_of, main, measure_rates

MODEL = {"num_layers": 10, "num_query_groups": 2, "num_attention_heads": 8, "kv_channels": 64}
RESULT = {
    "workload": {"prompt_tokens": 4800, "num_prompts": 32, "max_new_tokens": 60},
    "step_ms": {"batch_size": 32, "median": 50.0},
    "dtype": "bf16",
    "memory": {"weights_bytes": 200_000_000},
    "model": MODEL,
}


def test_what_a_step_must_do() -> None:
    step = decode_step_of(RESULT)
    # 150 prompt tokens and half of 60 new ones; keys and values of 10 layers x 2 heads x 64 numbers x 2 bytes
    assert step == DecodeStep(32, 200_000_000, 100_000_000, 32 * 180 * 2 * 10 * 2 * 64 * 2)
    without_groups = decode_step_of({**RESULT, "model": {**MODEL, "num_query_groups": None}})
    assert without_groups.kv_bytes == 4 * step.kv_bytes


def test_reading_and_products_come_one_after_the_other() -> None:
    step = DecodeStep(batch_size=32, weights_bytes=200, num_weights=100, kv_bytes=100.0)
    assert step.roofline_seconds(DeviceRates(read=100.0, products=6400.0)) == 3.0 + 1.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rates_are_measured(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(roofline._READ_BYTES, "cpu", 2**22)
    monkeypatch.setitem(roofline._PRODUCT, "cpu", (8, 64, 64))
    rates = measure_rates("cpu", dtype)
    assert rates.read > 0 and rates.products > 0


@pytest.mark.parametrize("content", [None, "{", '{"benchmark": "http"}'])
def test_a_file_that_is_no_result(content: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "result.json"
    if content is not None:
        file.write_text(content)
    assert main([str(file)]) == 2
    assert str(file) in capsys.readouterr().err
