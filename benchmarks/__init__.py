"""Programs that print figures and assert nothing."""
