"""One file for each group of routes: chat, completions, responses, texts, rerank, transcriptions, status."""
