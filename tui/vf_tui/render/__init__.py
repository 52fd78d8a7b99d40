"""Pure drawing: from plain data, a width and a time to lines of (text, style name). No Textual here."""
