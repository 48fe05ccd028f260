"""The config of an experiment: from TOML to one checked object."""
