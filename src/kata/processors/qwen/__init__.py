"""Steps of policies with Qwen's vision-language models: prompts, frames, places of tokens."""
