//! The built-in model's output says something about its state.

mod harness;

use std::sync::Arc;

use harness::{Piece, Rig, Rows, pages};
use statepages_model::{DrawAt, Isa, ModelConfig, Sampling, SamplingOptions, Weights};

const PROMPTS: [&str; 3] = [
    "A request resumes where an earlier one stopped, bit for bit, from pages of the cache. ",
    "A request resumes where an earlier one stopped, bit for bit, from pages of the cache! ",
    "Window rows, compressor rings and compressed entries are all that a forward remembers.",
];

fn generate(weights: &Arc<Weights>, prompt: &str, sampling: Sampling) -> Vec<u32> {
    let mut rig = Rig::new(weights, Rows::Bf16, Isa::Auto, 2);
    let vocab = weights.config().vocab_size as usize;
    let mut tokens: Vec<u32> = prompt.bytes().cycle().take(300).map(u32::from).collect();
    let (table, mut start) = (pages(0, 1, 2), 0);
    for _ in 0..64 {
        let piece = Piece { slot: 0, pages: &table, start, tokens: &tokens[start..] };
        let rows = rig.batch(&[piece]).remove(0);
        start = tokens.len();
        let at = DrawAt { seed: 9, position: start as u32 };
        tokens.push(sampling.sample(&rows[rows.len() - vocab..], at).expect("a token"));
    }
    tokens.split_off(300)
}

#[test]
fn output_depends_on_the_prompt_and_does_not_collapse() {
    let weights = Arc::new(Weights::seeded(&ModelConfig::demo(), 1).expect("weights"));
    let warm = SamplingOptions { temperature: 1.0, top_k: None, top_p: 0.95 };
    for sampling in [Sampling::GREEDY, Sampling::new(warm).expect("sound parameters")] {
        let outputs = PROMPTS.map(|prompt| generate(&weights, prompt, sampling));
        for output in &outputs {
            let mut distinct = output.clone();
            distinct.sort_unstable();
            distinct.dedup();
            assert!(distinct.len() > 20, "{} distinct tokens of 64: {output:?}", distinct.len());
        }
        assert!(outputs[0] != outputs[1] && outputs[1] != outputs[2]);
    }
}
