//! `opt`: a bound on what any policy could resume, made offline.
//!
//! A request that resumes `d` blocks read a bundle: its first `d` blocks and an image at their end.
//! Each block of the bundle was in the pool since the last request that held it was admitted, and the
//! image at the latest since the last request that passed its boundary had been prefilled, which is
//! taken to be no more than `seqs` admissions later. No two bundles hold the same block or image at
//! the same time for different readers, for each holding ends with its reader. So what a policy
//! resumes is a choice of at most one bundle a request, such that at no admission more pages are held
//! than the pool has: a knapsack over whole bundles, with one constraint for each admission.
//!
//! Its Lagrangian relaxation is computed: pages have a price in each stretch of time, every request
//! takes its best bundle at these prices or none, and the pool's pages are paid for once. The sum
//! bounds the knapsack whatever the prices are; a subgradient descent looks for low ones. The prices
//! that it ends with need not be the best, so the bound may be loose, but never too low. Two things
//! make it loose on purpose: the pages that resident requests compute on are not charged for, and
//! copies of a block that two resident requests compute are counted once.

use std::collections::BTreeMap;
use std::ops::Range;

use statepages_page::{BlockSize, Boundary, Domain, Pages, Tokens};
use statepages_store::PromptKeys;

use crate::figures::percent;
use crate::replay::{Phase, keep_turns};
use crate::trace::{Order, Reply};
use crate::watch::{Stage, Watch};

/// Stretches of time with a price of their own.
const STRETCHES: usize = 512;
/// Steps of a descent.
const STEPS: usize = 150;
/// First strides that descents are tried with: it is not known beforehand how sharp the prices are.
const STRIDES: [f64; 3] = [0.1, 0.01, 0.001];
/// Steps of a search along a line.
const LINE_STEPS: usize = 40;

/// Every request of a replay, with when each of its blocks was last held.
#[derive(Clone, Debug)]
pub struct History {
    block: BlockSize,
    rounds: Vec<Round>,
    /// For each request the last earlier request that held its block, block by block, as far as there
    /// is one and an identical prompt could resume. Never ascends.
    held: Vec<Vec<u32>>,
}

#[derive(Clone, Debug)]
struct Round {
    workload: String,
    number: u32,
    requests: Range<usize>,
    full_tokens: u64,
}

/// What no policy can exceed in one round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Name of the workload.
    pub workload: String,
    /// Round of this workload, from 1.
    pub round: u32,
    /// Tokens asked for.
    pub full_tokens: u64,
    /// Tokens that a pool without end could resume.
    pub repeated_tokens: u64,
    /// Tokens that the pool could resume at most.
    pub tokens: u64,
}

impl Bound {
    /// Tokens that the pool could resume at most, in percent of those asked for.
    pub fn percent(&self) -> f64 {
        percent(self.tokens, self.full_tokens)
    }
}

impl History {
    /// Of the same requests, in the same order, that a replay sends.
    pub fn of(
        phases: &[Phase<'_>],
        order: Order,
        seed: u64,
        block: BlockSize,
        watch: &Watch<'_>,
    ) -> Self {
        let domain = Domain::default().tag();
        let mut last = BTreeMap::new();
        let (mut rounds, mut held) = (Vec::new(), Vec::new());
        for phase in phases {
            let asks = &phase.trace.asks;
            for number in 1..=phase.rounds {
                let of = asks.len() as u64;
                let first = held.len();
                let mut full_tokens = 0;
                let mut order = order.of(asks, seed, u64::from(number));
                keep_turns(asks, &mut order);
                for (done, ask) in (1..).zip(order.into_iter().map(|index| &asks[index])) {
                    (watch.progress)(Stage::Hashing, done, of);
                    let mut keys = PromptKeys::new(domain, block);
                    keys.extend(&ask.prompt.ids());
                    full_tokens += u64::from(keys.len().get());
                    let cap = block.blocks_floor(keys.len().saturating_sub(Tokens::new(1)));
                    // The last token generated is never computed.
                    if let Reply::Ids(ids) = &ask.reply {
                        keys.extend(&ids[..ids.len() - 1]);
                    }
                    let whole = block.blocks_floor(keys.len());
                    let now = u32::try_from(held.len()).expect("requests of a replay fit u32");
                    let mut since = Vec::new();
                    for count in 1..=whole.get() {
                        let end = Boundary::from_raw(count * block.get());
                        let key = keys.key_at(end).expect("a whole block has a key");
                        if let Some(before) = last.insert(key, now)
                            && count <= cap.get()
                        {
                            since.push(before);
                        }
                    }
                    held.push(since);
                }
                rounds.push(Round {
                    workload: phase.trace.name.clone(),
                    number,
                    requests: first..held.len(),
                    full_tokens,
                });
            }
        }
        Self { block, rounds, held }
    }

    /// Bounds for a pool of `pages`, images of `units` and `seqs` resident requests, round by round.
    pub fn bounds(&self, pages: Pages, units: Pages, seqs: u32) -> Vec<Bound> {
        let market = |round: &Round| Market {
            held: &self.held[..round.requests.end],
            buyers: round.requests.clone(),
            block: f64::from(self.block.get()),
            pages: f64::from(pages.get()),
            units: f64::from(units.get()),
            seqs: seqs as usize,
        };
        let bound = |round: &Round| {
            let blocks: usize = self.held[round.requests.clone()].iter().map(Vec::len).sum();
            let repeated_tokens = blocks as u64 * u64::from(self.block.get());
            // What rounding of the sums could have taken from it.
            let least = market(round).least() * (1.0 + 1e-9) + 1e-3;
            Bound {
                workload: round.workload.clone(),
                round: round.number,
                full_tokens: round.full_tokens,
                repeated_tokens,
                tokens: (least as u64).min(repeated_tokens),
            }
        };
        self.rounds.iter().map(bound).collect()
    }
}

/// One round's knapsack.
struct Market<'a> {
    /// Requests up to the end of the round.
    held: &'a [Vec<u32>],
    /// The requests of the round: only what these resume counts.
    buyers: Range<usize>,
    block: f64,
    pages: f64,
    units: f64,
    seqs: usize,
}

/// The bound at some prices, and pages of the pool left over in each stretch, summed over its time.
struct Offer {
    bound: f64,
    left: Vec<f64>,
}

impl Market<'_> {
    fn stretch(&self, time: usize) -> usize {
        time * STRETCHES / self.held.len()
    }

    /// When the image behind the first `depth` blocks of a bundle was there at the latest.
    fn image_since(&self, reader: usize, depth: usize) -> usize {
        (self.held[reader][depth - 1] as usize + self.seqs).min(reader)
    }

    fn offer(&self, prices: &[f64]) -> Offer {
        let times = self.held.len();
        // Price of a page from the start to each time.
        let mut until = Vec::with_capacity(times + 1);
        let mut sum = 0.0;
        for time in 0..times {
            until.push(sum);
            sum += prices[self.stretch(time)];
        }
        until.push(sum);
        let mut bound = self.pages * sum;
        let mut change = vec![0.0; times + 1];
        for reader in self.buyers.clone() {
            let (mut worth, mut best, mut depth) = (0.0, 0.0, 0);
            for (index, &since) in self.held[reader].iter().enumerate() {
                worth += self.block - (until[reader] - until[since as usize]);
                let image = until[reader] - until[self.image_since(reader, index + 1)];
                let gain = worth - self.units * image;
                if gain > best {
                    (best, depth) = (gain, index + 1);
                }
            }
            bound += best;
            if depth > 0 {
                for &since in &self.held[reader][..depth] {
                    change[since as usize] += 1.0;
                }
                change[self.image_since(reader, depth)] += self.units;
                change[reader] -= depth as f64 + self.units;
            }
        }
        let mut left = vec![0.0; STRETCHES];
        let mut used = 0.0;
        for (time, change) in change[..times].iter().enumerate() {
            used += change;
            left[self.stretch(time)] += self.pages - used;
        }
        Offer { bound, left }
    }

    /// The lowest bound that the descent meets.
    fn least(&self) -> f64 {
        if self.held.is_empty() {
            return 0.0;
        }
        let free = self.offer(&[0.0; STRETCHES]);
        if free.left.iter().all(|&left| left >= 0.0) {
            return free.bound;
        }
        // At this price a block held through one stretch is worth just what it saves.
        let worth = self.block * STRETCHES.min(self.held.len()) as f64 / self.held.len() as f64;
        // Traffic that goes round and round is bounded where all its bundles meet, mixed traffic all
        // the time: a descent starts at the best price of each kind.
        let tightest = (0..STRETCHES).min_by(|&a, &b| free.left[a].total_cmp(&free.left[b]));
        let tightest = tightest.expect("there are stretches");
        let level = |price: f64| [price; STRETCHES];
        let peak = |price: f64| {
            let mut prices = level(0.0);
            prices[tightest] = price;
            prices
        };
        let starts =
            [level(0.0), level(self.lowest(self.block, level)), peak(self.lowest(worth, peak))];
        let descents = starts
            .iter()
            .flat_map(|start| STRIDES.map(|stride| self.descend(start, worth * stride)));
        descents.fold(free.bound, f64::min)
    }

    /// The price up to `most` that gives the lowest bound along a line of prices: the bound is convex,
    /// so thirds close in on it.
    fn lowest(&self, most: f64, prices: impl Fn(f64) -> [f64; STRETCHES]) -> f64 {
        let bound = |price: f64| self.offer(&prices(price)).bound;
        let (mut low, mut high) = (0.0, most);
        for _ in 0..LINE_STEPS {
            let (one, two) = (low + (high - low) / 3.0, high - (high - low) / 3.0);
            if bound(one) < bound(two) { high = two } else { low = one }
        }
        f64::midpoint(low, high)
    }

    /// The stride of each stretch shrinks with what it has been moved by.
    fn descend(&self, start: &[f64; STRETCHES], stride: f64) -> f64 {
        let (mut prices, mut squares) = (*start, [0.0; STRETCHES]);
        let mut least = f64::INFINITY;
        for _ in 0..STEPS {
            let offer = self.offer(&prices);
            least = least.min(offer.bound);
            for ((price, square), left) in prices.iter_mut().zip(&mut squares).zip(&offer.left) {
                *square += left * left;
                if *square > 0.0 {
                    *price = (*price - stride * left / square.sqrt()).max(0.0);
                }
            }
        }
        least
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::replay::Pace;
    use crate::trace::{Ask, Piece, Prompt, Trace};

    fn trace(texts: &[u64], blocks: u32) -> Trace {
        let ask = |&seed: &u64| Ask {
            prompt: Prompt::Pieces(vec![Piece { seed, tokens: blocks * 4 + 1 }]),
            reply: Reply::Tokens(1),
            arrival: None,
            session: None,
        };
        Trace { name: "t".to_owned(), asks: texts.iter().map(ask).collect() }
    }

    fn bound(texts: &[u64], blocks: u32, rounds: u32, pages: u32) -> Vec<Bound> {
        let trace = trace(texts, blocks);
        let phase = Phase { trace: &trace, rounds, pace: Pace::Concurrency(1) };
        let block = BlockSize::new(4).expect("not zero");
        History::of(&[phase], Order::File, 0, block, &Watch::QUIET).bounds(
            Pages::new(pages),
            Pages::new(2),
            0,
        )
    }

    /// Ten prompts of three blocks in turn, images of two pages: a pool of 25 keeps five bundles.
    #[test]
    fn a_cycle_keeps_as_many_bundles_as_fit() {
        let texts: Vec<u64> = (0..10).collect();
        let rounds = bound(&texts, 3, 2, 25);
        assert_eq!((rounds[0].tokens, rounds[0].repeated_tokens), (0, 0));
        assert_eq!(rounds[1].repeated_tokens, 10 * 12);
        assert!((5 * 12..=5 * 12 + 4).contains(&rounds[1].tokens), "{:?}", rounds[1]);
        assert_eq!(bound(&texts, 3, 2, 50)[1].tokens, 10 * 12);
        // More requests than stretches: the price has to be paid where all bundles meet.
        let texts: Vec<u64> = (0..700).collect();
        let tokens = bound(&texts, 3, 2, 200 * 5)[1].tokens;
        assert!((200 * 12..200 * 12 * 103 / 100).contains(&tokens), "{tokens}");
    }

    /// The best choice of bundles, by trying all.
    fn exact(texts: &[u64], blocks: u32, pages: u32) -> u64 {
        let reuse: Vec<(usize, usize)> = (0..texts.len())
            .filter_map(|reader| {
                let since = texts[..reader].iter().rposition(|text| *text == texts[reader])?;
                Some((since, reader))
            })
            .collect();
        let mut best = 0;
        // Each reuse takes 0 to `blocks` blocks.
        let choices = u64::from(blocks) + 1;
        for code in 0..choices.pow(reuse.len() as u32) {
            let mut used = vec![0; texts.len()];
            let (mut rest, mut tokens) = (code, 0);
            for &(since, reader) in &reuse {
                let depth = rest % choices;
                rest /= choices;
                if depth > 0 {
                    tokens += depth * 4;
                    used[since..reader].iter_mut().for_each(|used| *used += depth + 2);
                }
            }
            if used.iter().all(|&used| used <= u64::from(pages)) {
                best = best.max(tokens);
            }
        }
        best
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        /// Never below the best choice, and never above what repeats.
        #[test]
        fn it_bounds_every_choice_of_bundles(
            texts in prop::collection::vec(0..4u64, 2..9),
            blocks in 1..4u32,
            pages in 3..16u32,
        ) {
            let found = &bound(&texts, blocks, 1, pages)[0];
            prop_assert!(found.tokens >= exact(&texts, blocks, pages));
            prop_assert!(found.tokens <= found.repeated_tokens);
        }
    }
}
