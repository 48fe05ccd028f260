"""peermask: agents on a graph learn personal sparse models by gossiping binary masks."""
