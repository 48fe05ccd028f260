"""Gradients and outputs of stacked networks: the fast paths, and the devices they run on."""
