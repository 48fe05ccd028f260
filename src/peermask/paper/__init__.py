"""Every table and figure of the paper, from presets to Markdown, LaTeX, CSV and pictures."""
