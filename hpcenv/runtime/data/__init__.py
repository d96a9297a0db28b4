"""Data that the settings can name."""
