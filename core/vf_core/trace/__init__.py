"""The trace record: messages, graph, calls, timing, rewards, and its reader and writer."""
