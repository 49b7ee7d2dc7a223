import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from aphrodited.metrics import ApiMetrics, MonitorMetrics, render_metrics
from aphrodited.page import Page, Phase

COUNT = """
import sys
from pathlib import Path
from aphrodited.metrics import ApiMetrics
metrics = ApiMetrics(Path(sys.argv[1]), sys.argv[2])
metrics.request("m", "/v1/completions", 200, 0.2)
metrics.completion_tokens("m", 5)
metrics.first_token("m", 0.03)
metrics.inter_tokens("m", [0.002, 0.0025])
"""


def count(folder, program):
    subprocess.run([sys.executable, "-c", COUNT, str(folder), program], check=True)


def page(**fields):
    values = {"pid": 1, "start_ticks": 1, "generation": 2, "phase": Phase.READY, "has_work": False, "num_ticks": 1, "num_steps": 9,
                  "num_finished": 3, "allowance_s": 0, "updated_at_s": 0}  # fmt: skip
    return Page(**values, **fields)


def test_counts_outlive_a_process_and_files_do_not_multiply(tmp_path):
    count(tmp_path, "api-0")
    files = sorted(path.name for path in tmp_path.iterdir())
    count(tmp_path, "api-0")
    count(tmp_path, "api-1")
    text = render_metrics(tmp_path, {}).decode()
    assert 'aphrodited_requests_total{endpoint="/v1/completions",model="m",status="200"} 3.0' in text
    assert 'aphrodited_completion_tokens_total{model="m"} 15.0' in text
    assert 'aphrodited_time_to_first_token_seconds_count{model="m"} 3.0' in text
    assert 'aphrodited_time_to_first_token_seconds_bucket{le="0.025",model="m"} 0.0' in text
    assert 'aphrodited_time_to_first_token_seconds_bucket{le="0.05",model="m"} 3.0' in text
    count(tmp_path, "api-0")
    assert [path.name for path in sorted(tmp_path.iterdir()) if "api-0" in path.name] == files


def test_values_observed_together_are_counted_as_if_they_came_one_by_one():
    durations_s = [0.0, 0.001, 0.0011, 0.3, 2.5, 7.0, 0.3]
    metrics = ApiMetrics()
    metrics.inter_tokens("together", durations_s)
    for duration_s in durations_s:
        metrics.inter_tokens("single", [duration_s])
    samples = {}
    for family in metrics.registry.collect():
        for sample in family.samples:
            if family.name == "aphrodited_inter_token_seconds" and not sample.name.endswith("_created"):
                samples.setdefault(sample.labels.pop("model"), {})[sample.name, sample.labels.get("le")] = sample.value
    assert samples["together"] == pytest.approx(samples["single"])
    name = "aphrodited_inter_token_seconds"
    buckets = {"0.001": 2, "0.0025": 3, "0.25": 3, "0.5": 5, "2.5": 6, "+Inf": 7}
    assert {le: samples["together"][f"{name}_bucket", le] for le in buckets} == buckets
    assert samples["together"][f"{name}_count", None] == 7


def test_a_damaged_file_is_dropped_and_counted_anew(tmp_path):
    count(tmp_path, "api-0")
    for path in tmp_path.iterdir():
        path.write_bytes(b"\xff" * 100)
    count(tmp_path, "api-0")
    assert 'aphrodited_completion_tokens_total{model="m"} 5.0' in render_metrics(tmp_path, {}).decode()


def test_pages_are_shown_as_they_are_now(tmp_path):
    text = render_metrics(tmp_path / "none", {"engine-1": page(num_running=4, num_blocks_used=7)}).decode()
    assert 'aphrodited_process_phase{phase="ready",program="engine-1"} 1.0' in text
    assert 'aphrodited_process_running{program="engine-1"} 4.0' in text
    assert 'aphrodited_process_blocks_used{program="engine-1"} 7.0' in text
    assert 'aphrodited_process_steps_total{program="engine-1"} 9.0' in text


def test_verdicts_are_counted_and_every_living_process_has_a_size():
    metrics = MonitorMetrics()
    metrics.verdict("api-0", "memory", "restart")
    labels = {"program": "api-0", "verdict": "memory", "action": "restart"}
    assert metrics.registry.get_sample_value("aphrodited_verdicts_total", labels) == 1
    pages = {"api-0": page(), "api-1": page()}
    pages["api-1"] = msgspec.structs.replace(page(), pid=2**22 - 3)
    text = render_metrics(Path("/nowhere"), pages).decode()
    assert 'aphrodited_process_resident_bytes{program="api-0"}' in text
    assert 'aphrodited_process_resident_bytes{program="api-1"}' not in text


def test_without_a_folder_counts_stay_in_memory():
    metrics = ApiMetrics()
    metrics.request("m", "/livez", 200, 0.1)
    value = metrics.registry.get_sample_value(
        "aphrodited_requests_total", {"model": "m", "endpoint": "/livez", "status": "200"}
    )
    assert value == 1
