"""`loop.py` on a Ray cluster. If a worker is lost, Ray starts all of them again, and they continue from the last save.

    python examples/engines/ray_loop.py --saved /shared/saved.safetensors

The folder of --saved must be one that all nodes share.
"""

import argparse
from pathlib import Path

from loop import train
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--saved", type=Path, default=Path("saved.safetensors"))
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    TorchTrainer(
        lambda: train(arguments.saved.absolute(), arguments.epochs),
        scaling_config=ScalingConfig(num_workers=arguments.workers),
        run_config=RunConfig(failure_config=FailureConfig(max_failures=3)),
    ).fit()
