"""Results for people: tables, one self-contained page, the same page live, and loggers."""
