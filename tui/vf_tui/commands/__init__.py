"""One module for each group of commands; each is imported when one of them is called."""
