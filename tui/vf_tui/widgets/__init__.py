"""Widgets: each draws plain data that it is shown, holds view state only, and tells what the user did."""
