"""One click command a file, named as the command."""
