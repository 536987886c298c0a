"""What `rocketcrew chaos` is made of: the ground, the faults, the handler and the verdict."""
