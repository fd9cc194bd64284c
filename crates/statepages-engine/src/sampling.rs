//! Choosing the next token: the engine's seam to the sampler.

use statepages_page::Tokens;

use crate::request::Sampling;

/// The token that follows `position` tokens. Pure: neither batch mix nor preemption changes it.
pub(crate) fn choose(
    logits: &[f32],
    sampling: &Sampling,
    _position: Tokens,
) -> Result<u32, String> {
    if let Some(id) = logits.iter().position(|logit| logit.is_nan()) {
        return Err(format!("logit {id} is not a number"));
    }
    assert!(sampling.temperature == 0.0, "only greedy so far");
    Ok(crate::recurrent::greedy(logits))
}
