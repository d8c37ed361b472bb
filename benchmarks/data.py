"""--hold-data: the training set decoded in the memory of all ranks, against its files (in the kernel's cache).

Reading alone: each rank, on its own core, takes its batches in random order. Training: `samovar train` with the flag
and without, in turns, which must end with the same weights. Rates leave out the time of loading, which is printed.
"""

import os
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
from figures import Figure, compare, compare_both
from PIL import Image
from ranks import ZOO, Net, Ranks, own_cpus, take_turns
from trained import trained

from samovar.data.databases import Conversion, class_folders, write_image_files
from samovar.transports.shm import create_segment

NUM_JPEG, NUM_SMALL = 512, 4096
JPEG = Net("jpeg", "JPEG 256x256, crop 227", 16, 3, 227, 4, 16)
RAW = Net("raw", "raw 3x32x32", 100, 3, 32, 20, 16)
NUM_TRAINED_PAIRS = 8


def run(short: bool = False) -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="samovar-bench-") as name:
        folder = Path(name)
        jpeg = database(folder / "jpeg", 64 if short else NUM_JPEG, 256, "jpg")
        raw = database(folder / "raw", 256 if short else NUM_SMALL, 32, "raw")
        figures = []
        for net, source in ((JPEG, jpeg), (RAW, raw)):
            for world_size in (1, 2):
                figures.append(reading(net.shortened(short), source, world_size))
        png = database(folder / "png", 256 if short else NUM_SMALL, 32, "png")
        figures.append(training(png, folder, 4 if short else 80, 2 if short else NUM_TRAINED_PAIRS))
    return figures


def database(folder: Path, count: int, size: int, form: str) -> Path:
    """Smooth random pictures of two classes, which compress as photographs do."""
    generator = np.random.default_rng(size)
    for index in range(count):
        path = folder / "images" / str(index % 2) / f"{index:05d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        coarse = Image.fromarray(generator.integers(0, 256, (size // 8, size // 8, 3), np.uint8))
        pixels = np.asarray(coarse.resize((size, size), Image.Resampling.BICUBIC)).astype(np.int64)
        noisy = (pixels + generator.integers(-6, 7, pixels.shape)).clip(0, 255).astype(np.uint8)
        Image.fromarray(noisy).save(path)
    images, _ = class_folders(folder / "images")
    write_image_files(folder / "lmdb", images, Conversion(form=form))
    return folder / "lmdb"


def reading(net: Net, source: Path, world_size: int) -> Figure:
    """Samples that all ranks read in a second, held / from files."""
    cpus = own_cpus(world_size)
    segment = create_segment(world_size)
    shared = {"database": str(source), "batch": net.batch, "crop": net.size}
    jobs = [
        {**shared, "rank": rank, "world_size": world_size, "segment": segment, "cpu": cpu}
        for rank, cpu in enumerate(cpus)
    ]
    with Ranks("data_rank.py", jobs, [segment]) as ranks:
        os.close(segment)
        load_s = max(ranks.answers())
        of_all = replace(net, batch=net.batch * world_size)
        sides = {name: ranks.turn(name, of_all) for name in ("held", "files")}
        rates = take_turns(sides, net.num_blocks)
        fetched = sum(ranks.last_answers())
    print(f"{net.title}, {world_size} ranks: loaded in {load_s:.2f} s; {fetched / 1e6:,.0f} MB fetched from others")
    return compare_both(f"{net.title}: reading, {world_size} ranks, held / files", rates["held"], rates["files"], None)


def training(source: Path, folder: Path, num_steps: int, num_pairs: int) -> Figure:
    """CIFAR-10 quick on PNG records, one worker of one thread: samples per second, held / from files."""
    text = (ZOO / "cifar10_quick/train_val.prototxt").read_text()
    data = f"""layer {{ name: "train" type: "Data" top: "data" top: "label" transform_param {{ mean_value: 110 }}
      data_param {{ source: "{source}" backend: LMDB batch_size: {RAW.batch} }} }}\n"""
    (folder / "net.prototxt").write_text(data + text[text.index('layer {\n  name: "conv1"') :])
    solver = f'net: "net.prototxt" base_lr: 0.001 lr_policy: "fixed" max_iter: {num_steps} snapshot_prefix: "a"\n'
    (folder / "solver.prototxt").write_text(f"random_seed: 1 {solver}")
    rates: dict[str, list[float]] = {"held": [], "files": []}
    hashes = set()
    for pair in range(num_pairs):
        for side in sorted(rates, reverse=pair % 2 == 1):
            flags = ["--hold-data"] if side == "held" else []
            result = trained(folder, "--solver", "solver.prototxt", "--threads-per-worker", 1, "--shuffle", *flags)
            rates[side].append(result["samples_per_second"])
            hashes.add(result["weights_sha256"])
    if len(hashes) != 1:
        raise SystemExit(f"the weights differ: {hashes}")
    title = f"CIFAR-10 quick b{RAW.batch} on PNG, 1 worker x 1 thread, held / files"
    return compare(title, rates["held"], rates["files"], "samples/s", None)
