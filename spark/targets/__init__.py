"""The kinds of table that the loader fills, behind one interface."""
