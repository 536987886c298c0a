"""CHECK_CLIENT_CONFIG 46 (BR/processor/ClientManageProcessor.checkClientConfig).

Clients ask before they subscribe with a filter that is no tag expression: it must be an SQL92 one that parses.
"""

from __future__ import annotations

from ...remoting.bodies import CheckClientConfig
from ...remoting.codes import RequestCode, ResponseCode
from ...remoting.command import Command
from ..state import BrokerState, Call
from .pull import wanted_by

CODES = (RequestCode.CHECK_CLIENT_CONFIG,)


def handle(_state: BrokerState, call: Call) -> Command:
    wanted_by(CheckClientConfig.decode(call.command.body).subscription_data)
    return call.command.response(ResponseCode.SUCCESS)
