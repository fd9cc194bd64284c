//! What a round of requests came to, and the sums that tables and JSON show.

use std::fmt::Write as _;
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use statepages_mini::Third;
use statepages_store::{AdmitReport, LossReason};

use crate::demo::workload::Kind;

/// Digest over every generated token of a request: its logits, bit by bit, and its id.
pub(crate) type OutputDigest = [u8; 32];

/// Feeds tokens and logits into an [`OutputDigest`].
#[derive(Clone, Default)]
pub(crate) struct OutputHasher(Sha256);

impl OutputHasher {
    pub(crate) fn token(&mut self, token: u32, logits: &[f32]) {
        for logit in logits {
            self.0.update(logit.to_bits().to_le_bytes());
        }
        self.0.update(token.to_le_bytes());
    }

    pub(crate) fn finish(self) -> OutputDigest {
        self.0.finalize().into()
    }
}

/// A digest as text.
pub(crate) fn hex(digest: &[u8]) -> String {
    digest.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a string takes any text");
        text
    })
}

/// How a question was answered.
#[derive(Clone, Copy)]
pub(crate) struct Answered {
    pub(crate) third: Third,
    pub(crate) right: bool,
}

/// One request, served.
#[derive(Clone)]
pub(crate) struct Served {
    pub(crate) kind: Kind,
    pub(crate) prompt: Vec<u32>,
    pub(crate) output: Vec<u32>,
    pub(crate) digest: OutputDigest,
    /// What the texts alone say may be resumed, in tokens; unknown for a recorded prompt.
    pub(crate) resumable: Option<usize>,
    /// Where the prompt ended in a question whose answer is known.
    pub(crate) answered: Option<Answered>,
    pub(crate) report: AdmitReport,
    /// Tokens of the prompt that were computed.
    pub(crate) computed: usize,
    pub(crate) queue: Duration,
    pub(crate) ttft: Duration,
    pub(crate) total: Duration,
    /// Equal to what it is compared with; `None` where nothing is.
    pub(crate) identical: Option<bool>,
}

impl Served {
    pub(crate) fn realised(&self) -> usize {
        self.report.hit.resumable.tokens().index()
    }
}

/// A round.
pub(crate) struct Round {
    pub(crate) name: String,
    pub(crate) concurrency: usize,
    pub(crate) served: Vec<Served>,
}

impl Round {
    pub(crate) fn sum(&self, of: impl Fn(&Served) -> usize) -> usize {
        self.served.iter().map(of).sum()
    }

    pub(crate) fn lost(&self, reason: LossReason) -> usize {
        self.sum(|served| served.report.losses.get(reason).index())
    }

    /// The median of a duration, in milliseconds.
    pub(crate) fn p50_ms(&self, of: impl Fn(&Served) -> Duration) -> f64 {
        let mut all: Vec<_> = self.served.iter().map(of).collect();
        all.sort_unstable();
        let middle = all.len() / 2;
        match all.len() {
            0 => 0.0,
            n if n % 2 == 0 => (all[middle - 1] + all[middle]).as_secs_f64() * 500.0,
            _ => all[middle].as_secs_f64() * 1e3,
        }
    }

    /// Requests that were compared, and those of them that were equal.
    pub(crate) fn compared(&self) -> (usize, usize) {
        let verdicts = || self.served.iter().filter_map(|served| served.identical);
        (verdicts().count(), verdicts().filter(|&equal| equal).count())
    }

    /// Right answers and questions, of one third or of all.
    pub(crate) fn answers(&self, third: Option<Third>) -> (usize, usize) {
        let answered = self.served.iter().filter_map(|served| served.answered);
        let answered = answered.filter(|one| third.is_none_or(|third| one.third == third));
        let right: Vec<bool> = answered.map(|one| one.right).collect();
        (right.iter().filter(|&&right| right).count(), right.len())
    }

    pub(crate) fn prompts_sha256(&self) -> String {
        digest_of(self.served.iter().map(|served| served.prompt.as_slice()))
    }

    pub(crate) fn outputs_sha256(&self) -> String {
        digest_of(self.served.iter().map(|served| served.output.as_slice()))
    }
}

/// Digest over lists of ids: each its length and its ids, little-endian u32.
fn digest_of<'a>(lists: impl Iterator<Item = &'a [u32]>) -> String {
    let mut hasher = Sha256::new();
    for list in lists {
        hasher.update((list.len() as u32).to_le_bytes());
        for id in list {
            hasher.update(id.to_le_bytes());
        }
    }
    hex(&hasher.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_sees_every_bit_of_logits_and_ids() {
        let of = |token: u32, logits: &[f32]| {
            let mut hasher = OutputHasher::default();
            hasher.token(token, logits);
            hasher.finish()
        };
        let base = of(1, &[0.5, -1.0]);
        assert_eq!(base, of(1, &[0.5, -1.0]));
        assert_ne!(base, of(2, &[0.5, -1.0]));
        assert_ne!(base, of(1, &[0.5, f32::from_bits((-1.0f32).to_bits() ^ 1)]));
        assert_ne!(of(1, &[0.0]), of(1, &[-0.0]));
        assert_ne!(
            digest_of([&[1u32, 2][..], &[3]].into_iter()),
            digest_of([&[1u32][..], &[2, 3]].into_iter())
        );
    }
}
