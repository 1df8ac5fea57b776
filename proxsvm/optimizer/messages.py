"""The optimizer's errors and warnings."""

from __future__ import annotations

import os
import traceback
import warnings

import torch

_INNER = tuple(os.path.dirname(os.path.abspath(path)) + os.sep for path in (torch.__file__, os.path.dirname(__file__)))

_WAYS_OUT = (
    "give the optimizer the loss that you differentiate, ProxOptimizer(CrossEntropy(), ...), and call that criterion "
    "on the model's logits; or call backward() and pass the value, optimizer.step(loss=value); or, in Hugging Face's "
    "Trainer, which computes its own loss, pass "
    "compute_loss_func=lambda outputs, labels, **_: criterion(outputs.logits, labels)"
)
NO_VALUE = (
    "step() has no loss value: no value of this optimizer's own criterion (optimizer.loss) that depends on its "
    f"parameters was differentiated since zero_grad(). Three ways out: {_WAYS_OUT}. (A copy of the criterion, as "
    "sklearn.clone and skorch make one, is not watched: use optimizer.loss itself; in skorch, override get_loss.)"
)
AVERAGED = (
    "the averaged weights are in place (eval() was called, or a state was loaded that was saved so), and no step can "
    "start from them: call optimizer.train() before the forward pass, or model.train() if the model follows it. "
    "(To train a model whose modules are in evaluation mode, call optimizer.train() after model.eval().)"
)
NO_ORIGIN = (
    "this value does not come straight from a proxsvm loss, so its scores are unknown: return criterion(model(x), y) "
    "itself, with reduction 'mean' or 'sum', not scaled, added to or detached, with gradients enabled. (Loss weights "
    f"belong in lr or sample_weight.) If another loss is computed, there are three ways out: {_WAYS_OUT}"
)
MISSING = (
    "a term of the loss is missing from the record: it was differentiated, but the optimizer does not know its value, "
    "so γ is wrong. Call optimizer.backward(total) instead of total.backward(), or declare the term, "
    "term = optimizer.watch(term), or pass what was differentiated, optimizer.step(loss=total)"
)
ZERO = (
    "the recorded loss value is 0, but its gradient is not. If a term was added to the criterion's value, it is "
    "missing from the record, and no step moves the parameters any more: call optimizer.backward(total) instead of "
    "total.backward(), or optimizer.step(loss=total). (At a kink of the loss, where the value is 0, this is harmless.)"
)
SECOND_ORDER = (
    "a recorded loss value was differentiated with create_graph=True. If that gradient is itself differentiated (MAML, "
    "unrolled steps, gradient penalties), the record is wrong, and so is γ: call optimizer.backward(total) instead of "
    "total.backward(), or optimizer.step(loss=total)"
)
WEIGHTS = (
    "the samples of a loss with reduction='none' were given different weights. If these depend on the values (focal "
    "loss, log-sum-exp), the record is wrong, and so is γ: call optimizer.backward(total) instead of total.backward(), "
    "or optimizer.step(loss=total). Constant weights are right; as sample_weight= they cause no warning"
)
USED = (
    "another optimizer has taken a step for the same loss value: each would move its parameters as if it had to remove "
    "the whole loss alone, and both together would go too far. Put all parameters into one ProxOptimizer, as parameter "
    "groups with options of their own"
)
INSIDE = (
    "a value that is recorded already is inside the value of a module that is watched, and would count twice. Watch "
    "only one of the two modules, or leave out watch() and call optimizer.backward(total) instead of total.backward()"
)
SHARED = (
    "several optimizers watch this criterion, and sharded parameters (FSDP2) do not show which of them a value belongs "
    "to: give every optimizer a criterion of its own"
)
UNSCALED = (
    "scaler.unscale_(optimizer) has divided the gradients by the loss scale, but not the recorded value, and torch "
    "does not tell the optimizer that scale. To clip, leave unscale_() out and pass ProxOptimizer(..., "
    "max_grad_norm=...); or pass the value: scaler.step(optimizer, loss=loss)"
)
NEGATIVE = (
    "the loss value is negative; expected 0 or more: γ comes from a loss ℓ ≥ 0, and a step does not follow the "
    "gradient of a value below 0. Minimise a non-negative loss, or add a constant to it that keeps it so"
)
EDITED = (
    "a gradient was changed between backward() and step(), so that it no longer belongs to the recorded loss value "
    "and γ is wrong. If another term's backward() did it, declare the term: optimizer.watch(term). To clip, pass "
    "ProxOptimizer(..., max_grad_norm=...) and switch the trainer's own clipping off (max_grad_norm=0 in Hugging "
    "Face's TrainingArguments, gradient_clip_val=None in Lightning); to average, divide the loss instead of the "
    "gradients; or pass the value that belongs to them: optimizer.step(loss=value)"
)
SHARDED = (
    "the parameters are sharded (DTensor), and their gradients come from backward() only: use SingleStepFW with "
    "loss.backward() and a bare optimizer.step(). Several steps need whole parameters, as under DDP"
)


def warn(text: str) -> None:
    """Warn at the line of the user's code from which torch and this package were called."""
    files = [os.path.abspath(frame.filename) for frame in reversed(traceback.extract_stack())]
    level = next((k for k, file in enumerate(files) if not file.startswith(_INNER)), 0)
    warnings.warn(text, stacklevel=level + 1)
