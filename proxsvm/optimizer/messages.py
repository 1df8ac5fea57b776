"""The optimizer's errors and warnings."""

from __future__ import annotations

import os
import traceback
import warnings

import torch

_INNER = tuple(os.path.dirname(os.path.abspath(path)) + os.sep for path in (torch.__file__, os.path.dirname(__file__)))

_WAYS_OUT = (
    "give the optimizer the loss that you differentiate, ProxOptimizer(CrossEntropy(), ...), and call it on logits; or "
    "call backward() and pass the value, optimizer.step(loss=value); or, in Hugging Face's Trainer, pass "
    "compute_loss_func=lambda outputs, labels, **_: criterion(outputs.logits, labels)"
)
_TOTAL = "call optimizer.backward(total) instead of total.backward(), or optimizer.step(loss=total)"
THE_LINE = "write ProxOptimizer({}, SingleStepFW(), model.parameters())"
NO_VALUE = (
    "step() has no loss value: no value of this optimizer's own criterion (optimizer.loss) that depends on its "
    f"parameters was differentiated since zero_grad(). Three ways out: {_WAYS_OUT}. (A copy of the criterion, as "
    "sklearn.clone and skorch make one, is not watched: in skorch, override get_loss.)"
)
NO_ORIGIN = (
    "this value does not come straight from a proxsvm loss: return criterion(model(x), y) itself, with reduction "
    "'mean' or 'sum', with gradients enabled, and not scaled (use lr or sample_weight), added to or detached. If "
    f"another loss is computed, there are three ways out: {_WAYS_OUT}"
)
AVERAGED = (
    "the averaged weights are in place (eval() was called, or a state was loaded that was saved so): call "
    "model.train() before the forward pass; or, to train in evaluation mode, optimizer.train() after model.eval()"
)
MISSING = (
    "a term of the loss is missing from the record: it was differentiated, but the optimizer does not know its value, "
    f"so γ is wrong. Declare the term, term = optimizer.watch(term), or {_TOTAL}"
)
ZERO = (
    "the recorded loss value is 0, but its gradient is not: harmless at a kink of the loss. If a term was added to the "
    f"criterion's value, it is missing from the record, and no step moves the parameters any more: {_TOTAL}"
)
SECOND_ORDER = (
    "a recorded loss value was differentiated with create_graph=True. If that gradient is itself differentiated (MAML, "
    f"gradient penalties), the record is wrong, and so is γ: {_TOTAL}"
)
LESS = (
    "the closure returned less than what was differentiated: if it made several backward passes and returned the value "
    "of one of them, γ is too small; return the sum"
)
WEIGHTS = (
    "the samples of a loss with reduction='none' were given different weights. If they are constant, pass them as "
    f"sample_weight=; if they depend on the values (focal loss, log-sum-exp), the record and γ are wrong: {_TOTAL}"
)
USED = (
    "another optimizer has taken a step for the same loss value, and both together would go too far: put all "
    "parameters into one ProxOptimizer, as parameter groups with options of their own"
)
NO_TENSOR = (
    "{} is watched, and returned a {}; expected a tensor: watch a module that returns its term's value alone, or call "
    "optimizer.backward(total)"
)
SHARED = (
    "several optimizers watch this criterion, and sharded parameters (FSDP2) do not show which of them a value belongs "
    "to: give every optimizer a criterion of its own"
)
UNSCALED = (
    "scaler.unscale_(optimizer) has divided the gradients by the loss scale, but not the recorded value: to clip, pass "
    "ProxOptimizer(..., max_grad_norm=...) instead; or pass the value, scaler.step(optimizer, loss=loss)"
)
NEGATIVE = (
    "the loss value is negative; expected 0 or more, because γ comes from a loss ℓ ≥ 0: add a constant that keeps it so"
)
EDITED = (
    "a gradient was changed between backward() and step(), so that it no longer belongs to the recorded loss value and "
    "γ is wrong. To clip, pass ProxOptimizer(..., max_grad_norm=...) and switch the trainer's own clipping off "
    "(max_grad_norm=0 in Hugging Face's TrainingArguments, gradient_clip_val=None in Lightning); to average, divide "
    "the loss; to write zeros, call optimizer.zero_grad(); or pass the value that belongs to the gradients: "
    "optimizer.step(loss=value)"
)
META = (
    "the optimizer's parameters are on the meta device, without a gradient: module.to_empty() has replaced them. "
    "Create the optimizer after that, from the model's new parameters"
)
SCHEDULED = (
    "lr is 'auto', so that group['lr'] is a factor of the automatic η, at first 1; but a scheduler has set it to its "
    "own rate, as OneCycleLR, CyclicLR and SWALR do: use one that multiplies (CosineAnnealingLR, ...), or pass lr=η"
)
FREED = (
    "{} needs the graph, which backward() has freed: leave out backward() and call "
    "optimizer.step(lambda: criterion(model(x), y))"
)
ALONE = (
    "{} does not support several ranks (its on_ranks is False): use SingleStepFW or MultiStepFW, or process_group=None "
    "if each rank trains on its own"
)
WHOLE = "{} needs whole parameters, but they are sharded (DTensor): ProxOptimizer(..., metric=Diagonal())"
SHARDED = (
    "the parameters are sharded (DTensor): use SingleStepFW with loss.backward() and a bare optimizer.step(). Several "
    "steps need whole parameters, as under DDP"
)


def warn(text: str) -> None:
    """Warn at the line of the user's code from which torch and this package were called."""
    files = [os.path.abspath(frame.filename) for frame in reversed(traceback.extract_stack())]
    level = next((k for k, file in enumerate(files) if not file.startswith(_INNER)), 0)
    warnings.warn(text, stacklevel=level + 1)
