"""What several ranks tell of one thing is shown once."""

from samovar.launcher.job import Told
from samovar.report.records import Notice, SnapshotWritten


def test_of_each_topic_the_first_notice_is_news() -> None:
    told = Told()
    notices = [
        Notice(level="warning", text=str(rank), topic=topic) for rank, topic in enumerate(("a", "b", "a", "", ""))
    ]
    assert [told.is_news(notice) for notice in notices] == [True, True, False, True, True]
    assert told.is_news(SnapshotWritten(step=1, path="a"))
