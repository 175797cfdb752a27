"""A tiny decoder-only transformer: one pass over whole sequences, or one token at a time with a cache."""

from __future__ import annotations

from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from post_training.settings import ModelSettings, TaskSettings

# What the actor publishes its weights as; rollout and inference fetch them.
WEIGHTS = "sorter"
# The keys of adapters.
ADAPTERS = "*.lora_?"


class Cache:
    """Keys and values of sequences that are being written, a row each.

    Args:
        settings: of the model.
        num_rows: sequences at a time.
        max_length: tokens of a sequence.
        device: where it lies.
    """

    def __init__(self, settings: ModelSettings, num_rows: int, max_length: int, device: torch.device) -> None:
        size = settings.width // settings.num_heads
        shape = (settings.num_layers, 2, num_rows, settings.num_heads, max_length, size)
        self.values = torch.zeros(shape, device=device)
        self.places = torch.arange(max_length, device=device)

    def move(self, source: int, target: int) -> None:
        """Overwrite a row by another."""
        self.values[:, :, target] = self.values[:, :, source]


class _Linear(nn.Linear):
    """A linear layer with an adapter of low rank (Hu et al., 2021, arXiv:2106.09685), which does nothing at first."""

    def __init__(self, num_in: int, num_out: int, lora_rank: int, *, bias: bool = True) -> None:
        super().__init__(num_in, num_out, bias=bias)
        self.lora_A = nn.Parameter(torch.randn(lora_rank, num_in) / num_in**0.5) if lora_rank else None
        self.lora_B = nn.Parameter(torch.zeros(num_out, lora_rank)) if lora_rank else None

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y if self.lora_A is None or self.lora_B is None else y + x @ self.lora_A.T @ self.lora_B.T


class _Block(nn.Module):
    def __init__(self, width: int, num_heads: int, lora_rank: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.before_attention = nn.LayerNorm(width)
        self.queries_keys_values = _Linear(width, 3 * width, lora_rank, bias=False)
        self.out = _Linear(width, width, lora_rank, bias=False)
        self.before_mlp = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            _Linear(width, 4 * width, lora_rank), nn.GELU(), _Linear(4 * width, width, lora_rank)
        )

    def forward(self, x: Tensor, cached: Tensor | None, index: Tensor | None, seen: Tensor | None) -> Tensor:
        rows, length, width = x.shape
        projected = self.queries_keys_values(self.before_attention(x))
        parts = projected.view(rows, length, 3, self.num_heads, width // self.num_heads)
        queries, keys, values = parts.permute(2, 0, 3, 1, 4)
        if cached is None:
            mixed = scaled_dot_product_attention(queries, keys, values, is_causal=True)
        else:
            row = torch.arange(rows, device=x.device)
            cached[0][row, :, index] = keys[:, :, 0]
            cached[1][row, :, index] = values[:, :, 0]
            mixed = scaled_dot_product_attention(queries, cached[0], cached[1], attn_mask=seen)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, width))
        return x + self.mlp(self.before_mlp(x))


class Transformer(nn.Module):
    """Gives the logits of the next token. A place is told by its distance from the start of its prompt or answer.

    Args:
        settings: its size.
        task: its vocabulary, and the longest prompt.
    """

    def __init__(self, settings: ModelSettings, task: TaskSettings) -> None:
        super().__init__()
        width, rank = settings.width, settings.lora_rank
        self.tokens = nn.Embedding(task.num_symbols + 2, width)
        self.places = nn.Embedding(task.max_length + 2, width)
        self.parts = nn.Embedding(2, width)
        self.blocks = nn.ModuleList(
            _Block(width, settings.num_heads, rank) for _ in range(settings.num_layers)
        )
        self.last = nn.LayerNorm(width)
        self.head = _Linear(width, task.num_symbols + 1, rank)  # whatever may be written: no start
        for embedding in (self.tokens, self.places, self.parts):
            nn.init.normal_(embedding.weight, std=0.5)
        nn.init.normal_(self.head.weight, std=0.01)  # at first everything is equally likely
        if rank:
            for name, parameter in self.named_parameters():
                parameter.requires_grad_(fnmatchcase(name, ADAPTERS))

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self.head.weight.device

    def forward(self, tokens: Tensor, places: Tensor, parts: Tensor) -> Tensor:
        """Logits, (rows, length, symbols and end), of sequences: all arguments are (rows, length), int64.

        Args:
            tokens: what stands there.
            places: counted from the start of the prompt, or of the answer.
            parts: 0 in a prompt, 1 in an answer, the start before it included.
        """
        x = self.tokens(tokens) + self.places(places) + self.parts(parts)
        for block in self.blocks:
            x = block(x, None, None, None)
        return self.head(self.last(x)).clone()  # FSDP2 wants no view

    def advance(self, tokens: Tensor, places: Tensor, parts: Tensor, index: Tensor, cache: Cache) -> Tensor:
        """Logits, (rows, symbols and end), after one more token in each of the first rows of a cache.

        Args:
            tokens: the tokens, (rows,), like the rest.
            places: as of `forward`.
            parts: likewise.
            index: their place in the cache: how many tokens came before.
            cache: is extended.
        """
        x = (self.tokens(tokens) + self.places(places) + self.parts(parts))[:, None]
        seen = (cache.places <= index[:, None])[:, None, None, :]
        for block, cached in zip(self.blocks, cache.values[:, :, : len(tokens)], strict=True):
            x = block(x, cached, index, seen)
        return self.head(self.last(x))[:, 0]


def make_model(settings: ModelSettings, task: TaskSettings) -> Transformer:
    """The model that the settings ask for; one of another kind has what is used of a `Transformer`."""
    if settings.kind == "own":
        return Transformer(settings, task)
    from post_training.llama import Llama  # noqa: PLC0415 - transformers is not needed otherwise

    return Llama(settings, task)
