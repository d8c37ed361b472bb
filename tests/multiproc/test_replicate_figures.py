"""Figures of a user's own loop: lines of all ranks' steps, a timeline, and who is slow."""

import re
from functools import cache
from typing import Any

import pytest

from samovar.core.plain import from_plain
from samovar.predict.cluster import Cluster
from samovar.predict.prediction import Question, predicted
from samovar.report.profile import Profile
from tests.multiproc.replicate_figures_rank import NUM_STEPS, PERIOD
from tests.multiproc.replicate_ranks import run_ranks, succeeded

PROGRAM = "tests.multiproc.replicate_figures_rank"
KINDS = {"data_s", "forward_s", "backward_s", "exchange_s", "update_s"}


@cache
def results() -> dict[str, list[Any]]:
    return run_ranks(PROGRAM, 2)


def of(scenario: str) -> tuple[dict[str, Any], dict[str, Any], list[dict[str, Any]]]:
    """The results of both ranks, and the training lines."""
    first, second = succeeded(results(), scenario)
    return first, second, [line for line in first["lines"] if line["kind"] == "train"]


@pytest.mark.parametrize("scenario", ["in_step", "in_parts"])
def test_each_step_has_a_line_with_the_mean_loss_of_all_ranks(scenario: str) -> None:
    first, second, lines = of(scenario)
    assert [line["step"] for line in lines] == list(range(1, NUM_STEPS + 1))
    means = [sum(losses) / 2 for losses in zip(first["losses"], second["losses"], strict=True)]
    assert [line["loss"] for line in lines] == pytest.approx(means, rel=1e-6)
    for line in lines:
        assert set(KINDS) < line.keys()
        compares = scenario == "in_step" or line["step"] == 1  # a rank that evaluates longer is no slow one
        assert ("last_rank" in line, "late_s" in line) == (compares, compares)
        assert line["seconds"] == pytest.approx(sum(line[kind] for kind in KINDS))
        assert min(line["forward_s"], line["backward_s"], line["exchange_s"], line["update_s"]) > 0.0
        assert line["learning_rate"] == 0.1
    for result in (first, second):
        assert result["figures"]["steps"] == NUM_STEPS
        assert re.match(r"where the time went: data \d+%, forward \d+%", result["figures"]["verdict"])
        assert result["figures"]["loss"] == pytest.approx(means[-1])


def test_a_rank_whose_data_ended_does_not_count() -> None:
    first, second, lines = of("uneven")
    assert (len(first["losses"]), len(second["losses"])) == (NUM_STEPS, NUM_STEPS - 1)
    assert [line["samples"] for line in lines] == [2] * (NUM_STEPS - 1) + [1]
    assert first["figures"]["samples"] == 2 * NUM_STEPS - 1
    assert all(line["data_s"] > 0.0 for line in lines)


def test_seldom_exchanges_report_their_steps_together() -> None:
    first, second, lines = of("seldom")
    assert [line["step"] for line in lines] == [PERIOD, NUM_STEPS]
    last = [sum(result["losses"][PERIOD:]) / PERIOD for result in (first, second)]
    assert lines[-1]["loss"] == pytest.approx(sum(last) / 2)


def test_ranks_are_compared_at_exchanges_alone_however_often_they_meet() -> None:
    """Elsewhere no rank waits for the last one. After an evaluation, the first exchange does not count."""
    _, _, lines = of("seldom_logged")
    assert [line["step"] for line in lines] == list(range(2, 3 * PERIOD + 1))
    assert [line["step"] for line in lines if "late_s" in line] == [PERIOD, 2 * PERIOD]


def test_a_state_that_is_loaded_replaces_the_lines_behind_it() -> None:
    first, _, lines = of("resumed")
    assert [line["step"] for line in lines] == list(range(1, 2 * NUM_STEPS + 1))
    assert first["losses"][0] != first["losses"][NUM_STEPS]


def test_workers_at_a_center_are_shown_side_by_side() -> None:
    first, _, lines = of("at_own_speed")
    assert [line["step"] for line in lines] == list(range(1, NUM_STEPS + 1))
    assert [line["loss"] for line in lines] == pytest.approx(first["losses"])
    workers = [line for line in first["lines"] if line["kind"] == "workers"][-1]
    assert workers["steps"][0] == NUM_STEPS
    assert len(workers["steps"]) == len(workers["loss"]) == 2


def test_chosen_steps_are_in_one_timeline_of_both_ranks() -> None:
    first, _, lines = of("traced")
    assert first["left"] == ["metrics.jsonl", "trace.json.gz"]
    assert len(lines) == NUM_STEPS
    events = first["events"]
    streams = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    for rank in (0, 1):
        named = [(streams[e["tid"]], e["name"]) for e in events if e["ph"] == "X" and e["pid"] == rank]
        assert [name for stream, name in named if stream == "step"] == ["step 3", "step 4"]
        assert [name for stream, name in named if stream == "forward"] == ["forward", "0", "1", "2"] * 2
        assert [name for stream, name in named if stream == "backward"] == ["backward", "2", "1", "0"] * 2
        assert [name for stream, name in named if stream == "update"] == ["optimizer step"] * 2
        assert len([name for stream, name in named if stream == "exchange"]) == 2
    assert len([event for event in events if event["ph"] == "s"]) == 4


def test_a_profile_holds_the_layers_in_forward_order_and_predict_takes_it() -> None:
    """The attention's output layer is never called, so its parameters belong to the attention."""
    first, second = succeeded(results(), "profiled")
    assert second == [None, None]  # the first rank measures
    for plain in first:
        profile = from_plain(Profile, plain)
        assert [(layer.name, layer.num_parameters) for layer in profile.layers] == [
            ("outside layers", 0),
            ("Nested", 6),
            ("attention", 168),
            ("mlp.0", 56),
            ("mlp.2", 27),
        ]
        assert (profile.net, profile.batch_size, profile.is_measured) == ("Nested", 4, True)
        assert all(min(layer.forward_s or 0.0, layer.backward_s or 0.0) > 0.0 for layer in profile.layers[1:])
        assert [layer.activation_bytes for layer in profile.layers[3:]] == [plain["batch_size"] * 8 * 4, 4 * 3 * 4]
        assert (profile.update_s or 0.0) > 0.0
        question = Question(profile, Cluster("two"), (2,), ("sync", "shm-easgd"), profile.batch_size)
        assert all(0.5 < row.efficiency <= 1.0 for row in predicted(question))
