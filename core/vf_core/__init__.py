"""The headless engine of vf-tui: it runs rollouts and knows nothing of the screen."""

__version__ = "0.1.0"
