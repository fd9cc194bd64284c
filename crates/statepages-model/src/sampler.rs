//! Choice of the next token: a pure function of logits, parameters, request seed and position.
//!
//! Candidates are ordered by logit, largest first, and equal logits by id. `top_k` keeps the first
//! `k`; `top_p` then keeps the shortest prefix that holds at least that share of their weight
//! `e^((logit - largest) / temperature)`. One number of the request's seed and the position picks
//! among the rest, so neither batches, preemption nor resumption move a draw.

use std::fmt;
use std::num::NonZeroU32;

use crate::choice::top_k;
use crate::kernel::lanes::{Isa, Machine};
use crate::kernel::math::exp_all;
use crate::seeded::{draw, mix};

/// Parameters as a user gives them.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SamplingOptions {
    /// Divisor of the logits; zero asks for the largest logit.
    pub temperature: f32,
    /// Most candidates; `None` for all.
    pub top_k: Option<NonZeroU32>,
    /// Share of the candidates' weight that is kept: above 0, at most 1.
    pub top_p: f32,
}

/// How the next token is chosen.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Sampling(Rule);

#[derive(Clone, Copy, PartialEq, Debug)]
enum Rule {
    Greedy,
    Random { temperature: f32, top_k: Option<NonZeroU32>, top_p: f32 },
}

/// Parameters that mean nothing.
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub enum SamplingError {
    /// The temperature is negative or not finite.
    Temperature(f32),
    /// The share is not above 0 and at most 1.
    TopP(f32),
}

impl fmt::Display for SamplingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Temperature(got) => write!(f, "temperature: expected zero or more, got {got}"),
            Self::TopP(got) => write!(f, "top_p: expected above 0 and at most 1, got {got}"),
        }
    }
}

impl std::error::Error for SamplingError {}

/// Logits that no token can be chosen from.
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub enum SampleError {
    /// A logit is NaN or positive infinity.
    Logit {
        /// The first such token.
        token: u32,
        /// Its logit.
        got: f32,
    },
    /// There is no logit above negative infinity.
    NoCandidate,
}

impl fmt::Display for SampleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Logit { token, got } => write!(f, "the logit of token {token} is {got}"),
            Self::NoCandidate => f.write_str("every token is ruled out"),
        }
    }
}

impl std::error::Error for SampleError {}

/// Which number a draw takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DrawAt {
    /// The request's seed.
    pub seed: u64,
    /// Position of the token that is chosen.
    pub position: u32,
}

impl DrawAt {
    /// A number of `[0, 1)`, the same for the same seed and position.
    fn unit(self) -> f64 {
        const BITS: u32 = 53;
        let bits = draw(mix(self.seed), u64::from(self.position)) >> (u64::BITS - BITS);
        bits as f64 / (1u64 << BITS) as f64
    }
}

impl Sampling {
    /// The token of the largest logit.
    pub const GREEDY: Self = Self(Rule::Greedy);

    /// Checks the parameters.
    pub fn new(options: SamplingOptions) -> Result<Self, SamplingError> {
        let SamplingOptions { temperature, top_k, top_p } = options;
        if !(temperature.is_finite() && temperature >= 0.0) {
            return Err(SamplingError::Temperature(temperature));
        }
        if !(top_p > 0.0 && top_p <= 1.0) {
            return Err(SamplingError::TopP(top_p));
        }
        if temperature == 0.0 {
            return Ok(Self::GREEDY);
        }
        Ok(Self(Rule::Random { temperature, top_k, top_p }))
    }

    /// The next token. `logits` has one element a token.
    pub fn sample(&self, logits: &[f32], at: DrawAt) -> Result<u32, SampleError> {
        let best = largest(logits)?;
        let (temperature, k, p) = match self.0 {
            Rule::Greedy => return Ok(best),
            Rule::Random { temperature, top_k, top_p } => (temperature, top_k, top_p),
        };
        let mut candidates = Vec::new();
        let all = logits.len();
        let most = k.map_or(all, |k| all.min(k.get() as usize));
        top_k(logits, most, &mut Vec::new(), &mut candidates);
        // A draw over everything needs no order but the ids'.
        if p < 1.0 {
            candidates.sort_by(|&a, &b| {
                let (x, y) = (logits[a as usize], logits[b as usize]);
                y.partial_cmp(&x).expect("no logit is NaN").then(a.cmp(&b))
            });
        }
        let largest = logits[best as usize];
        let mut weights: Vec<f32> = candidates
            .iter()
            .map(|&token| (logits[token as usize] - largest) / temperature)
            .collect();
        // Every instruction set gives the same bits, so whichever there is may be taken.
        let machine = Machine::new(Isa::Auto).expect("every machine has plain operations");
        exp_all(machine, &mut weights);
        Ok(candidates[pick(&weights, f64::from(p), at.unit())])
    }
}

/// The token of the largest logit, the lowest of equals.
fn largest(logits: &[f32]) -> Result<u32, SampleError> {
    let mut best: Option<u32> = None;
    for (token, &logit) in (0u32..).zip(logits) {
        if logit.is_nan() || logit == f32::INFINITY {
            return Err(SampleError::Logit { token, got: logit });
        }
        let beaten = best.map_or(f32::NEG_INFINITY, |best| logits[best as usize]);
        if logit > beaten {
            best = Some(token);
        }
    }
    best.ok_or(SampleError::NoCandidate)
}

/// Index of the candidate at share `unit` of the kept prefix.
fn pick(weights: &[f32], p: f64, unit: f64) -> usize {
    let total: f64 = weights.iter().map(|&w| f64::from(w)).sum();
    let (mut kept, mut sum) = (0, 0.0);
    for &weight in weights {
        kept += 1;
        sum += f64::from(weight);
        if sum >= p * total {
            break;
        }
    }
    let target = unit * sum;
    let mut reached = 0.0;
    let mut last = 0;
    for (i, &weight) in weights[..kept].iter().enumerate() {
        reached += f64::from(weight);
        if weight > 0.0 {
            last = i;
            if reached > target {
                break;
            }
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f32; 6] = [0.5, 2.0, -1.0, 2.0, f32::NEG_INFINITY, 1.0];

    fn sampling(temperature: f32, top_k: u32, top_p: f32) -> Sampling {
        let top_k = NonZeroU32::new(top_k);
        Sampling::new(SamplingOptions { temperature, top_k, top_p }).expect("sound parameters")
    }

    /// Draws `n` tokens and compares their frequencies with `shares` by chi-square.
    #[track_caller]
    fn check(sampling: Sampling, shares: &[f64]) {
        let n = 20_000;
        let mut counts = vec![0u32; shares.len()];
        for position in 0..n {
            let at = DrawAt { seed: 11, position };
            counts[sampling.sample(&LOGITS, at).expect("a token") as usize] += 1;
        }
        let mut square = 0.0;
        for (&count, share) in counts.iter().zip(shares) {
            let expected = share * f64::from(n);
            if expected == 0.0 {
                assert_eq!(count, 0, "{counts:?} for {shares:?}");
            } else {
                square += (f64::from(count) - expected).powi(2) / expected;
            }
        }
        // One in 10,000 fair samplers exceeds this with five degrees of freedom.
        assert!(square < 25.7, "chi-square {square}: {counts:?} for {shares:?}");
    }

    /// Softmax over the tokens that `keep` names.
    fn shares(temperature: f64, keep: &[usize]) -> Vec<f64> {
        let weight = |i: &usize| (f64::from(LOGITS[*i]) / temperature).exp();
        let sum: f64 = keep.iter().map(weight).sum();
        let share = |i| if keep.contains(&i) { weight(&i) / sum } else { 0.0 };
        (0..LOGITS.len()).map(share).collect()
    }

    #[test]
    fn draws_follow_the_distribution() {
        check(sampling(1.0, 0, 1.0), &shares(1.0, &[0, 1, 2, 3, 5]));
        check(sampling(0.5, 0, 1.0), &shares(0.5, &[0, 1, 2, 3, 5]));
        check(sampling(3.0, 3, 1.0), &shares(3.0, &[1, 3, 5]));
        check(sampling(1.0, 2, 1.0), &[0.0, 0.5, 0.0, 0.5, 0.0, 0.0]);
        // The first two hold 0.71, the first three 0.88 of the weight.
        check(sampling(1.0, 0, 0.7), &shares(1.0, &[1, 3]));
        check(sampling(1.0, 0, 0.8), &shares(1.0, &[1, 3, 5]));
        check(sampling(1.0, 4, 0.999), &shares(1.0, &[0, 1, 3, 5]));
    }

    #[test]
    fn greedy_in_four_disguises() {
        let all = [
            Sampling::GREEDY,
            sampling(0.0, 0, 1.0),
            sampling(1.0, 1, 1.0),
            sampling(1.0, 0, 1e-6),
        ];
        for sampling in all {
            for position in 0..100 {
                let at = DrawAt { seed: 3, position };
                assert_eq!(sampling.sample(&LOGITS, at), Ok(1), "the lower of the two largest");
            }
        }
        let cold = sampling(1e-30, 0, 1.0);
        for position in 0..100 {
            let token = cold.sample(&LOGITS, DrawAt { seed: 3, position }).unwrap();
            assert!(token == 1 || token == 3);
        }
    }

    #[test]
    fn draws_are_functions_of_seed_and_position() {
        let sampling = sampling(2.0, 0, 0.95);
        let row = |seed| -> Vec<u32> {
            let at = |position| DrawAt { seed, position };
            (0..64).map(|position| sampling.sample(&LOGITS, at(position)).unwrap()).collect()
        };
        assert_eq!(row(1), row(1));
        assert_ne!(row(1), row(2));
    }

    #[test]
    fn what_cannot_be_sampled() {
        let at = DrawAt { seed: 0, position: 0 };
        for sampling in [Sampling::GREEDY, sampling(1.0, 2, 0.9)] {
            let got = sampling.sample(&[1.0, f32::NAN], at);
            assert!(matches!(got, Err(SampleError::Logit { token: 1, .. })), "{got:?}");
            let got = sampling.sample(&[f32::INFINITY], at);
            assert!(matches!(got, Err(SampleError::Logit { token: 0, .. })), "{got:?}");
            assert_eq!(sampling.sample(&[], at), Err(SampleError::NoCandidate));
            let none = [f32::NEG_INFINITY; 3];
            assert_eq!(sampling.sample(&none, at), Err(SampleError::NoCandidate));
        }
        for (temperature, top_p) in [(-1.0, 1.0), (f32::NAN, 1.0), (1.0, 0.0), (1.0, 1.5)] {
            let options = SamplingOptions { temperature, top_k: None, top_p };
            assert!(Sampling::new(options).is_err(), "{options:?}");
        }
    }
}
