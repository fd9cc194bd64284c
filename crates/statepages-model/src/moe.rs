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

use crate::batch::Token;
use crate::choice::top_k;
use crate::crew::{Hands, PerThread};
use crate::kernel::expert::{add_scaled, sqrt_softplus, swiglu};
use crate::kernel::gemm::{Product, products, rows_mut};
use crate::pass::Pass;
use crate::tile::{Tile, Work, choice_at, fit, product};
use crate::weights::{ExpertWeights, Routing as RoutingWeights};

/// Most tokens that one thread computes of an expert at a time: enough that fetching the weights costs
/// little, few enough that inputs and outputs stay in a core's cache.
const ROWS: usize = 192;

/// One routed expert of a token.
#[derive(Clone, Copy, Debug, Default)]
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
    /// Those of this layer, then ones that are left of others.
    pieces: Vec<Piece>,
}

/// At most [`ROWS`] tokens of an expert.
#[derive(Debug, Default)]
struct Piece {
    expert: usize,
    /// Its first token, among the expert's.
    first: usize,
    /// `[tokens][hidden]`.
    outputs: Vec<f32>,
}

/// Scratch of one thread, for the choice of experts.
#[derive(Debug, Default)]
pub(crate) struct Routing {
    /// `[tokens][experts]`.
    scores: Vec<f32>,
    biased: Vec<f32>,
    ranks: Vec<u64>,
    choice: Vec<u32>,
}

/// Scratch of one thread, for the experts.
#[derive(Debug, Default)]
pub(crate) struct MoeWork {
    hidden: Vec<Hidden>,
}

/// What an expert makes of its tokens before its last product.
#[derive(Debug, Default)]
struct Hidden {
    gate: Vec<f32>,
    up: Vec<f32>,
}

impl Experts {
    /// Computes the experts of all tiles' tokens.
    pub(crate) fn compute(&mut self, pass: &Pass<'_>, tiles: &mut [Tile], works: &PerThread<Work>) {
        let pieces = self.assign(pass, tiles);
        let (members, pieces) = (&self.members, &mut self.pieces[..pieces]);
        // Threads take piece after piece, the shared expert's, which has most tokens, first. Where
        // pieces are too few for that, they share each product.
        let together = pass.inside.hands.count() > 1 && pieces.len() < 3 * pass.all.count();
        if together {
            works.with(|work| work.moe.experts(pass, pass.all, tiles, members, pieces));
        } else {
            pass.all.each(pieces.iter_mut().rev(), |piece| {
                let piece = std::slice::from_mut(piece);
                works.with(|work| work.moe.experts(pass, Hands::ONE, tiles, members, piece));
            });
        }
    }

    /// Gives every token its places among its experts' tokens, and cuts those into pieces, whose
    /// number it returns.
    fn assign(&mut self, pass: &Pass<'_>, tiles: &mut [Tile]) -> usize {
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
        let mut pieces = 0;
        for (expert, members) in self.members.iter().enumerate() {
            self.first.push(pieces);
            for first in (0..members.len()).step_by(ROWS) {
                if self.pieces.len() == pieces {
                    self.pieces.push(Piece::default());
                }
                (self.pieces[pieces].expert, self.pieces[pieces].first) = (expert, first);
                pieces += 1;
            }
        }
        pieces
    }

    /// Sums the experts of some tokens into `y`, given the place of the first among the shared
    /// expert's.
    pub(crate) fn sum(&self, pass: &Pass<'_>, routes: &[Route], shared_row: usize, y: &mut [f32]) {
        let (machine, dims) = (pass.core.machine, &pass.core.dims);
        let routes = routes.chunks_exact(dims.experts_per_token);
        for (token, (y, routes)) in y.chunks_exact_mut(dims.hidden).zip(routes).enumerate() {
            y.fill(0.0);
            for route in routes {
                let output = self.output(route.expert as usize, route.row, dims.hidden);
                add_scaled(machine, y, route.weight, output);
            }
            let output = self.output(dims.experts, shared_row + token, dims.hidden);
            add_scaled(machine, y, 1.0, output);
        }
    }

    /// What an expert made of one of its tokens.
    fn output(&self, expert: usize, row: usize, hidden: usize) -> &[f32] {
        let piece = &self.pieces[self.first[expert] + row / ROWS];
        &piece.outputs[row % ROWS * hidden..][..hidden]
    }
}

/// Experts and weights of some tokens, given their inputs.
pub(crate) fn choose_experts(
    pass: &Pass<'_>,
    tokens: &[Token],
    x: &[f32],
    routes: &mut [Route],
    routing: &mut Routing,
) {
    let (core, dims) = (pass.core, &pass.core.dims);
    let weights = &pass.weights.ffn;
    let Routing { scores, biased, ranks, choice } = routing;
    let list = vec![product(tokens.len(), x, &weights.gate, scores)];
    products(core.machine, Hands::ONE, list);
    sqrt_softplus(core.machine, scores);
    let (experts, each) = (dims.experts, dims.experts_per_token);
    let routes = routes.chunks_exact_mut(each);
    for ((scores, token), routes) in scores.chunks_exact(experts).zip(tokens).zip(routes) {
        choice.clear();
        match &weights.routing {
            RoutingWeights::Hash(table) => {
                choice.extend_from_slice(&table[token.id as usize * each..][..each]);
                choice.sort_unstable();
            }
            RoutingWeights::Bias(bias) => {
                biased.clear();
                biased.extend(scores.iter().zip(bias).map(|(s, b)| s + b));
                top_k(biased, each, ranks, choice);
                pass.choices.experts(choice_at(pass, token), biased, choice);
            }
        }
        // The guard keeps scores that all underflow from dividing zero by zero.
        let sum = choice.iter().fold(0.0, |sum, &e| sum + scores[e as usize]) + 1e-20;
        let factor = core.config.routed_scaling_factor;
        for (route, &expert) in routes.iter_mut().zip(&*choice) {
            let weight = scores[expert as usize] / sum * factor;
            *route = Route { expert, weight, row: 0 };
        }
    }
}

impl MoeWork {
    /// Some pieces of experts.
    fn experts(
        &mut self,
        pass: &Pass<'_>,
        hands: Hands,
        tiles: &[Tile],
        members: &[Vec<(usize, usize)>],
        pieces: &mut [Piece],
    ) {
        let (machine, hidden) = (pass.core.machine, pass.core.dims.hidden);
        let ffn = &pass.weights.ffn;
        let weights = |expert: usize| ffn.experts.get(expert).unwrap_or(&ffn.shared);
        if self.hidden.len() < pieces.len() {
            self.hidden.resize_with(pieces.len(), Hidden::default);
        }
        let mut list = Vec::with_capacity(2 * pieces.len());
        for (piece, Hidden { gate, up }) in pieces.iter().zip(&mut self.hidden) {
            let members = &members[piece.expert][piece.first..];
            let members = &members[..members.len().min(ROWS)];
            let input = |&(tile, token): &(usize, usize)| -> &[f32] {
                &tiles[tile].x[token * hidden..][..hidden]
            };
            let ExpertWeights { w1, w3, .. } = weights(piece.expert);
            for (w, to) in [(w1, gate), (w3, up)] {
                let n = w.outputs();
                let c = rows_mut(fit(to, members.len() * n), n, n);
                list.push(Product { a: members.iter().map(input).collect(), w, c });
            }
        }
        products(machine, hands, list);
        let mut list = Vec::with_capacity(pieces.len());
        for (piece, Hidden { gate, up }) in pieces.iter_mut().zip(&mut self.hidden) {
            swiglu(machine, gate, up, pass.core.config.swiglu_limit);
            let w2 = &weights(piece.expert).w2;
            list.push(product(gate.len() / w2.inputs(), gate, w2, &mut piece.outputs));
        }
        products(machine, hands, list);
    }
}
