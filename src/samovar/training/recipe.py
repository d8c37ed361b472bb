"""The changes that a recipe makes in a solver, and the sentence that tells them."""

from dataclasses import replace

from samovar.config import RunConfig
from samovar.frontends.caffe.solver import CaffeSolver, changes, with_large_batch
from samovar.solver.policy import PLAIN_TYPES
from samovar.strategies.defaults import recipe_changes


def by_recipe(config: RunConfig, caffe: CaffeSolver, batch_size: int) -> tuple[CaffeSolver, tuple[str, ...]]:
    """The solver for `config.workers` workers that share or enlarge the net's batch of `batch_size`, and all changes.

    They are those of --large-batch, or of the strategy's recipe, with the settings of the strategy; none without one.
    """
    if config.large_batch is not None:
        return with_large_batch(caffe, batch_size, config.large_batch)
    recipe = config.used_recipe
    if recipe is None or config.workers == 1:
        return caffe, ()
    is_adaptive = caffe.type not in PLAIN_TYPES
    factor = recipe.rate_factor(config.strategy, config.workers, is_adaptive=is_adaptive)
    changed = replace(caffe, base_lr=caffe.base_lr * factor)
    batch = f"a worker's batch {batch_size:,} -> {batch_size / config.workers:,.4g}"
    settings = map(str, recipe_changes(config.strategy, config.workers, is_adaptive=is_adaptive))
    return changed, (batch, *settings, *changes(caffe, changed))


def larger_steps(config: RunConfig, caffe: CaffeSolver, batch_size: int, changed: tuple[str, ...]) -> str:
    """The changes of --large-batch as a sentence; "" without it."""
    if config.large_batch is None:
        return ""
    samples = f"{config.large_batch.batch_size:,} samples a step instead of {batch_size * caffe.iter_size:,}"
    return f"{samples}, the same epochs: {', '.join(changed)}"


def recipe_sentence(config: RunConfig, caffe: CaffeSolver, batch_size: int, changed: tuple[str, ...]) -> str:
    """The changes of the recipe as a sentence. Where batches add up unasked, it is the step and its rate; else ""."""
    own, workers = batch_size * caffe.iter_size, config.workers
    if config.used_recipe is not None and changed:
        return (
            f"recipe of {config.strategy.name}, for one worker's accuracy from the same samples: {', '.join(changed)}"
        )
    if workers == 1 or not config.leaves_batch or config.by_caffe or config.strategy.traits.recipe is None:
        return ""
    return (
        f"{workers} workers x batch {own:,} make a step of {workers * own:,} samples at rate {caffe.base_lr:g}, as "
        f"in Caffe; --recipe auto shares a batch of {own:,}, and keeps one worker's accuracy"
    )
