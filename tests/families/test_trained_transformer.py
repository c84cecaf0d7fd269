"""The transformer of 2017, trained here on two tasks with one right answer, still gives it after export.

With random weights, tests show that a graph computes what PyTorch computes. The trained model shows that this is a
transformer: positions, both attentions and padding must work to reverse a text. By default the presets show it, which
are trained, too (tests/test_presets.py).
"""

import json

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

from edgeformer import ops
from edgeformer.export import export_model
from edgeformer.families import read_model_config
from edgeformer.models import build_model, model_constants
from edgeformer.runtime import load

pytestmark = pytest.mark.slow

PAD, START, END, COPY, REVERSE, FIRST = 0, 1, 2, 3, 4, 5
SYMBOLS, SHORTEST, LONGEST = 8, 2, 8
STEPS, ROWS = 600, 64

CONFIG = {
    "model_type": "transformer", "vocab_size": FIRST + SYMBOLS, "d_model": 64, "num_heads": 4, "d_ff": 128,
    "num_encoder_layers": 2, "num_decoder_layers": 2, "max_position_embeddings": 16,
    "pad_token_id": PAD, "eos_token_id": END, "decoder_start_token_id": START,
}  # fmt: skip


def problem(generator: torch.Generator) -> tuple[list[int], list[int]]:
    """Return a batch of a task token and a text, with the text copied or reversed and the end token as target."""
    length = int(torch.randint(SHORTEST, LONGEST + 1, (), generator=generator))
    text = torch.randint(FIRST, FIRST + SYMBOLS, (length,), generator=generator).tolist()
    reverse = bool(torch.randint(2, (), generator=generator))
    return [REVERSE if reverse else COPY, *text], [*(text[::-1] if reverse else text), END]


def padded(rows: list[list[int]]) -> torch.Tensor:
    return nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=PAD)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return a folder with a transformer that has learned both tasks."""
    config = read_model_config(CONFIG)[1]
    torch.manual_seed(0)
    model = build_model(config)
    for name, value in model_constants(config).items():
        model.get_buffer(name).copy_(value)
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=64**-0.5) if "embedding" in name else nn.init.xavier_uniform_(parameter)
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 2e-3, total_steps=STEPS, pct_start=0.2)
    generator = torch.Generator().manual_seed(1)
    with pytest.MonkeyPatch.context() as patch:
        # The ops are for inference: train with their implementation, because a registered op has no gradient.
        for name in ("group_query_attention", "cross_attention", "token_positions"):
            patch.setattr(ops, name, getattr(ops, name)._init_fn)
        for _ in range(STEPS):
            sources, targets = zip(*(problem(generator) for _ in range(ROWS)), strict=True)
            source, target = padded(list(sources)), padded(list(targets))
            prompt = torch.cat((torch.full((ROWS, 1), START), target[:, :-1]), 1)
            mask = (source != PAD).long()
            _, read = model.encode(source, mask)
            empty = torch.zeros(ROWS, 4, 0, 16)
            logits, _ = model.decode(prompt, torch.ones_like(prompt), mask, [(empty, empty)] * 2, read)
            loss = F.cross_entropy(logits.transpose(1, 2), target, ignore_index=PAD)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
    folder = tmp_path_factory.mktemp("trained")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    save_file({name: parameter.detach() for name, parameter in model.named_parameters()}, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def held_out():
    generator = torch.Generator().manual_seed(2)
    problems = {tuple(source): target for source, target in (problem(generator) for _ in range(300))}
    return [list(source) for source in problems], list(problems.values())


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_every_text_comes_back_copied_or_reversed(trained, held_out, precision, tmp_path):
    bundle = export_model(trained, tmp_path / "bundle", precision=precision).path
    model, (sources, targets) = load(bundle), held_out
    written = [result.token_ids for result in model.generate(sources, max_new_tokens=LONGEST + 1)]
    assert written == targets
    beams = model.generate(sources[:50], max_new_tokens=LONGEST + 1, num_beams=4)
    assert [result.token_ids for result in beams] == targets[:50]
    alone = [model.generate(source, max_new_tokens=LONGEST + 1).token_ids for source in sources[:50]]
    assert alone == targets[:50]


def test_it_is_the_positions_that_tell_the_order(trained, held_out, tmp_path):
    """Without the encoder's positions the same weights fail, which shows that the test above can fail."""
    from safetensors.torch import load_file

    from edgeformer.export.reference.reference import Reference
    from edgeformer.models import model_spec as model_specs

    config = read_model_config(CONFIG)[1]
    weights = load_file(trained / "model.safetensors")
    reference = Reference(model_specs.model_spec_of(config), weights, torch.float32)
    sources, targets = held_out
    right = {True: 0, False: 0}
    for positions in right:
        if not positions:
            reference.module.encoder.position_embedding.table.zero_()
        with reference.loaded():
            for source, target in zip(sources[:40], targets[:40], strict=True):
                ids = torch.tensor([source])
                _, read = reference.module.encode(ids, torch.ones_like(ids))
                prompt = torch.tensor([[START, *target[:-1]]])
                caches = reference.empty_caches(1)
                logits, _ = reference.module.decode(prompt, torch.ones_like(prompt), torch.ones_like(ids), caches, read)
                right[positions] += logits[0].argmax(-1).tolist() == target
    assert right[True] == 40
    assert right[False] < 10
