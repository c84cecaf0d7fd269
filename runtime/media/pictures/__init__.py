"""Pictures: files and arrays become RGB (`picture_files`), are resized (`resample`), and become what a graph reads."""
