"""The model of `model.kind: transformers`: a Llama of that library, made from a config; nothing is downloaded."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from post_training.model import Cache
from post_training.settings import ModelSettings, TaskSettings


def llama_config(settings: ModelSettings, task: TaskSettings) -> LlamaConfig:
    """The config that engines are given, too: there is no tokenizer, tokens are numbers."""
    return LlamaConfig(
        vocab_size=task.num_symbols + 2,
        hidden_size=settings.width,
        intermediate_size=4 * settings.width,
        num_hidden_layers=settings.num_layers,
        num_attention_heads=settings.num_heads,
        num_key_value_heads=settings.num_heads,
        max_position_embeddings=2 * task.max_length + 2,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=task.num_symbols,
        initializer_range=settings.width**-0.5,
        architectures=["LlamaForCausalLM"],
        dtype="float32",
    )


class Llama(LlamaForCausalLM):
    """A Llama that is called as `Transformer` is; it tells places by itself, and its keys are those of engines.

    Args:
        settings: its size.
        task: its vocabulary, and the longest prompt.
    """

    def __init__(self, settings: ModelSettings, task: TaskSettings) -> None:
        super().__init__(llama_config(settings, task))
        nn.init.normal_(self.model.embed_tokens.weight)
        nn.init.normal_(self.lm_head.weight, std=0.01)  # at first everything is equally likely

    @property
    def blocks(self) -> nn.ModuleList:
        """Its layers."""
        return self.model.layers

    def forward(self, tokens: Tensor, places: Tensor, parts: Tensor) -> Tensor:
        """Logits, as of `Transformer.forward`; what is right of a token has no part in them."""
        del places, parts
        return super().forward(input_ids=tokens, use_cache=False).logits.clone()

    def advance(self, tokens: Tensor, places: Tensor, parts: Tensor, index: Tensor, cache: Cache) -> Tensor:
        """Logits after one more token in each of the first rows of a cache, as of `Transformer.advance`."""
        del places, parts
        outputs = super().forward(
            input_ids=tokens[:, None],
            position_ids=index[:, None],
            attention_mask=(cache.places <= index[:, None])[:, None, None, :],
            past_key_values=_Rows(cache, index),
            use_cache=True,
        )
        return outputs.logits[:, 0]


class _Rows:
    """The first rows of a cache, each with one more token, as a layer of transformers asks for it."""

    def __init__(self, cache: Cache, index: Tensor) -> None:
        self._values = cache.values[:, :, : len(index)]
        self._row = torch.arange(len(index), device=index.device)
        self._index = index

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: object) -> tuple[Tensor, Tensor]:
        """Add a token's keys and values, (rows, heads, 1, size), to a layer's; return all of them."""
        cached = self._values[layer]
        cached[0][self._row, :, self._index] = keys[:, :, 0]
        cached[1][self._row, :, self._index] = values[:, :, 0]
        return cached[0], cached[1]
