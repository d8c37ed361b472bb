"""`samovar time`: how long each layer of a net takes."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from samovar.cli import flags
from samovar.cli.command import OUTPUT, require_place
from samovar.config import DEFAULT_TIMEOUT_S, RunConfig
from samovar.core.device import CPU, FP32
from samovar.core.errors import InputError
from samovar.core.host import Others, family_seconds
from samovar.launch.script import Hosts
from samovar.launch.wishes import state_folder
from samovar.launcher.hosts import place_of, run_anywhere
from samovar.launcher.placing import on_device, placed
from samovar.predict.kept import Kept, Subject
from samovar.report.console import Console
from samovar.report.profile import load_profile, profile_of, save_profile
from samovar.report.records import READING, LayerTime, Timed
from samovar.report.tables import AnswerDisplay, print_json, printer, show_table

Row = tuple[str, str, str, str, str]

_PROFILE = "Also save the layers with their times, for `samovar predict --profile`."
_HEAD: Row = ("layer", "type", "forward ms", "backward ms", "share")


def time_net(
    model: Annotated[Path | None, flags.DATA("FILE", "Caffe net (prototxt).")] = None,
    solver: Annotated[Path | None, flags.DATA("FILE", "Or a solver: its training net.")] = None,
    phase: Annotated[str, flags.DATA("TRAIN|TEST", "Time the layers of this phase.")] = "TRAIN",
    iterations: Annotated[int, flags.DATA("N", "Number of passes.")] = 50,
    threads_per_worker: flags.Threads = None,
    precision: flags.Precision = FP32,
    device: flags.Device = CPU,
    timeout: flags.Timeout = DEFAULT_TIMEOUT_S,
    nodes: flags.Nodes = 1,
    node_rank: flags.NodeRank = None,
    master_addr: flags.MasterAddress = None,
    master_port: flags.MasterPort = None,
    key_file: flags.KeyFile = None,
    profile: Annotated[Path | None, OUTPUT("FILE", _PROFILE)] = None,
    as_json: Annotated[bool, OUTPUT("", "Print the milliseconds as JSON.", "--json")] = False,
) -> None:
    """Measure how long each layer of a net takes, forward and backward."""
    path = model or solver
    if path is None or (model and solver):
        raise InputError("give either --model with a net's prototxt, or --solver with a solver's")
    if profile is not None:
        require_place("--profile", profile, load_profile)
    config = RunConfig("time", path, is_solver=solver is not None, iterations=iterations, phase=phase)
    config = on_device(replace(config, precision=precision, timeout_s=timeout), device)
    keeps = phase == "TRAIN" and config.device == CPU
    times: list[Timed] = []
    display = AnswerDisplay(Timed, times.append, is_document=as_json)
    place = place_of(Hosts.of(nodes, node_rank, master_addr, master_port), key_file)
    own, other_programs = placed(config, 1, threads_per_worker), Others(own_s=family_seconds)
    run_anywhere(own, place, display, Console(sys.stderr, sys.stderr))
    times.sort(key=lambda timed: timed.rank)
    if times:  # on the first host, whose own come first: those of others are not this machine's
        _keep(times[0], other_programs.share(), Kept(state_folder() if keeps else None), profile)
    if as_json and times:
        print_json(times[0] if place is None else times)
    else:
        for timed in times:
            _print(timed)


def _keep(timed: Timed, busy: float, kept: Kept, path: Path | None) -> None:
    """Keep the times for runs of this net, and write them into the file."""
    profile = replace(profile_of(timed), busy=busy)
    kept.keep_profile(Subject(profile.net, profile.net_parameters, timed.threads, timed.precision), profile)
    if path is not None:
        save_profile(profile, path)


def rows(timed: Timed) -> list[Row]:
    """Each layer, and the whole."""
    total_ms = timed.forward_ms + timed.backward_ms
    whole = LayerTime(name="whole net", type="", forward_ms=timed.forward_ms, backward_ms=timed.backward_ms)
    return [_row(layer, total_ms) for layer in (*timed.layers, whole)]


def _row(layer: LayerTime, total_ms: float) -> Row:
    share = (layer.forward_ms + layer.backward_ms) / total_ms if total_ms else 0.0
    shown = "" if layer.type == READING else f"{share:.1%}"  # reading is no part of the passes
    return layer.name, layer.type, f"{layer.forward_ms:.3f}", f"{layer.backward_ms:.3f}", shown


def _print(timed: Timed) -> None:
    whose = f"{timed.host}: " if timed.host else ""
    head = (
        f"{whose}{timed.net_name}, {timed.phase}, batches of {timed.batch_size}, threads: {timed.threads}, "
        f"{timed.precision}, mean of {timed.iterations} passes; {timed.forward_ms + timed.backward_ms:.3f} ms a pass "
        "without reading"
    )
    show_table(printer(), head, _HEAD, rows(timed), (False, False, True, True, True), total=1)
