"""The test job of one rank: a net's outputs over a number of batches."""

import contextlib

from samovar.cli import build
from samovar.cli.rank_process import RankContext
from samovar.frontends.caffe.definition import load_net
from samovar.report.records import Notice, Tested

DEFAULT_NUM_BATCHES = 50  # Caffe's


def run_evaluation(context: RankContext) -> None:
    """Mean outputs of the TEST net with the given weights, told by rank 0; raises SamovarError."""
    config = context.config
    definition = load_net(config.model)
    with contextlib.ExitStack() as stack:
        reader = build.open_reader(definition.data_layer("TEST"), config, 0)
        stack.callback(reader.close)
        net = build.net_for(definition, reader, 0)
        notices = (*definition.warnings, *build.load_weights(net, config))
        evaluation = build.build_evaluation(
            net, reader, config.iterations or DEFAULT_NUM_BATCHES, context.transport, config.timeout_s
        )
        outputs = evaluation.run()
    if context.transport.group.rank == 0:
        for text in notices:
            context.writer.write(Notice(level="warning", text=text))
        context.writer.write(Tested(step=0, outputs=outputs))
