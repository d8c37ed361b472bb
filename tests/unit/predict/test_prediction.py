"""Predictions are what the strategies' own code takes on a machine whose times can be told by hand."""

import math
from dataclasses import replace

import pytest

from samovar.collectives.plans import ring_all_reduce
from samovar.predict.cluster import Cluster, NetworkSpec, NodeSpec, RackSpec, ServerSpec, WorkerSpec
from samovar.predict.plans import Plans, all_reduce_s, plans_for, whole_powers
from samovar.predict.prediction import COMPUTATION, Question, Runs, least_periods, predicted, verdicts
from samovar.predict.runs import SharingChoice, run
from samovar.report.comparison import Prediction
from samovar.report.profile import LayerProfile, Profile
from samovar.strategies.catalog import STRATEGIES
from samovar.strategies.config import StrategyConfig

BANDWIDTH, LATENCY_S = 1e9, 1e-4
NUM_PARAMETERS, STEP_S = 10_000_000, 0.3
NUM_BYTES = 4 * NUM_PARAMETERS
PROFILE = Profile(
    "net", 10, tuple(LayerProfile(f"fc{i}", "InnerProduct", NUM_PARAMETERS // 10, 0, 0, 0.01, 0.02) for i in range(10))
)
CLUSTER = Cluster("flat", network=NetworkSpec(BANDWIDTH, LATENCY_S))


def asked(cluster: Cluster, strategy: str, *workers: int, **settings: object) -> Question:
    collective = str(settings.pop("collective", "auto"))
    return Question(PROFILE, cluster, workers, (strategy,), 10, collective=collective, settings=settings)


@pytest.mark.parametrize("num_workers", [2, 8, 64])
def test_a_tree_without_overlap_takes_its_steps(num_workers: int) -> None:
    question = asked(CLUSTER, "sync", num_workers, collective="tree", overlap="none")
    (found,) = predicted(question)
    exchange_s = 2 * math.log2(num_workers) * (LATENCY_S + NUM_BYTES / BANDWIDTH)
    assert found.step_s == pytest.approx(STEP_S + exchange_s, rel=1e-3)
    assert found.exchange_s == pytest.approx(exchange_s, rel=1e-3)
    assert found.speed_up == pytest.approx(num_workers * STEP_S / found.step_s)
    assert found.limit == "a node's link"


@pytest.mark.parametrize("num_workers", [4, 5, 16])
def test_bytes_are_those_of_the_net(num_workers: int) -> None:
    (found,) = predicted(asked(CLUSTER, "sync", num_workers, collective="ring", overlap="none"))
    share = 2 * (num_workers - 1) / num_workers
    assert found.bytes_per_step == pytest.approx(share * NUM_BYTES, rel=2e-3)
    assert found.exchange_s == pytest.approx(
        share * NUM_BYTES / BANDWIDTH + 2 * (num_workers - 1) * LATENCY_S, rel=5e-3
    )


@pytest.mark.parametrize(
    ("strategy", "num_workers", "saved_s"),
    [("sync", 2, 0.05), ("sync", 1, 0.0), ("sync-easgd", 2, 0.0), ("async-sgd", 2, 0.0)],
)
def test_workers_that_add_up_gradients_in_step_make_them_in_their_place(
    strategy: str, num_workers: int, saved_s: float
) -> None:
    steps = []
    for fresh_s in (0.0, 0.005):
        layers = tuple(replace(layer, fresh_s=fresh_s) for layer in PROFILE.layers)
        settings = {"overlap": "none"} if strategy == "sync" else {}
        question = replace(asked(CLUSTER, strategy, num_workers, **settings), profile=replace(PROFILE, layers=layers))
        steps.append(predicted(question)[0].step_s)
    assert steps[0] - steps[1] == pytest.approx(saved_s)


@pytest.mark.parametrize(("strategy", "factor"), [("sync", 1), ("local-sgd", 1), ("async-sgd", 4), ("shm-easgd", 4)])
def test_what_is_not_learned_travels_to_a_center_alone(strategy: str, factor: int) -> None:
    frozen = LayerProfile("frozen", "", 0, 0, 0, 0.01, 0.0, num_unlearned=3 * NUM_PARAMETERS)
    asked_with, asked_without = (
        replace(asked(CLUSTER, strategy, 2), profile=replace(PROFILE, layers=layers))
        for layers in ((frozen, *PROFILE.layers), PROFILE.layers)
    )
    (found,), (plain,) = predicted(asked_with), predicted(asked_without)
    assert found.bytes_per_step == pytest.approx(factor * plain.bytes_per_step)


def test_the_backward_pass_hides_an_exchange() -> None:
    none, behind = (predicted(asked(CLUSTER, "sync", 8, **one))[0] for one in ({"overlap": "none"}, {}))
    assert behind.num_buckets > 1
    assert behind.exchange_s < 0.5 * none.exchange_s


def test_an_exchange_behind_a_period_costs_nothing_until_it_is_longer() -> None:
    hidden, exposed = (
        predicted(asked(CLUSTER, "sync-easgd", 8, sync_period_steps=period, collective="tree"))[0] for period in (2, 1)
    )
    takes_s = 6 * (LATENCY_S + NUM_BYTES / BANDWIDTH)  # 0.24 s: less than a step of 0.3 s
    assert takes_s < STEP_S
    assert hidden.exchange_s == exposed.exchange_s == 0
    assert hidden.limit == COMPUTATION
    slow = replace(CLUSTER, network=NetworkSpec(BANDWIDTH / 2, LATENCY_S))
    (found,) = predicted(asked(slow, "sync-easgd", 8, sync_period_steps=1, collective="tree"))
    assert found.step_s == pytest.approx(6 * (LATENCY_S + 2 * NUM_BYTES / BANDWIDTH), rel=1e-2)


@pytest.mark.parametrize("strategy", ["sync", "sync-easgd"])
def test_without_a_spare_core_an_exchange_takes_its_time_from_the_computation(strategy: str) -> None:
    """In a ring of two each sends and receives all bytes once."""
    processing, period = 1e9, 4
    settings = {"sync_period_steps": period, "overlap": "period"} if strategy == "sync-easgd" else {"overlap": "none"}
    processed_s = 2 * NUM_BYTES / processing

    def step_s(*, spare_core: bool) -> float:
        network = NetworkSpec(BANDWIDTH, LATENCY_S, processing=processing)
        cluster = Cluster("busy", worker=WorkerSpec(spare_core=spare_core), network=network)
        (found,) = predicted(asked(cluster, strategy, 2, collective="ring", **settings))
        return found.step_s

    if strategy == "sync":  # which computes nothing meanwhile
        assert step_s(spare_core=False) == pytest.approx(STEP_S + processed_s, rel=0.02)
        assert step_s(spare_core=True) == pytest.approx(STEP_S + processed_s, rel=0.02)
    else:
        assert step_s(spare_core=False) == pytest.approx(STEP_S + processed_s / period, rel=0.02)
        assert step_s(spare_core=True) == pytest.approx(STEP_S, rel=0.02)


def test_a_server_serves_as_many_as_its_link_can() -> None:
    server = ServerSpec("own nodes", 1, 1e12)
    cluster = replace(CLUSTER, server=server)
    (found,) = predicted(asked(cluster, "async-sgd", 32))
    assert found.samples_per_s == pytest.approx(10 / (NUM_BYTES / BANDWIDTH), rel=0.1)
    assert found.limit == "the server's link"
    (divided,) = predicted(asked(replace(cluster, server=replace(server, count=2)), "async-sgd", 32))
    assert 1.5 * found.samples_per_s < divided.samples_per_s < 2.1 * found.samples_per_s
    assert found.staleness is not None
    assert found.staleness > 4


@pytest.mark.parametrize(
    ("cluster", "strategy", "limit"),
    [
        (Cluster("a center in its workers' node", node=NodeSpec(8, BANDWIDTH)), "async-sgd", "the server's link"),
        (Cluster("no ports", network=NetworkSpec(BANDWIDTH, ports="unlimited")), "sync", "the network's bandwidth"),
        (Cluster("no bytes", network=NetworkSpec(latency=0.1)), "sync", "latency: messages wait for each other"),
    ],
)
def test_what_a_step_waits_for_is_named(cluster: Cluster, strategy: str, limit: str) -> None:
    cluster = replace(cluster, server=ServerSpec(memory=1e12))
    settings = {"overlap": "none"} if strategy == "sync" else {}
    assert predicted(asked(cluster, strategy, 8, **settings))[0].limit.startswith(limit)


def test_all_wait_for_the_slowest_where_they_go_in_step() -> None:
    cluster = replace(CLUSTER, worker=WorkerSpec(slow_every=4, slow_factor=2.0))
    (in_step,) = predicted(asked(cluster, "local-sgd", 8))
    assert in_step.slower_s == pytest.approx(STEP_S * 0.75, rel=0.02)
    assert in_step.limit == "slower workers"
    (apart,) = predicted(asked(cluster, "async-easgd", 8))
    assert apart.samples_per_s > 1.4 * in_step.samples_per_s


def test_where_all_workers_are_slow_so_is_the_one_they_are_compared_with() -> None:
    cluster = replace(CLUSTER, worker=WorkerSpec(slow_every=1, slow_factor=20.0))
    rows = predicted(asked(cluster, "local-sgd", 1, 4))
    assert rows[0].speed_up == pytest.approx(1.0)
    assert rows[1].efficiency > 0.9


def test_jitter_slows_the_worker_that_all_are_compared_with_too() -> None:
    cluster = Cluster("free", worker=WorkerSpec(jitter=0.5))
    (alone,) = predicted(asked(cluster, "async-easgd", 1))
    assert alone.speed_up == pytest.approx(1.0, rel=0.05)


def test_a_ring_of_many_workers_is_not_compared() -> None:
    names = {one.name for one in plans_for(CLUSTER, 257).costs(1 << 20)}
    assert "ring" not in names
    assert "ring" in {one.name for one in plans_for(CLUSTER, 8).costs(1 << 20)}


def test_an_uplink_of_a_rack_is_named() -> None:
    cluster = replace(CLUSTER, rack=RackSpec(4, oversubscription=8))
    rows = predicted(asked(cluster, "sync", 2, 4, 8, 16, collective="halving-doubling", overlap="none"))
    assert [one.limit for one in rows] == ["a node's link"] * 2 + ["a rack's uplink"] * 2
    (verdict,) = verdicts(rows)
    assert (verdict.ends_at, verdict.limit) == (8, "a rack's uplink")


def test_scaling_ends_behind_the_last_number_that_is_worth_it() -> None:
    """Seven workers fill no whole node, so that each is a group of its own."""
    (verdict,) = verdicts(
        [replace(row, efficiency=share) for row, share in zip(_rows(), (1, 0.4, 0.8, 0.3), strict=True)]
    )
    assert (verdict.ends_at, verdict.less_with) == (8, (2,))
    (verdict,) = verdicts(
        [replace(row, efficiency=share) for row, share in zip(_rows(), (1, 0.4, 0.8, 0.6), strict=True)]
    )
    assert (verdict.ends_at, verdict.less_with) == (None, (2,))


def _rows() -> list[Prediction]:
    return predicted(asked(CLUSTER, "local-sgd", 1, 2, 4, 8))


def test_auto_takes_the_fastest_plan_of_a_cluster() -> None:
    flat, racks = Plans(CLUSTER, 16), Plans(replace(CLUSTER, rack=RackSpec(4, oversubscription=8)), 16)
    assert (flat.fastest(NUM_BYTES), racks.fastest(NUM_BYTES)) == ("halving-doubling", "ring")
    nodes = Plans(replace(CLUSTER, node=NodeSpec(4, 1e10)), 16)
    assert nodes.fastest(NUM_BYTES) == "two-level"
    costs = flat.costs(NUM_BYTES)
    assert costs[0].name == "halving-doubling"
    assert costs[-1].name == "server"
    assert {one.name: one.steps for one in costs}["ring"] == 30


def test_a_plan_takes_what_its_messages_take() -> None:
    taken_s = all_reduce_s(ring_all_reduce, 4, 4_000_000, CLUSTER.machine)
    assert taken_s == pytest.approx(6 * (LATENCY_S + 1_000_000 / BANDWIDTH))


def test_every_strategy_runs() -> None:
    question = Question(PROFILE, CLUSTER, (1, 4), STRATEGIES, 10, samples=36_000)
    rows = predicted(question)
    assert {one.strategy for one in rows} == set(STRATEGIES)
    assert all(0 < one.efficiency <= 1.001 for one in rows), rows
    assert all(one.hours == pytest.approx(10 / one.samples_per_s) for one in rows)
    assert rows == predicted(question)


def test_a_strategy_that_only_declares_anothers_code_shares_its_run() -> None:
    work = asked(CLUSTER, "async-easgd", 4).work(4)
    runs = Runs(CLUSTER, work, 4)
    given = [
        StrategyConfig.given(name, {"sync_period_steps": period})
        for name, period in (("async-easgd", 2), ("hogwild-easgd", 2), ("hogwild-easgd", 3), ("round-robin-easgd", 2))
    ]
    choices = [SharingChoice(config, lambda _: "ring") for config in given]
    found = [runs.of(choice) for choice in choices]
    assert found == [run(choice, CLUSTER, work, 4) for choice in choices]
    assert found[0].staleness is found[1].staleness, "one run"
    assert found[0].settled.name != found[1].settled.name
    assert found[1].step_s != found[2].step_s


def test_fragments_that_travel_behind_steps() -> None:
    whole = predicted(asked(CLUSTER, "diloco", 4, sync_period_steps=8))[0]
    behind = predicted(asked(CLUSTER, "diloco", 4, sync_period_steps=8, fragments=2, delay_steps=1))[0]
    assert whole.exchange_s > 0.005
    assert behind.exchange_s < 0.1 * whole.exchange_s


def test_the_model_may_be_one_bucket() -> None:
    (found,) = predicted(asked(CLUSTER, "sync", 8, bucket_size_bytes=None))
    assert (found.num_buckets, found.settings) == (1, "overlap none")
    assert predicted(asked(CLUSTER, "sync", 8))[0].num_buckets > 1


def test_groups_add_up_by_the_plan_that_was_asked_for() -> None:
    nodes = replace(CLUSTER, node=NodeSpec(4, BANDWIDTH))
    several, one = (
        {name: predicted(asked(nodes, "hybrid-easgd", number, collective=name))[0] for name in names}
        for number, names in ((8, ("auto", "tree", "server")), (4, ("auto", "direct", "tree")))
    )
    assert [row.plan for row in several.values()] == ["tree", "tree", "server"]
    assert several["auto"] == several["tree"]
    assert several["server"].step_s > 1.02 * several["tree"].step_s
    assert [row.plan for row in one.values()] == ["direct", "direct", "tree"]
    assert one["auto"] == one["direct"]


def test_workers_that_share_memory_divide_the_updates() -> None:
    """As `samovar train` does by itself, and a loop of the user's own does not."""
    node = Cluster("one node", worker=WorkerSpec(memory=1e10), node=NodeSpec(4, 1e10))
    profile = replace(PROFILE, update_s=0.1)
    loop, train, ring = (
        predicted(replace(asked(node, "sync", 4, **settings), profile=replace(profile, divides_updates=divides)))[0]
        for divides, settings in ((False, {}), (True, {}), (True, {"collective": "ring", "overlap": "none"}))
    )
    assert train.plan == "direct"
    assert [row.update_s for row in (loop, train, ring)] == pytest.approx([0.1, 0.025, 0.1], rel=0.01)
    assert train.step_s < loop.step_s
    between = replace(asked(CLUSTER, "sync", 4), profile=replace(profile, divides_updates=True))
    assert predicted(between)[0].settings.startswith("overlap full")


@pytest.mark.parametrize("fresh_s", [0.0, 0.005])
def test_a_step_is_told_in_its_parts(fresh_s: float) -> None:
    layers = tuple(replace(layer, fresh_s=fresh_s) for layer in PROFILE.layers)
    question = replace(asked(CLUSTER, "sync", 2), profile=Profile("net", 10, layers, update_s=0.06))
    (found,) = predicted(question)
    parts_s = (found.forward_s, found.backward_s, found.update_s)
    assert parts_s == pytest.approx((0.1, 0.2 - 10 * fresh_s, 0.06))
    assert sum(parts_s) + found.exchange_s == pytest.approx(found.step_s)


def test_compressed_gradients_take_their_bytes() -> None:
    plain = predicted(asked(CLUSTER, "sync", 4, overlap="none", collective="ring"))[0]
    half = predicted(asked(CLUSTER, "sync", 4, overlap="none", collective="ring", compress="bf16"))[0]
    assert half.bytes_per_step == pytest.approx(plain.bytes_per_step / 2, rel=0.02)


def test_a_shared_batch_is_divided() -> None:
    question = replace(
        asked(CLUSTER, "sync", 1, 4, overlap="none", collective="tree"), batch_size=40, shares_batch=True
    )
    alone, four = predicted(question)
    assert alone.step_s == pytest.approx(4 * STEP_S)
    assert four.step_s == pytest.approx(STEP_S + 4 * (LATENCY_S + NUM_BYTES / BANDWIDTH), rel=1e-3)


def test_the_least_period() -> None:
    question = replace(asked(CLUSTER, "local-sgd", 2, 4), strategies=("sync", "local-sgd"))
    (period,) = least_periods(question).values()
    assert period is not None
    assert 1 < period < 64
    settings = {"sync_period_steps": period - 1}
    (shorter,) = predicted(replace(question, workers=(4,), strategies=("local-sgd",), settings=settings))
    assert shorter.efficiency < 0.9
    assert least_periods(question, efficiency=1.0) == {"local-sgd": None}


def test_the_least_period_of_a_strategy_in_fragments() -> None:
    """A period of fewer steps than fragments is no answer, and no error."""
    (period,) = least_periods(asked(CLUSTER, "diloco", 4, sync_period_steps=8, fragments=4, delay_steps=2)).values()
    assert period is not None
    assert period >= 4


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"overlap": "full", "owner": "root"}, "overlap full"),
        ({"owner": "parts"}, "overlap none"),
        ({"owner": "parts", "collective": "ring"}, "overlap none"),
        ({"overlap": "backward"}, "overlap backward"),
    ],
)
def test_settings_of_sync_are_taken_with_recipes_too(settings: dict[str, str], words: str) -> None:
    cluster = replace(CLUSTER, worker=WorkerSpec(jitter=0.05))
    question = replace(asked(cluster, "sync", 2, **settings), has_recipes=True, shares_batch=True)
    assert predicted(question)[0].settings.startswith(words)


def test_one_layer_overlaps_with_nothing() -> None:
    question = replace(asked(CLUSTER, "sync", 2, overlap="backward"), profile=Profile("net", 10, PROFILE.layers[:1]))
    assert predicted(question)[0].settings.startswith("overlap none")


def test_numbers_of_workers() -> None:
    assert list(whole_powers(1, 8)) == [1, 2, 4, 8]
    assert list(whole_powers(3, 20)) == [3, 6, 12, 20]
