//! Discrete choices of the forward: compressed entries and experts.
//!
//! Ties go to the lower index, so a choice is a function of the scores alone.

/// Sees every choice before it is used, and may replace it: tests hold the forward to another
/// implementation's choices with it, since two correct ones may differ where scores nearly tie.
/// The last layer chooses nothing for a token whose logits nobody wants.
pub trait Choices: Sync {
    /// The entries, ascending, that a query of a CSA layer attends to. Asked only where there are
    /// more visible entries, one score each, than `index_topk`.
    fn entries(&self, at: ChoiceAt, scores: &[f32], chosen: &mut Vec<u32>);

    /// The experts, ascending, of one token. `scores` are the routers' with the bias added; asked
    /// only in layers that do not look experts up by token.
    fn experts(&self, at: ChoiceAt, scores: &[f32], chosen: &mut [u32]);
}

/// Which choice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChoiceAt {
    /// Number of the layer.
    pub layer: usize,
    /// Index of the sequence in the batch.
    pub sequence: usize,
    /// Position of the token.
    pub position: u32,
}

/// The forward's own choices.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OwnChoices;

impl Choices for OwnChoices {
    fn entries(&self, _: ChoiceAt, _: &[f32], _: &mut Vec<u32>) {}

    fn experts(&self, _: ChoiceAt, _: &[f32], _: &mut [u32]) {}
}

/// Orders as its f32 does, with larger scores first and equal scores by index.
fn rank(score: f32, index: u32) -> u64 {
    // Adding zero makes -0 and 0 one number.
    let bits = (score + 0.0).to_bits();
    let ascending = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    (u64::from(!ascending) << 32) | u64::from(index)
}

/// Appends the indices of the `k` largest scores, ascending. `ranks` is scratch.
pub(crate) fn top_k(scores: &[f32], k: usize, ranks: &mut Vec<u64>, chosen: &mut Vec<u32>) {
    if scores.len() <= k {
        chosen.extend(0..scores.len() as u32);
        return;
    }
    ranks.clear();
    ranks.extend(scores.iter().zip(0u32..).map(|(&score, i)| rank(score, i)));
    let (_, &mut last, _) = ranks.select_nth_unstable(k - 1);
    let within = |&(score, i): &(&f32, u32)| rank(*score, i) <= last;
    chosen.extend(scores.iter().zip(0u32..).filter(within).map(|(_, i)| i));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ties_go_to_the_lower_index() {
        let check = |scores: &[f32], k: usize, expected: &[u32]| {
            let mut chosen = Vec::new();
            top_k(scores, k, &mut Vec::new(), &mut chosen);
            assert_eq!(chosen, expected, "top {k} of {scores:?}");
        };
        check(&[1.0, 3.0, 2.0, 3.0], 2, &[1, 3]);
        check(&[0.0, -0.0, 0.0, 1.0], 2, &[0, 3]);
        check(&[-0.0, 0.0, -1.0], 1, &[0]);
        check(&[-3.0, -1.0, -2.0], 2, &[1, 2]);
        check(&[5.0, 5.0, 5.0, 5.0], 3, &[0, 1, 2]);
        check(&[1.0, 2.0], 2, &[0, 1]);
        check(&[], 2, &[]);
        let many: Vec<f32> = (0..500).map(|i| ((i * 37) % 11) as f32).collect();
        let mut sorted: Vec<u32> = (0..500).collect();
        sorted.sort_by(|&a, &b| many[b as usize].total_cmp(&many[a as usize]).then(a.cmp(&b)));
        for k in [1, 7, 64, 499] {
            let mut expected = sorted[..k].to_vec();
            expected.sort_unstable();
            check(&many, k, &expected);
        }
    }
}
