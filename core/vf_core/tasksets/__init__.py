"""Built-in tasksets, one module each."""
