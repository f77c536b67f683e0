"""Chat models: any OpenAI-compatible endpoint, or the extractive model when there is none."""
