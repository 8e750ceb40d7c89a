"""Which block row is the first candidate: read wrongly, a draft runs and has next to nothing accepted."""

from __future__ import annotations

from ovgraft.drafts.formats.base import Format, Found
from ovgraft.drafts.reading.config import Config, boolean, integer
from ovgraft.drafts.spec import Family

_FIELD = "candidate_position_offset"


def read_offset(config: Config, form: Format, found: Found, family: Family) -> int:
    """0 when row j predicts the token after its position, 1 when it predicts the token at it.

    The file's own keys win: ``candidate_position_offset``, ``shift_label`` (row j predicts token j + 1) and
    speculators' ``sample_from_anchor``; all that are present must agree. Else it is the format's convention.

    Raises:
        CheckpointError: Two keys disagree, or neither keys nor format tell.
    """
    said: dict[str, int] = {}
    if config.find(_FIELD) is not None:
        said[config.key_of(_FIELD)] = config.read(_FIELD, integer(0, 1))
    for name in ("sample_from_anchor", "shift_label"):
        if config.find(name) is not None:
            said[config.key_of(name)] = 0 if config.read(_FIELD, boolean, name) else 1
    convention = form.candidate_position_offset(found, family)
    if said:
        keys = list(said)
        for key in keys[1:]:
            if said[key] != said[keys[0]]:
                config.refuse(key, f"{keys[0]} and {key} contradict each other", expected=f"offset {said[keys[0]]}")
        return said[keys[0]]
    if convention is None:
        config.missing(
            _FIELD,
            hint="its tensors are those of DFlash and of DSpark, whose block rows mean different tokens; add "
            f'"{_FIELD}": 0 to config.json if the anchor row is the first candidate (DSpark), 1 if it predicts nothing '
            "(DFlash)",
        )
    config.record(_FIELD, "", "", f"convention of {form.title} ({family})")
    return convention
