"""Published models: their folders, the Hugging Face Hub, and those that come with damc."""
