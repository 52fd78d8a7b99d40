"""Sandboxes at Modal, through its SDK, which is imported when it is used."""
