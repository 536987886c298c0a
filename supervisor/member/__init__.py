"""The edge to brokers: what makes this process a member of the group. Nothing of `pool/`, nothing of the process above."""
