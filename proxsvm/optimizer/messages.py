"""The optimizer's errors and warnings."""

from __future__ import annotations

_WAYS_OUT = (
    "give the optimizer the loss that you differentiate, ProxOptimizer(CrossEntropy(), ...), and call that criterion "
    "on the model's logits; or call backward() and pass the value, optimizer.step(loss=value); or, in Hugging Face's "
    "Trainer, which computes its own loss, pass "
    "compute_loss_func=lambda outputs, labels, **_: criterion(outputs.logits, labels)"
)
NO_VALUE = (
    "step() has no loss value: no value of this optimizer's own criterion (optimizer.loss) that depends on its "
    f"parameters was differentiated since zero_grad(). Three ways out: {_WAYS_OUT}. (A copy of the criterion, as "
    "sklearn.clone and skorch make one, is not watched: use optimizer.loss itself.)"
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
    "a term of the loss is missing from the record: it was added to the criterion's value, and differentiated, but the "
    "optimizer does not know its value, so γ is wrong. Declare it, term = optimizer.watch(term), or pass the sum that "
    "was differentiated, optimizer.step(loss=total)"
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
