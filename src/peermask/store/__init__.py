"""Run folders: tables, checkpoints and manifests, written atomically and read without trust."""
