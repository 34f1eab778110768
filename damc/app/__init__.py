"""The web page of `damc app`: what it computes, as plain functions, and a thin layer of gradio."""
