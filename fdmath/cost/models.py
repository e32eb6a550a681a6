"""Language models as data: the sizes of their parts, from which parameters and cache are counted."""

from dataclasses import dataclass

from fdmath.cost.decode import FLOAT16, kv_cache_bytes


@dataclass(frozen=True)
class Model:
    """A model of the Llama family: RMS norms, a gated feed-forward part of three matrices, no biases.

    tied: whether the embedding of the input serves as that of the output. source says where the sizes stand.
    """

    name: str
    layers: int
    hidden: int
    q_heads: int
    kv_heads: int
    dim: int
    feed_forward: int
    vocabulary: int
    tied: bool
    source: str

    @property
    def parameters(self):
        """The numbers of all weights: embeddings, and in each layer q, k, v and o, the feed-forward part, two norms."""
        attention = 2 * self.hidden * self.dim * (self.q_heads + self.kv_heads)
        layer = attention + 3 * self.hidden * self.feed_forward + 2 * self.hidden
        embeddings = self.vocabulary * self.hidden * (1 if self.tied else 2)
        return embeddings + self.layers * layer + self.hidden

    def weight_bytes(self, number=FLOAT16):
        """The bytes of all weights, each read once a step, whatever the batch."""
        return self.parameters * number

    def cache_bytes(self, keys, batch=1, number=FLOAT16):
        """The bytes of K and V of all layers that a step reads: each sequence its own `keys` tokens."""
        return self.layers * kv_cache_bytes(keys, self.dim, self.kv_heads, batch, number)


_CONFIG = "config.json of {}"
CODELLAMA_34B = Model("CodeLlama-34B", 48, 8192, 64, 8, 128, 22016, 32000, False,
                      _CONFIG.format("codellama/CodeLlama-34b-hf"))
LLAMA_3_8B = Model("Llama-3-8B", 32, 4096, 32, 8, 128, 14336, 128256, False,
                   _CONFIG.format("meta-llama/Meta-Llama-3-8B"))
SMOLLM2_135M = Model("SmolLM2-135M", 30, 576, 9, 3, 64, 1536, 49152, True,
                     _CONFIG.format("HuggingFaceTB/SmolLM2-135M"))

MODELS = {model.name: model for model in (CODELLAMA_34B, LLAMA_3_8B, SMOLLM2_135M)}
