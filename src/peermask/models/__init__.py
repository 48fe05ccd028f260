"""Networks: built-in ones, how they are laid out and computed, and their frozen weights."""
