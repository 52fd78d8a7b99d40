"""What the shipped agent programs are made of.

A program runs in a sandbox, where nothing of this package is: `assemble.program_source` joins an entry file
(`bash/program.py`, `null/program.py`) and the modules here that it imports into one self-contained script.
These modules import only the standard library at module level, and httpx, tenacity and mcp where they are used.
"""
