"""SmolLM2 in bfloat16 on a GPU: how often sdpa and the Triton kernel take eager's token, and by what margin not.

Eager in float32 says what a difference may be: where its own margin between two tokens is at most twice what bfloat16
moves eager's logits by, rounding alone is enough to explain another token. It does not show that nothing else is wrong.
"""

import copy

import torch
from tqdm.auto import tqdm

from fdmath.interop import compare

NAMES = (compare.REFERENCE, compare.PEER, compare.OURS)
CUTS = ({}, {"tile": 64}, {"num_splits": 5})


def on_gpu(model, texts, long, contexts, count, device="cuda", backend="triton"):
    """Rows of a model in bfloat16 on the device, beside the same one in float32; fdmath's attention by the backend.

    texts: token ids (1, n) of prompts, each decoded greedily for `count` tokens, once for each of CUTS. long: token ids
    (1, N), of which `count` are given after each of the contexts and after all but the last `count`.
    """
    exact = model.to(device)
    rounded = copy.deepcopy(exact).to(torch.bfloat16)
    long = long.to(device)
    judge = _Judge(exact, rounded)
    rows = []
    for context in tqdm((*contexts, long.shape[1] - count), unit="context", disable=None):
        compare.use(backend=backend)
        following = long[:, context:context + count]
        found = compare.compare(rounded, long[:, :context], count, names=NAMES, forced=following)
        rows += judge.rows(found, long[:, :context + count], "forced", {})
    for text in tqdm(texts, unit="prompt", disable=None):
        for cut in CUTS:
            compare.use(backend=backend, **cut)
            found = compare.compare(rounded, text.to(device), count, names=NAMES)
            taken = torch.tensor([found.streams[compare.REFERENCE].tokens], device=device)
            rows += judge.rows(found, torch.cat([text.to(device), taken], 1), "greedy", cut)
    return rows


class _Judge:
    """The model in float32 and in bfloat16, which say what a difference of two tokens is worth."""

    def __init__(self, exact, rounded):
        self.exact, self.rounded = exact, rounded

    def rows(self, found, ids, how, cut):
        """The rows of a Comparison, of which ids (1, N) are prompt and following tokens, as far as they are compared.

        as_float32: the steps in which a stream takes the token that float32 takes after the same context. rounding: the
        largest |difference of a logit| that bfloat16 makes in eager at the step; where float32's margin is at most
        twice that, bfloat16 could have taken either token: `explained` counts these.
        """
        right = self._logits(self.exact, ids)
        apart = (self._logits(self.rounded, ids) - right).abs().amax(-1)
        rows = []
        for name, stream in found.streams.items():
            compared = stream.compared if name != compare.REFERENCE else len(stream.tokens)
            steps = range(found.context - 1, found.context - 1 + compared)
            float32 = right[steps.start:steps.stop].argmax(-1).tolist()
            differences = [self._difference(one, right[one.context - 1], apart[one.context - 1])
                           for one in stream.differences]
            rows.append({
                "how": how, **cut, "context": found.context, "implementation": name, "compared": compared,
                "as_eager": compared - len(differences), "explained": sum(one["explained"] for one in differences),
                "as_float32": sum(a == b for a, b in zip(stream.tokens, float32, strict=False)),
                "largest_difference": stream.largest, "rounding": apart[steps.start:steps.stop].max().item(),
                "differences": differences,
            })
        return rows

    def _difference(self, one, right, apart):
        """A Difference as a dict: eager's margin in bfloat16, float32's, what rounding is, whether that explains it."""
        margin = float(right[one.reference] - right[one.other])
        return {"step": one.step, "margin": one.margin, "margin_float32": margin, "rounding": float(apart),
                "explained": abs(margin) <= 2 * float(apart)}

    @staticmethod
    def _logits(model, ids):
        """Logits (N, V) in float32 of one pass of eager over the ids."""
        model.set_attn_implementation(compare.REFERENCE)
        with torch.no_grad():
            return model(ids).logits[0].float()
