//! How likely an image is asked for again, by its class and its age, and what that is worth a page.
//!
//! Time is counted in epochs: one sixty-fourth of the pool, in pages asked for. Ages are told apart
//! by a handful of spans, one epoch wide at first and then a quarter of an octave, so a time between
//! uses is known to a fifth of itself, whatever it is.
//!
//! A *trial* is one image that has lived through one span of ages: it was asked for in that span, or
//! it left the span unasked. Images that are not resident have trials, too, so the figures are those
//! of the traffic and not of what the policy happened to keep.
//!
//! The worth of an age is the best bargain that starts there: over every patience, the chance of
//! being asked for within it, divided by the time that the pages are then held on average. For a loop
//! longer than the pool this is highest just before an image is due, and lowest just after it was
//! used; where what was used lately is used soon, it is the order of recency.

use std::array;

/// Epochs in which as many pages are asked for as the pool has.
pub(crate) const EPOCHS_PER_POOL: u32 = 64;

/// Where each span of ages starts, in epochs: four to the octave from eight on, up to three pools.
/// The last one has no end.
pub(crate) const STARTS: [u32; 27] = [
    0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128,
    160, 192,
];

/// Spans of ages.
pub(crate) const SPANS: usize = STARTS.len();

/// The span without an end.
pub(crate) const LAST: usize = SPANS - 1;

/// Trials that a figure remembers. Older ones are halved away, so that each figure follows its
/// traffic within a few hundred images; a chance of one half is then known to about 3 %.
const TRIALS_MAX: f64 = 256.0;

/// Trials that a figure needs before it counts as much as what was believed before: a chance of one
/// half is known to about 9 % by then.
const TRIALS_ENOUGH: f64 = 32.0;

/// What is known of each class and span.
#[derive(Debug)]
pub(crate) struct Ages {
    classes: Vec<Class>,
    family: usize,
    pooled: [Trials; SPANS],
}

#[derive(Clone, Copy, Debug)]
struct Class {
    trials: [Trials; SPANS],
    worth: [f64; SPANS],
}

#[derive(Clone, Copy, Debug, Default)]
struct Trials {
    count: f64,
    asked: f64,
}

/// How a trial ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trial {
    /// The image was asked for.
    Asked,
    /// It grew older than the span.
    Unasked,
}

impl Ages {
    /// Figures of `classes` classes, of which each `family` in a row follow from one another: the first
    /// of a family is taken to be like all classes together until its trials say otherwise, and each
    /// next one like the one before.
    pub(crate) fn new(classes: usize, family: usize) -> Self {
        let blank = Class { trials: [Trials::default(); SPANS], worth: [0.0; SPANS] };
        let mut ages =
            Self { classes: vec![blank; classes], family, pooled: [Trials::default(); SPANS] };
        ages.refresh();
        ages
    }

    /// Bytes held.
    pub(crate) const fn bytes(&self) -> u64 {
        size_of_val(self.classes.as_slice()) as u64
    }

    /// Counts a trial. [`Self::worth`] hears of it at the next [`Self::refresh`].
    pub(crate) fn count(&mut self, class: usize, span: usize, trial: Trial) {
        for trials in [&mut self.classes[class].trials[span], &mut self.pooled[span]] {
            trials.count += 1.0;
            trials.asked += match trial {
                Trial::Asked => 1.0,
                Trial::Unasked => 0.0,
            };
            if trials.count > TRIALS_MAX {
                trials.count /= 2.0;
                trials.asked /= 2.0;
            }
        }
    }

    /// Computes the worth of each class and span anew.
    pub(crate) fn refresh(&mut self) {
        let all = beliefs(&self.pooled, &array::from_fn(prior));
        for family in self.classes.chunks_mut(self.family) {
            let mut belief = all;
            for class in family {
                belief = beliefs(&class.trials, &belief);
                class.worth = worth(&belief);
            }
        }
    }

    /// Reads an image gives per epoch of its pages, from a span on.
    pub(crate) fn worth(&self, class: usize, span: usize) -> f64 {
        self.classes[class].worth[span]
    }
}

/// The chances that follow from trials, where `before` was believed before them: each span's own, and
/// for spans with few trials what was believed, scaled by how much more often than believed the class
/// was asked for in all.
fn beliefs(trials: &[Trials; SPANS], before: &[f64; SPANS]) -> [f64; SPANS] {
    let asked: f64 = trials.iter().map(|trials| trials.asked).sum();
    let believed: f64 = trials.iter().zip(before).map(|(t, chance)| t.count * chance).sum();
    let keenness = (asked + TRIALS_ENOUGH) / (believed + TRIALS_ENOUGH);
    array::from_fn(|span| {
        let Trials { count, asked } = trials[span];
        let belief = (before[span] * keenness).min(1.0);
        (asked + TRIALS_ENOUGH * belief) / (count + TRIALS_ENOUGH)
    })
}

/// Width of a span. The last one is as wide as one pool: its members have been there for three.
fn width(span: usize) -> f64 {
    match STARTS.get(span + 1) {
        Some(next) => f64::from(next - STARTS[span]),
        None => f64::from(EPOCHS_PER_POOL),
    }
}

/// The chance of a span before anything is known: that of being asked for again within any age `a`
/// is `a / (a + one pool)`, so what was used lately is worth more, as in a plain order of recency.
fn prior(span: usize) -> f64 {
    let (start, width) = (f64::from(STARTS[span]), width(span));
    width / (start + width + f64::from(EPOCHS_PER_POOL))
}

/// The best bargain from each span on. A read within a span is taken to come at its middle.
fn worth(chances: &[f64; SPANS]) -> [f64; SPANS] {
    array::from_fn(|from| {
        let (mut left, mut asked, mut held, mut best) = (1.0, 0.0, 0.0, 0.0_f64);
        for span in from..SPANS {
            let chance = chances[span];
            held += left * width(span) * (1.0 - chance / 2.0);
            asked += left * chance;
            left *= 1.0 - chance;
            best = best.max(asked / held);
        }
        best
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chances(of: impl Fn(usize) -> f64) -> [f64; SPANS] {
        array::from_fn(of)
    }

    #[test]
    fn spans_are_four_to_the_octave() {
        for span in 12..LAST {
            let (start, next) = (STARTS[span], STARTS[span + 1]);
            assert!(next - start <= start / 4 && start < next, "span {span}");
        }
        assert_eq!(STARTS[LAST], 3 * EPOCHS_PER_POOL);
    }

    #[test]
    fn a_loop_is_worth_most_before_it_is_due_and_nothing_after() {
        let due = 20;
        let worth = worth(&chances(|span| f64::from(span == due)));
        for span in 1..=due {
            assert!(worth[span - 1] < worth[span], "span {span} of {worth:?}");
        }
        assert!(worth[due + 1..].iter().all(|&after| after == 0.0), "{worth:?}");
    }

    #[test]
    fn falling_chances_and_no_knowledge_are_the_order_of_recency() {
        let unknown = Ages::new(1, 1);
        for span in 1..LAST {
            assert!(unknown.worth(0, span) < unknown.worth(0, span - 1), "span {span}");
        }
        let falling =
            worth(&chances(|span| 0.5 / f64::from(STARTS[span] + 1) * width(span).min(1.0)));
        for span in 1..SPANS {
            assert!(falling[span] <= falling[span - 1], "span {span}: {falling:?}");
        }
    }

    #[test]
    fn a_figure_follows_its_traffic_and_a_class_without_trials_all_others() {
        let mut ages = Ages::new(2, 1);
        for _ in 0..1000 {
            ages.count(0, 3, Trial::Asked);
        }
        ages.refresh();
        let (own, other) = (ages.worth(0, 3), ages.worth(1, 3));
        assert!(own > 1.5 && other > 1.5, "{own} and {other} reads an epoch");
        for _ in 0..1000 {
            ages.count(0, 3, Trial::Unasked);
        }
        ages.refresh();
        assert!(ages.worth(0, 3) < 0.1 * own, "{} follows", ages.worth(0, 3));
    }
}
