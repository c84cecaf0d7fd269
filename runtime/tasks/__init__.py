"""The tasks of bundles: causal language models, encoder-decoders, encoders, speech; `loading.load` opens any."""
