"""The front door: one click command a file in `commands/`, imported when it is asked for."""
