"""A saved optimizer and its schedule, fitted to the run that goes on with them.

A state_dict brings along how the old run computed (`capturable`, `fused`), which depends on its device,
and its learning rate, which the user may have changed since.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

_OF_THE_RUN = ("capturable", "fused", "foreach", "differentiable")
ADAM_STATE = ("step", "exp_avg", "exp_avg_sq")
_RATES = ("lr", "initial_lr", "max_lr", "min_lr")


def fit(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return `state` with this optimizer's own way of computing, and its tensors where its own are tensors.

    A captured graph needs tensors on the GPU where another strategy has numbers: the step count follows from
    `capturable`, the learning rate is made what this optimizer holds.

    Raises:
        KeyError: a parameter's state lacks what Adam needs at its next step, which torch would notice only there.
    """
    if isinstance(optimizer, torch.optim.Adam | torch.optim.AdamW):
        for name in ADAM_STATE:
            for values in state["state"].values():
                values[name]
    groups = state.get("param_groups", [])
    if len(groups) != len(optimizer.param_groups):
        return dict(state)  # the optimizer itself says what is wrong
    fitted = [_fit_group(dict(saved), own) for saved, own in zip(groups, optimizer.param_groups, strict=True)]
    return {**state, "param_groups": fitted}


def change_rate(state: Mapping[str, Any], factor: float) -> dict[str, Any]:
    """Return an optimizer's or a scheduler's state with every learning rate times `factor`."""
    changed = dict(state)
    if "param_groups" in changed:
        changed["param_groups"] = [_change_group(group, factor) for group in changed["param_groups"]]
    for rates in ("base_lrs", "_last_lr"):
        if rates in changed:
            changed[rates] = [rate * factor for rate in changed[rates]]
    if "_schedulers" in changed:
        changed["_schedulers"] = [change_rate(scheduler, factor) for scheduler in changed["_schedulers"]]
    return changed


def _change_group(group: Mapping[str, Any], factor: float) -> dict[str, Any]:
    return {name: value * factor if name in _RATES else value for name, value in group.items()}


def _fit_group(saved: dict[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    for name in _OF_THE_RUN:
        if name in own:
            saved[name] = own[name]
    for name in _RATES:
        if name in saved and name in own:
            saved[name] = _like(saved[name], own[name])
    return saved


def _like(value: Any, own: Any) -> Any:
    if isinstance(own, torch.Tensor):
        return torch.as_tensor(value, dtype=own.dtype, device=own.device)
    return float(value) if isinstance(value, torch.Tensor) else value
