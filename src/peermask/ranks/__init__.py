"""Agents divided between processes: how ranks meet, what passes between them, and what happens when one is lost."""
