"""A real fleet: one agent per process or device, which talks to its neighbours over the network."""
