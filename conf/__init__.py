"""Settings: `defaults.toml` is the reference; read once, checked whole, frozen, passed down. Logging set-up too."""
