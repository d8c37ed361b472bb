"""What a run tells: records on the way to the launcher, the terminal, the log and the run folder."""

from samovar.report.console import Console
from samovar.report.log import Log
from samovar.report.metrics import MetricsWriter, read_metrics
from samovar.report.pipe import RecordReader, RecordWriter
from samovar.report.records import (
    Failed,
    Finished,
    Notice,
    Progress,
    Record,
    SnapshotWritten,
    Started,
    Tested,
    from_json,
    to_json,
)
from samovar.report.result import RunResult, read_result, write_result
from samovar.report.run_folder import RunFolder, create_run_folder, write_json_atomic

__all__ = [
    "Console",
    "Failed",
    "Finished",
    "Log",
    "MetricsWriter",
    "Notice",
    "Progress",
    "Record",
    "RecordReader",
    "RecordWriter",
    "RunFolder",
    "RunResult",
    "SnapshotWritten",
    "Started",
    "Tested",
    "create_run_folder",
    "from_json",
    "read_metrics",
    "read_result",
    "to_json",
    "write_json_atomic",
    "write_result",
]
