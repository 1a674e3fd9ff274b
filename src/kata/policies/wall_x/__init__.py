"""Wall-X: experts by kind of token and flow matching in a vision-language model (2509.11766)."""
