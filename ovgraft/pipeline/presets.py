"""Ready-made pipelines, as text."""

from __future__ import annotations

from dataclasses import dataclass

from ovgraft.errors import SpecError
from ovgraft.pipeline.registry import did_you_mean


@dataclass(frozen=True, slots=True)
class Preset:
    """A pipeline text with a name.

    Attributes:
        name: What ``--preset`` takes.
        text: The pipeline.
        summary: Who needs it, one sentence.
    """

    name: str
    text: str
    summary: str


_PRESETS: tuple[Preset, ...] = (
    Preset(
        "genai",
        "annotate-hidden-states",
        "All that OpenVINO GenAI 2026.4.1 needs of a target: it exposes the states and moves the FC itself.",
    ),
    Preset(
        "dflash",
        "annotate-hidden-states,expose-hidden-states,move-fc,attach-embedding,attach-lm-head",
        "The whole graft of a DFlash draft, for a host of one's own.",
    ),
    Preset(
        "dflash-paged",
        "annotate-hidden-states,expose-hidden-states,move-fc,attach-embedding,attach-lm-head,"
        "per-row-draft,paged-attention,paged-attention{model=draft}",
        "The whole graft of a DFlash draft with both models paged, for a host that batches requests.",
    ),
    Preset(
        "dspark",
        "build-draft,annotate-hidden-states,expose-hidden-states,move-fc,attach-embedding,attach-lm-head,"
        "pack-markov-head",
        "From the checkpoint of a DSpark, DFlash or DFlash-2 draft to a finished pair, for a host of one's own.",
    ),
    Preset(
        "dspark-paged",
        "build-draft{form=per-row},annotate-hidden-states,expose-hidden-states,move-fc,attach-embedding,"
        "attach-lm-head,pack-markov-head,paged-attention,paged-attention{model=draft}",
        "The same with both models paged, for a host that batches requests.",
    ),
    Preset(
        "eagle3",
        # no attach-*: an exported Eagle-3 draft has input_ids and logits of its own
        "annotate-hidden-states,expose-hidden-states,move-fc,expose-draft-hidden",
        "The whole graft of an Eagle-3 draft, for a host of one's own.",
    ),
)


def list_presets() -> tuple[Preset, ...]:
    """All presets."""
    return _PRESETS


def preset(name: str) -> Preset:
    """The preset of that name.

    Raises:
        SpecError: There is none; the hint lists all.
    """
    for candidate in _PRESETS:
        if candidate.name == name:
            return candidate
    names = [candidate.name for candidate in _PRESETS]
    raise SpecError(f"unknown preset '{name}'", hint=did_you_mean(name, names, f"presets: {', '.join(names)}"))
