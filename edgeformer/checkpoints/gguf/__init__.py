"""GGUF: a file with tensors, config and tokenizer, as llama.cpp has it, becomes one more source of a model."""
