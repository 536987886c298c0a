"""Bytes, frames, commands and messages of RocketMQ's remoting protocol.

Pure: no I/O, no clock, nothing of other rooms.
"""
