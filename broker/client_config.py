"""CHECK_CLIENT_CONFIG 46 (BR/processor/ClientManageProcessor.checkClientConfig).

Clients ask before they subscribe with a filter that is no tag expression, which this broker has not.
"""

from __future__ import annotations

from ..remoting.bodies import CheckClientConfig
from ..remoting.codes import RequestCode, ResponseCode
from ..remoting.command import Command
from .pull import refuse_sql
from .state import BrokerState, Call

CODES = (RequestCode.CHECK_CLIENT_CONFIG,)


def handle(_state: BrokerState, call: Call) -> Command:
    refuse_sql(CheckClientConfig.decode(call.command.body).subscription_data.expression_type)
    return call.command.response(ResponseCode.SUCCESS)
