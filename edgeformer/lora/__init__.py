"""LoRA adapters as PEFT stores them: read strictly, and merged into the tensors of a checkpoint."""
