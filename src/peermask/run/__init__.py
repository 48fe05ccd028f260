"""Runs: the parts of an experiment, the order of a round, the loop over rounds, the exchanges between agents."""
