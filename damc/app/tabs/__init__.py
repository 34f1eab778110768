"""The four tabs of the page, one file each: components of gradio, and what their buttons call."""
