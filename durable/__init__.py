"""What processes leave on disk for each other: files that survive, sets of offsets, what became of records."""
