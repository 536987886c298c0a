"""The edge to children: forkservers, workers, their links and their deaths. Nothing of `member/`, nothing of the process
above."""
