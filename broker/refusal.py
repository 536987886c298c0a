"""Refused: how a handler says no from anywhere below itself; the core turns it into the answer."""

from __future__ import annotations

FAQ = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."


class Refused(Exception):
    """The request ends with this code and remark, and these fields."""

    def __init__(self, code: int, remark: str, fields: dict[str, str] | None = None) -> None:
        super().__init__(code, remark)
        self.code = code
        self.remark = remark
        self.fields = fields or {}
