//! Mixture of experts of a batch (dsv4.md 1.7).
//!
//! An expert takes its tokens from all tiles at once, so that its weights come from memory once and
//! not once a tile:
//!
//! ```text
//! route    residual -> x, each token's experts and weights     by tile
//! compute  x -> the experts' outputs                           by expert
//! mix      outputs -> residual                                 by tile
//! ```
//!
//! A token's outputs are summed by ascending expert id, the shared expert last, whatever other
//! tokens are in the batch.

use rayon::prelude::*;

use crate::choice::top_k;
use crate::kernel::expert::{add_scaled, sqrt_softplus, swiglu};
use crate::pass::{Pass, PerThread};
use crate::tile::{Tile, Work, choice_at, fit, project};
use crate::weights::{ExpertWeights, Routing};

/// Most tokens that one thread computes of an expert at a time: enough that fetching the weights costs
/// little, few enough that inputs and outputs stay in a core's cache.
const ROWS: usize = 192;

/// One routed expert of a token.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route {
    expert: u32,
    weight: f32,
    /// The token's place among the expert's.
    row: usize,
}

/// What the experts of a layer compute of a batch. The shared expert comes behind the routed ones.
#[derive(Debug, Default)]
pub(crate) struct Experts {
    /// By expert: tile, and token of the tile, of each of its tokens.
    members: Vec<Vec<(usize, usize)>>,
    /// By expert: its first piece.
    first: Vec<usize>,
    /// Expert, and the first of its at most [`ROWS`] tokens.
    pieces: Vec<(usize, usize)>,
    /// By piece, `[tokens][hidden]`.
    outputs: Vec<Vec<f32>>,
}

/// Scratch of one thread.
#[derive(Debug, Default)]
pub(crate) struct MoeWork {
    /// `[tokens][experts]`.
    scores: Vec<f32>,
    biased: Vec<f32>,
    ranks: Vec<u64>,
    choice: Vec<u32>,
    inputs: Vec<f32>,
    gate: Vec<f32>,
    up: Vec<f32>,
}

impl Experts {
    /// Computes the experts of all tiles' tokens.
    pub(crate) fn compute(&mut self, pass: &Pass<'_>, tiles: &mut [Tile], works: &PerThread<Work>) {
        self.assign(pass, tiles);
        let Self { members, pieces, outputs, .. } = self;
        let one = |(&(expert, first), outputs): (&(usize, usize), &mut Vec<f32>)| {
            let members = &members[expert][first..];
            let members = &members[..members.len().min(ROWS)];
            works.with(|work| work.moe.expert(pass, expert, tiles, members, outputs));
        };
        if tiles.len() == 1 {
            pieces.iter().zip(outputs).for_each(one);
        } else {
            pieces.par_iter().zip(outputs).with_max_len(1).for_each(one);
        }
    }

    /// Gives every token its places among its experts' tokens, and cuts those into pieces.
    fn assign(&mut self, pass: &Pass<'_>, tiles: &mut [Tile]) {
        let (shared, each) = (pass.core.dims.experts, pass.core.dims.experts_per_token);
        self.members.resize_with(shared + 1, Vec::new);
        self.members.iter_mut().for_each(Vec::clear);
        for (at, tile) in tiles.iter_mut().enumerate() {
            tile.shared_row = self.members[shared].len();
            for (token, routes) in tile.routes.chunks_exact_mut(each).enumerate() {
                for route in routes {
                    let members = &mut self.members[route.expert as usize];
                    route.row = members.len();
                    members.push((at, token));
                }
                self.members[shared].push((at, token));
            }
        }
        self.first.clear();
        self.pieces.clear();
        for (expert, members) in self.members.iter().enumerate() {
            self.first.push(self.pieces.len());
            self.pieces.extend((0..members.len()).step_by(ROWS).map(|first| (expert, first)));
        }
        if self.outputs.len() < self.pieces.len() {
            self.outputs.resize_with(self.pieces.len(), Vec::new);
        }
    }

    /// What an expert made of one of its tokens.
    fn output(&self, expert: usize, row: usize, hidden: usize) -> &[f32] {
        &self.outputs[self.first[expert] + row / ROWS][row % ROWS * hidden..][..hidden]
    }
}

impl Tile {
    /// Sums the experts of every token, into `y`.
    pub(crate) fn sum_experts(&self, pass: &Pass<'_>, experts: &Experts, y: &mut Vec<f32>) {
        let (machine, dims) = (pass.core.machine, &pass.core.dims);
        fit(y, self.tokens.len() * dims.hidden).fill(0.0);
        let routes = self.routes.chunks_exact(dims.experts_per_token);
        for (token, (y, routes)) in y.chunks_exact_mut(dims.hidden).zip(routes).enumerate() {
            for route in routes {
                let output = experts.output(route.expert as usize, route.row, dims.hidden);
                add_scaled(machine, y, route.weight, output);
            }
            let output = experts.output(dims.experts, self.shared_row + token, dims.hidden);
            add_scaled(machine, y, 1.0, output);
        }
    }

    /// Experts and weights of every token.
    pub(crate) fn choose_experts(&mut self, pass: &Pass<'_>, moe: &mut MoeWork) {
        let (core, dims) = (pass.core, &pass.core.dims);
        let weights = &pass.weights.ffn;
        project(core, self.tokens.len(), &self.x, &weights.gate, &mut moe.scores);
        sqrt_softplus(core.machine, &mut moe.scores);
        self.routes.clear();
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
            self.routes.extend(moe.choice.iter().map(|&expert| Route {
                expert,
                weight: scores[expert as usize] / sum * factor,
                row: 0,
            }));
        }
    }
}

impl MoeWork {
    /// One expert of some tokens.
    fn expert(
        &mut self,
        pass: &Pass<'_>,
        expert: usize,
        tiles: &[Tile],
        members: &[(usize, usize)],
        outputs: &mut Vec<f32>,
    ) {
        let (core, hidden) = (pass.core, pass.core.dims.hidden);
        let weights = &pass.weights.ffn;
        let ExpertWeights { w1, w2, w3 } = weights.experts.get(expert).unwrap_or(&weights.shared);
        self.inputs.clear();
        for &(tile, token) in members {
            self.inputs.extend_from_slice(&tiles[tile].x[token * hidden..][..hidden]);
        }
        project(core, members.len(), &self.inputs, w1, &mut self.gate);
        project(core, members.len(), &self.inputs, w3, &mut self.up);
        swiglu(core.machine, &mut self.gate, &self.up, core.config.swiglu_limit);
        debug_assert_eq!(self.gate.len(), members.len() * core.dims.expert_width);
        project(core, members.len(), &self.gate, w2, outputs);
    }
}
