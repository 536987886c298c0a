"""Reading trace messages, which rocketcrew only writes."""

from __future__ import annotations

from rocketcrew.remoting.traces import FIELD_SEPARATOR, RECORD_SEPARATOR


def split_records(text: str) -> list[list[str]]:
    """The fields of every record in a trace message's body, its kind first."""
    return [record.split(FIELD_SEPARATOR) for record in text.split(RECORD_SEPARATOR) if record]
