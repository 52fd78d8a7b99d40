"""Sandboxes that are containers of a Docker Engine, or of anything that speaks its API."""
