"""Prime's sandboxes, through the `prime-sandboxes` SDK (extra `prime`)."""
