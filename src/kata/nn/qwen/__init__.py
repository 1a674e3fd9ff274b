"""Parts of Qwen's vision-language models: rotations of text and images, patches, decoder, tower."""
