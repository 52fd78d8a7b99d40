"""Tool servers: the program that serves a toolset, and how it is put in its place and started there."""
