//! Mixture of experts of a tile (dsv4.md 1.7).
//!
//! A token's outputs are summed by ascending expert id, the shared expert last, whatever other
//! tokens are in the tile.

use crate::choice::top_k;
use crate::kernel::expert::{add_scaled, sqrt_softplus, swiglu};
use crate::pass::Pass;
use crate::tile::{Tile, Work, choice_at, fit, project};
use crate::weights::{ExpertWeights, Routing};

/// Scratch of one thread.
#[derive(Debug, Default)]
pub(crate) struct MoeWork {
    /// `[tokens][experts]`.
    scores: Vec<f32>,
    biased: Vec<f32>,
    ranks: Vec<u64>,
    choice: Vec<u32>,
    /// `[tokens][experts per token]`: expert, ascending, and weight.
    routes: Vec<(u32, f32)>,
    /// Tokens of the expert at hand, with their weights.
    members: Vec<(usize, f32)>,
    inputs: Vec<f32>,
    gate: Vec<f32>,
    up: Vec<f32>,
    outputs: Vec<f32>,
}

impl Tile {
    /// Experts of every token, from `work.x` into `work.y`.
    pub(crate) fn experts(&self, pass: &Pass<'_>, work: &mut Work) {
        let (core, hidden) = (pass.core, pass.core.dims.hidden);
        let (moe, weights) = (&mut work.moe, &pass.weights.ffn);
        self.route(pass, &work.x, moe);
        fit(&mut work.y, self.tokens.len() * hidden).fill(0.0);
        for (id, expert) in weights.experts.iter().enumerate() {
            moe.members.clear();
            moe.inputs.clear();
            let routes = moe.routes.chunks_exact(core.dims.experts_per_token);
            for (token, routes) in routes.enumerate() {
                for &(_, weight) in routes.iter().filter(|(e, _)| *e as usize == id) {
                    moe.members.push((token, weight));
                    moe.inputs.extend_from_slice(&work.x[token * hidden..][..hidden]);
                }
            }
            let inputs = std::mem::take(&mut moe.inputs);
            moe.expert(pass, expert, &inputs);
            moe.inputs = inputs;
            for (&(token, weight), y) in moe.members.iter().zip(moe.outputs.chunks_exact(hidden)) {
                let to = &mut work.y[token * hidden..][..hidden];
                add_scaled(core.machine, to, weight, y);
            }
        }
        moe.expert(pass, &weights.shared, &work.x);
        add_scaled(core.machine, &mut work.y, 1.0, &moe.outputs);
    }

    /// Experts and weights of every token.
    fn route(&self, pass: &Pass<'_>, x: &[f32], moe: &mut MoeWork) {
        let (core, dims) = (pass.core, &pass.core.dims);
        let weights = &pass.weights.ffn;
        project(core, self.tokens.len(), x, &weights.gate, &mut moe.scores);
        sqrt_softplus(core.machine, &mut moe.scores);
        moe.routes.clear();
        let (experts, each) = (dims.experts, dims.experts_per_token);
        for (scores, token) in moe.scores.chunks_exact(experts).zip(&self.tokens) {
            moe.choice.clear();
            match &weights.routing {
                Routing::Hash(table) => {
                    moe.choice.extend_from_slice(&table[token.id as usize * each..][..each]);
                    moe.choice.sort_unstable();
                }
                Routing::Bias(bias) => {
                    moe.biased.clear();
                    moe.biased.extend(scores.iter().zip(bias).map(|(s, b)| s + b));
                    top_k(&moe.biased, each, &mut moe.ranks, &mut moe.choice);
                    let at = choice_at(pass, token);
                    pass.choices.experts(at, &moe.biased, &mut moe.choice);
                }
            }
            // The guard keeps scores that all underflow from dividing zero by zero.
            let sum = moe.choice.iter().fold(0.0, |sum, &e| sum + scores[e as usize]) + 1e-20;
            let factor = core.config.routed_scaling_factor;
            let weight = |&e: &u32| (e, scores[e as usize] / sum * factor);
            moe.routes.extend(moe.choice.iter().map(weight));
        }
    }
}

impl MoeWork {
    /// One expert of some tokens, into `outputs`.
    fn expert(&mut self, pass: &Pass<'_>, expert: &ExpertWeights, x: &[f32]) {
        let core = pass.core;
        let tokens = x.len() / core.dims.hidden;
        project(core, tokens, x, &expert.w1, &mut self.gate);
        project(core, tokens, x, &expert.w3, &mut self.up);
        swiglu(core.machine, &mut self.gate, &self.up, core.config.swiglu_limit);
        debug_assert_eq!(self.gate.len(), tokens * core.dims.expert_width);
        project(core, tokens, &self.gate, &expert.w2, &mut self.outputs);
    }
}
