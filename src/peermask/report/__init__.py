"""Results for people: tables, and later pictures."""
