"""Chunks of actions that Wall-X writes as words behind its prompt, instead of denoising them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from kata.nn.attention import score_bias, seen_then_causal
from kata.nn.decoding import written_tokens
from kata.policies.base import Loss, Term, evaluating
from kata.policies.qwen.spliced import SplicedPolicy
from kata.policies.wall_x.config import WORDS_TERM, Config
from kata.processors.counted_warning import CountedWarning
from kata.processors.qwen.action_words import ActionWords, read_words
from kata.spec import ACTION_TOKEN_MASK, ACTION_TOKENS, Batch


class SpeakingPolicy(SplicedPolicy):
    """A policy of prompt and words in one sequence. Words see the prompt and those before them."""

    options: Config
    unfinished: CountedWarning

    def normed(self, x: Tensor) -> Tensor:
        """Return the last layer's tokens after the last norm, in the dtype of the linear maps."""
        return self.text.norm(x.to(self.text.norm.weight.dtype)).to(self.text.dtype)

    def scores(self, x: Tensor, target: Tensor | None = None) -> Tensor:
        """Return the scores of the words behind normed tokens; see `VocabularyHead`."""
        head = self.text.embed_tokens if self.is_tied else self.lm_head
        return head(x, target)

    def words_loss(self, batch: Batch) -> Loss:
        """Return the sum of the cross-entropies of a batch's words."""
        tokens, mask = batch[ACTION_TOKENS], batch[ACTION_TOKEN_MASK]
        # The last token predicts nothing.
        given = self.text.embed_tokens(tokens[:, :-1])
        seen = torch.ones_like(mask[:, :-1])
        x = self.one_pass(self.embedded(batch), given, seen, actions=0)
        each = self.scores(self.normed(x), tokens[:, 1:]) * mask[:, 1:]
        return Loss({WORDS_TERM: Term(each.sum())}, {WORDS_TERM: each.detach().sum(1)})

    def spoken_chunk(self, batch: Batch) -> Tensor:
        """Return the chunk of actions (B, T, A) of the likeliest words."""
        words = self.action_words()
        with evaluating(self):
            written = torch.cat(list(self.written_words(batch, words)), dim=1)
        steps, dims = self.options.chunk_size, self.options.action.shape[0]
        chunks: list[np.ndarray] = []
        for row in written.tolist():
            codes = words.codes(row)
            self.unfinished.note(not words.fast.holds(codes, steps * dims))
            chunks.append(words.fast.decode(codes, steps, dims))
        return torch.from_numpy(np.stack(chunks)).float().to(written.device)

    def action_words(self) -> ActionWords:
        """Return both tokenizers; PolicyError if one cannot be had."""
        return read_words(self.options.action_tokenizer, self.options.pretrained_name_or_path)

    def written_words(self, batch: Batch, words: ActionWords) -> Iterator[Tensor]:
        """Return tokens (B, 1) one after the other, until all chunks have their end."""
        prompt = self.encode(batch)
        grown, valid = prompt.layers, prompt.valid
        places = self._following(prompt, self.options.max_decoding_steps)

        def following(token: Tensor) -> Tensor:
            nonlocal grown, valid
            x = self.text.embed_tokens(token)
            at = valid.shape[1] - prompt.valid.shape[1]
            rotation = self.text.rotation(places[:, :, at : at + 1])
            bias = score_bias(seen_then_causal(valid, 1), x.dtype)
            layers = list(grown)
            for i, layer in enumerate(self.text.layers):
                x, layers[i] = layer(x, rotation, bias, grown[i])
            grown = layers
            valid = torch.cat((valid, torch.ones_like(valid[:, :1])), dim=1)
            return self.scores(self.normed(x))[:, -1].float()

        begin = torch.full((len(valid), 1), words.begin, device=valid.device)
        return written_tokens(
            following(begin),
            following,
            lambda scores, _: scores.argmax(dim=-1, keepdim=True),
            end=words.end[0],
            most=self.options.max_decoding_steps,
            goes_on=self.runs_together,
        )
