//! Entries whose index scores tie at the cut: the lower one is chosen, in every chunking.

mod harness;

use std::sync::{Arc, Mutex};

use harness::{Piece, Rig, Rows, first_difference, pages, small_config, tokens};
use statepages_model::{ChoiceAt, Choices, Isa, Weights};

/// Counts choices and ties at the cut, and holds each choice to the definition.
#[derive(Default)]
struct Ties {
    seen: Mutex<(usize, usize)>,
}

impl Choices for Ties {
    fn entries(&self, _: ChoiceAt, scores: &[f32], chosen: &mut Vec<u32>) {
        let mut order: Vec<u32> = (0..scores.len() as u32).collect();
        // A stable sort keeps the lower of two equal scores in front.
        order.sort_by(|&a, &b| {
            scores[b as usize].partial_cmp(&scores[a as usize]).expect("numbers")
        });
        let cut = [order[chosen.len() - 1], order[chosen.len()]].map(|i| scores[i as usize]);
        order.truncate(chosen.len());
        order.sort_unstable();
        assert_eq!(*chosen, order);
        let mut seen = self.seen.lock().expect("no test thread has panicked");
        seen.0 += 1;
        seen.1 += usize::from(cut[0] <= cut[1]);
    }

    fn experts(&self, _: ChoiceAt, _: &[f32], _: &mut [u32]) {}
}

#[test]
fn ties_at_the_cut_are_the_same_in_every_chunking() {
    for heads in [1, 2, 4] {
        let mut config = small_config();
        config.index_n_heads = heads;
        config.index_topk = 24;
        let weights = Arc::new(Weights::seeded(&config, 5).expect("weights"));
        let ids = tokens(11, 400, config.vocab_size);
        for rows in [Rows::Bf16, Rows::Fp8, Rows::Fp8Fp4] {
            let ties = Ties::default();
            let table = pages(0, 1, 2);
            let mut rig = Rig::new(&weights, rows, Isa::Auto, 1);
            let whole = Piece { slot: 0, pages: &table, start: 0, tokens: &ids };
            let want = rig.chosen(&ties, &whole);
            let (choices, tied) = *ties.seen.lock().expect("no test thread has panicked");
            eprintln!("{heads} index heads, {rows:?}: {tied} of {choices} choices tie at the cut");
            assert!(tied > 0, "{heads} heads, {rows:?}: nothing ties");
            for chunk in [1, 3, 64, 255] {
                let mut rig = Rig::new(&weights, rows, Isa::Auto, 2);
                let got = rig.request(1, &pages(5, 3, 2), &ids, &[chunk]);
                let difference = first_difference(&got, &want);
                assert_eq!(difference, None, "{heads} heads, {rows:?}, chunks of {chunk}");
            }
        }
    }
}
