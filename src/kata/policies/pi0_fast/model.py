"""π0-FAST: PaliGemma continues a prompt with the tokens of a chunk of actions."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from kata.errors import PolicyError
from kata.nn.attention import (
    KeysValues,
    positions_of,
    prefix_then_causal,
    score_bias,
    seen_then_causal,
)
from kata.nn.cross_entropy import VocabularyHead
from kata.nn.decoding import written_tokens
from kata.nn.rope import Rotation
from kata.policies import paligemma
from kata.policies.base import KeyMap, Loss, Term, evaluating
from kata.policies.paligemma import EMBEDDINGS, VLM, PaliGemmaPolicy, Prefix
from kata.policies.pi0_fast.config import TERM, Config
from kata.processors.action_tokens import ActionSentences, ActionTokens, read_sentences
from kata.processors.counted_warning import CountedWarning
from kata.processors.pipeline import Pipeline
from kata.processors.tokenize import Tokenize
from kata.spec import (
    ACTION_TOKEN_MASK,
    ACTION_TOKENS,
    LANGUAGE_MASK,
    LANGUAGE_TOKENS,
    Batch,
)

HEAD = f"{VLM}lm_head.weight"


class Policy(PaliGemmaPolicy):
    """π0-FAST with its loss and acting."""

    def __init__(self, config: Config) -> None:
        _refuse_resolution(config)
        super().__init__(config)
        self.options: Config = config
        sizes = paligemma.SIZES.gemma[config.paligemma_variant]
        self.lm_head = VocabularyHead(sizes.width, self.vocabulary)
        self.shared_heads = sizes.heads if sizes.kv_heads == 1 else 1
        self.finish()
        self.lm_head.to(self.text.dtype)
        self.names = (config.action_tokenizer_name, config.text_tokenizer_name)
        self.unreadable = CountedWarning(
            "%d of %d chunks do not begin with `Action:`; zeros are executed"
        )

    def forward(self, batch: Batch, **draws: Tensor) -> Loss:
        """Compute the sum of the cross-entropies of action tokens.

        Args:
            batch: observations, and action tokens (B, L) with their mask.
            draws: ignored.
        """
        del draws
        tokens, mask = batch[ACTION_TOKENS], batch[ACTION_TOKEN_MASK]
        # The last token predicts nothing.
        hidden = self._told(batch, tokens[:, :-1])
        each = self.lm_head(hidden, tokens[:, 1:]) * mask[:, 1:]
        return Loss({TERM: Term(each.sum())}, {TERM: each.detach().sum(1)})

    def _told(self, batch: Batch, tokens: Tensor) -> Tensor:
        """Return what tokens (B, L) that are known predict from, as `_written` does.

        They pass through the layers beside the prefix, which starts half of the kernels.
        """
        # 1. Tokens. Each lookup has a gradient as large as the whole table, so there is one.
        told, dtype = batch[LANGUAGE_TOKENS], self.text.dtype
        both = self.embedded(torch.cat((told, tokens), dim=1))
        words, written = both.split([told.shape[1], tokens.shape[1]], dim=1)
        context, valid = self._context(batch, words)
        x = torch.cat((context.to(dtype), written.to(dtype)), dim=1)
        # 2. Positions, and what is seen: the prefix sees none of these tokens.
        steps = torch.arange(tokens.shape[1], device=tokens.device)[None]
        places = (positions_of(valid), valid.sum(1, keepdim=True) + steps)
        rotation = self.rotation(torch.cat(places, dim=1))
        seen = prefix_then_causal(valid, tokens.shape[1])
        bias = score_bias(seen, dtype, heads=self.shared_heads)
        # 3. The layers. Of the prefix in the last one, only keys and values are read.
        *layers, last = self.text.layers
        end = context.shape[1]
        for layer in layers:
            x, _ = layer(x, rotation, bias)
        before = Rotation(rotation.cos[:, :, :end], rotation.sin[:, :, :end])
        after = Rotation(rotation.cos[:, :, end:], rotation.sin[:, :, end:])
        _, past = last(x[:, :end], before, bias, is_last=True)
        bias = score_bias(seen[:, :, end:], dtype, heads=self.shared_heads)
        x, _ = last(x[:, end:], after, bias, past)
        return self.text.norm(x)

    def _written(self, prefix: Prefix, tokens: Tensor) -> tuple[Tensor, Prefix]:
        """Return what tokens (B, L) after a prefix predict from, and the prefix they are part of.

        Each token sees the prefix and, of these tokens, those before it.
        """
        x = self.embedded(tokens).to(self.text.dtype)
        steps = torch.arange(tokens.shape[1], device=tokens.device)[None]
        rotation = self.rotation(prefix.valid.sum(1, keepdim=True) + steps)
        seen = seen_then_causal(prefix.valid, tokens.shape[1])
        bias = score_bias(seen, x.dtype, heads=self.shared_heads)
        layers: list[KeysValues] = []
        for layer, past in zip(self.text.layers, prefix.layers, strict=True):
            x, given = layer(x, rotation, bias, past)
            layers.append(given)
        valid = torch.cat((prefix.valid, torch.ones_like(tokens, dtype=torch.bool)), dim=1)
        return self.text.norm(x), Prefix(x, layers, valid)

    @torch.no_grad()
    def predict_chunk(
        self, batch: Batch, *, share: Tensor | None = None, **draws: Tensor
    ) -> Tensor:
        """Return a chunk of actions (B, T, A).

        Args:
            batch: observations and tokens.
            share: uniform numbers (B, max_decoding_steps) that tokens are drawn with, if there is
                a temperature; None draws from torch's stream.
            draws: ignored.
        """
        del draws
        config, sentences = self.options, self.sentences()
        if share is None and config.temperature > 0:
            count = (len(batch[LANGUAGE_TOKENS]), config.max_decoding_steps)
            share = torch.rand(count, device=batch[LANGUAGE_TOKENS].device)
        with evaluating(self):
            written = torch.cat(list(self._tokens(batch, sentences, share)), dim=1)
        chunks: list[np.ndarray] = []
        steps, dims = config.chunk_size, config.action.shape[0]
        for row in written.tolist():
            is_wrong = config.validate_action_token_prefix and not sentences.begins_well(row)
            self.unreadable.note(is_wrong)
            chunks.append(
                np.zeros((steps, dims)) if is_wrong else sentences.chunk(row, steps, dims)
            )
        return torch.from_numpy(np.stack(chunks)).float().to(written.device)

    def _tokens(
        self, batch: Batch, sentences: ActionSentences, share: Tensor | None
    ) -> Iterator[Tensor]:
        """Return tokens (B, 1) one after the other, until all sentences have their `|`."""
        # As in LeRobot, the token that begins a sentence belongs to the prompt here, which sees it.
        told, mask = batch[LANGUAGE_TOKENS], batch[LANGUAGE_MASK]
        begin = torch.full_like(told[:, :1], sentences.begin)
        prompt = torch.cat((told, begin), dim=1)
        seen = torch.cat((mask, torch.ones_like(mask[:, :1])), dim=1)
        prefix = self.encode_prefix(
            {**batch, LANGUAGE_TOKENS: prompt, LANGUAGE_MASK: seen}, needs_tokens=True
        )
        grown, written = prefix, told[:, :0]

        def following(token: Tensor) -> Tensor:
            nonlocal grown, written
            if self.options.use_kv_cache:
                hidden, grown = self._written(grown, token)
            else:
                written = torch.cat((written, token), dim=1)
                hidden, _ = self._written(prefix, written)
            return self._scores(hidden)

        def choose(scores: Tensor, step: int) -> Tensor:
            drawn = None if share is None else share[:, step, None]
            return _chosen(scores, self.options.temperature, drawn)

        return written_tokens(
            self._scores(self.text.norm(prefix.tokens[:, -1:])),
            following,
            choose,
            end=sentences.bar,
            most=self.options.max_decoding_steps,
            goes_on=self.runs_together,
        )

    def _scores(self, hidden: Tensor) -> Tensor:
        """Return the scores of the token behind tokens (B, L, width), float32 (B, V)."""
        return self.lm_head(hidden)[:, -1].float()

    def use_pipeline(self, before: Pipeline) -> None:
        """Read the tokenizers that lie beside the pipeline, where it has some."""
        actions, text = self.names
        for step in before.steps:
            if isinstance(step, ActionTokens):
                actions = step.action_tokenizer_name
            elif isinstance(step, Tokenize):
                text = step.tokenizer_name
        self.names = (actions, text)

    def sentences(self) -> ActionSentences:
        """Return both tokenizers; PolicyError if one cannot be had."""
        return read_sentences(*self.names, self.options.fast_skip_tokens)

    def frozen_modules(self) -> list[torch.nn.Module]:
        """Return the image encoder, if the options keep it as it is."""
        return [self.vision] if self.options.freeze_vision_encoder else []

    def shard_units(self) -> list[torch.nn.Module]:
        """Return the layers, the output map, and what `PaliGemmaPolicy.shard_units` has."""
        return [*super().shard_units(), self.lm_head]

    def key_map(self) -> KeyMap:
        """Return the adapter to LeRobot's names.

        The table of tokens and the output map are two tensors. Files that tie them have one.
        """
        prefixes = (*self.paligemma_prefixes(), ("lm_head.", f"{VLM}lm_head."))
        return KeyMap(
            prefixes,
            stand_ins={EMBEDDINGS: HEAD, HEAD: EMBEDDINGS},
            old_names=(("paligemma_with_expert.", "model.paligemma_with_expert."),),
        )


def _refuse_resolution(config: Config) -> None:
    trained, wanted = paligemma.SIZES.vision.image, config.image_resolution[0]
    if wanted != trained:
        raise PolicyError(
            f"policy.image_resolution=[{wanted},{wanted}]",
            rule=f"LeRobot's image encoder of π0-FAST has positions for {trained} pixels alone",
            remedy=f"--policy.image_resolution=[{trained},{trained}]",
        )


def _chosen(scores: Tensor, temperature: float, share: Tensor | None) -> Tensor:
    """Return the likeliest tokens (B, 1), or those that uniform numbers (B, 1) draw."""
    if share is None:
        return scores.argmax(dim=-1, keepdim=True)
    below = (scores / temperature).softmax(dim=-1).cumsum(dim=-1)
    # The last sum may be less than 1 by rounding.
    return torch.searchsorted(below, share * below[:, -1:], right=True).clamp(
        max=scores.shape[-1] - 1
    )
