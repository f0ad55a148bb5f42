"""From effects to what people read: terminal, Markdown, HTML and JSON, all made from one Summary."""
