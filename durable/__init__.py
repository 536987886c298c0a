"""What several processes leave on disk for each other: files that survive, sets of offsets, and what became of records."""
