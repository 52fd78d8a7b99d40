"""The scripted model: a real HTTP server that speaks chat completions by a scenario file.

It drives the demo and the tests. Its model ids begin with `scripted`, and it says in every answer that it is one:
it never stands in for a real model.
"""
