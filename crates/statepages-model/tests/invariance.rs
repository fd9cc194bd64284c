//! A token's logits are the same bits, however its request was computed.

mod harness;

use std::sync::{Arc, LazyLock, OnceLock};

use harness::{PAGES, Piece, Rig, Rows, SLOTS, first_difference, pages, small_config, tokens};
use proptest::prelude::*;
use statepages_geometry::{BLOCK_TOKENS, CacheOptions, Dsv4Geometry};
use statepages_model::{
    Isa, Logits, LogitsWanted, Model, ModelConfig, Phase, RunOptions, SequenceChunk, Weights,
};
use statepages_page::{Boundary, ImageLayout, ImageRule, PageId, SlotId};

const NAN: [u8; 4] = [0xff, 0xff, 0xff, 0xff];
/// 3.4e38 as f32, and as two bf16.
const HUGE: [u8; 4] = [0x7f, 0x7f, 0x7f, 0x7f];

static SMALL: LazyLock<Arc<Weights>> =
    LazyLock::new(|| Arc::new(Weights::seeded(&small_config(), 3).expect("weights")));

fn small_tokens(seed: u32, n: usize) -> Vec<u32> {
    tokens(seed, n, SMALL.config().vocab_size)
}

/// Logits of a request computed alone, whole, on clean memory.
fn alone(weights: &Arc<Weights>, rows: Rows, tokens: &[u32]) -> Vec<f32> {
    let logits =
        Rig::new(weights, rows, Isa::Auto, 1).request(0, &pages(0, 1, 5), tokens, &[tokens.len()]);
    assert!(logits.iter().all(|x| x.is_finite()), "logits are numbers");
    logits
}

#[track_caller]
fn same(got: &[f32], want: &[f32], vocab: u32, what: impl std::fmt::Display) {
    if let Some(i) = first_difference(got, want) {
        panic!("{what}: token {} differs", i / vocab as usize);
    }
}

#[test]
fn every_chunk_size() {
    let ids = small_tokens(1, 270);
    for rows in [Rows::F32, Rows::Bf16, Rows::Fp8, Rows::Fp8Fp4] {
        let want = alone(&SMALL, rows, &ids);
        let mut rig = Rig::new(&SMALL, rows, Isa::Auto, 2);
        let (first, last) = (1, if rows == Rows::F32 { ids.len() } else { 24 });
        for chunk in first..=last {
            // A new slot and other pages each time, dirty from the rounds before.
            let slot = chunk as u32 % SLOTS;
            let table = pages(chunk as u32 * 5, 7, 2);
            let got = rig.request(slot, &table, &ids, &[chunk]);
            same(&got, &want, SMALL.config().vocab_size, format!("{rows:?}, chunks of {chunk}"));
        }
    }
}

#[test]
fn every_cut_near_a_boundary() {
    let ids = small_tokens(2, 652);
    let want = alone(&SMALL, Rows::Fp8, &ids);
    let mut rig = Rig::new(&SMALL, Rows::Fp8, Isa::Auto, 2);
    let vocab = SMALL.config().vocab_size;
    for boundary in [128, 256, 512] {
        let ids = &ids[..boundary + 140];
        let want = &want[..ids.len() * vocab as usize];
        for first in boundary - 3..=boundary + 3 {
            for second in [1, 2, 4, 5, 127, 128, 129] {
                let got = rig.request(1, &pages(3, 5, 3), ids, &[first, second, 700]);
                same(&got, want, vocab, format!("cut at {first} and {second} later"));
            }
        }
    }
}

#[test]
fn phases_are_told_in_order_and_show_in_no_bit() {
    let layer =
        [Phase::Project, Phase::Pool, Phase::Select, Phase::Read, Phase::Attend, Phase::Experts];
    let mut order = layer.repeat(SMALL.config().cache.num_hidden_layers as usize);
    order.push(Phase::Head);
    // Tokens that are computed together, and tiles of them.
    let ids = small_tokens(11, 140);
    for (tokens, threads) in [(1, 2), (9, 1), (9, 2), (140, 1), (140, 2)] {
        let ids = &ids[..tokens];
        let table = pages(1, 1, 2);
        let piece = Piece { slot: 1, pages: &table, start: 0, tokens: ids };
        let (got, told) = Rig::new(&SMALL, Rows::Fp8, Isa::Auto, threads).told(&piece);
        assert_eq!(told, order, "{tokens} tokens on {threads} threads");
        let want = alone(&SMALL, Rows::Fp8, ids);
        same(&got, &want, SMALL.config().vocab_size, format!("{tokens} tokens"));
    }
}

/// Steps of several requests on pages that some of them share, which are read once for all.
#[test]
fn decodes_that_share_pages() {
    let vocab = SMALL.config().vocab_size as usize;
    let (head, block) = (small_tokens(12, 512), BLOCK_TOKENS.get() as usize);
    // Two share two pages, three the first, one none; one has not completed its second page.
    let cuts = [512, 512, 256, 256, 0];
    let lens = [560, 521, 590, 300, 420];
    for (rows, threads) in [(Rows::Bf16, 1), (Rows::Fp8, 2), (Rows::Fp8Fp4, 3)] {
        let mut rig = Rig::new(&SMALL, rows, Isa::Auto, threads);
        let shared = pages(0, 1, 2);
        let mut requests: Vec<(Vec<u32>, Vec<PageId>, Vec<f32>)> = Vec::new();
        for (request, (cut, len)) in cuts.into_iter().zip(lens).enumerate() {
            let own = small_tokens(20 + request as u32, len + 12 - cut);
            let ids = [&head[..cut], &own[..]].concat();
            let mut table = shared[..cut / block].to_vec();
            table.extend(pages(2 + 3 * request as u32, 1, 3 - (cut / block) as u32));
            let want = alone(&SMALL, rows, &ids);
            // Its own prefill writes again what its shared pages hold: the same bytes.
            let got = rig.request(request as u32, &table, &ids[..len], &[len]);
            same(&got, &want[..len * vocab], vocab as u32, format!("prefill {request}"));
            requests.push((ids, table, want));
        }
        for step in 0..12 {
            let pieces: Vec<Piece<'_>> = requests
                .iter()
                .zip(lens)
                .zip(0..)
                .map(|(((ids, pages, _), len), slot)| {
                    let start = len + step;
                    Piece { slot, pages, start, tokens: &ids[start..=start] }
                })
                .collect();
            for (i, got) in rig.batch(&pieces).iter().enumerate() {
                let want = &requests[i].2[(lens[i] + step) * vocab..][..vocab];
                same(got, want, vocab as u32, format!("{rows:?}, request {i}, step {step}"));
            }
        }
    }
}

#[test]
fn every_machine_and_thread_count() {
    let ids = small_tokens(3, 530);
    let want = alone(&SMALL, Rows::F32, &ids);
    let mut tried = 0;
    for isa in [Isa::Scalar, Isa::Avx2, Isa::Avx512] {
        let geometry = harness::geometry(SMALL.config(), Rows::F32, 0);
        let threads = std::num::NonZeroUsize::MIN;
        if Model::new(SMALL.clone(), &geometry, RunOptions { isa, threads }).is_err() {
            eprintln!("{isa:?} is not tested: the machine lacks it");
            continue;
        }
        tried += 1;
        // Plain operations are slow where fused multiply-adds are emulated.
        let all = [1, 2, 3, 7];
        for &threads in if isa == Isa::Scalar { &all[2..3] } else { &all[..] } {
            for chunks in [&[530][..], &[1, 200, 49, 48], &[97]] {
                let mut rig = Rig::new(&SMALL, Rows::F32, isa, threads);
                let got = rig.request(0, &pages(2, 1, 3), &ids, chunks);
                let what = format!("{isa:?} on {threads} threads in {chunks:?}");
                same(&got, &want, SMALL.config().vocab_size, what);
            }
        }
    }
    assert!(tried > 0, "scalar operations exist everywhere");
}

/// The demo model's row widths and expert count take other tiles than the small ones.
#[test]
fn production_rows_on_every_machine() {
    let weights = Arc::new(Weights::seeded(&ModelConfig::demo(), 1).expect("weights"));
    let vocab = weights.config().vocab_size;
    let ids = tokens(4, 300, vocab);
    let want = alone(&weights, Rows::Bf16, &ids);
    let got = Rig::new(&weights, Rows::Bf16, Isa::Auto, 2).request(0, &pages(2, 1, 2), &ids, &[61]);
    same(&got, &want, vocab, "chunks of 61");
    for isa in [Isa::Avx2, Isa::Avx512] {
        let geometry = harness::geometry(weights.config(), Rows::Bf16, 0);
        let threads = std::num::NonZeroUsize::MIN;
        if Model::new(weights.clone(), &geometry, RunOptions { isa, threads }).is_ok() {
            let mut rig = Rig::new(&weights, Rows::Bf16, isa, 1);
            let got = rig.request(0, &pages(2, 1, 2), &ids, &[300]);
            same(&got, &want, vocab, format!("{isa:?}"));
        }
    }
    // Plain operations are slow where fused multiply-adds are emulated: a few tokens do.
    let few = 12;
    let got = Rig::new(&weights, Rows::Bf16, Isa::Scalar, 2).request(
        0,
        &pages(2, 1, 2),
        &ids[..few],
        &[5],
    );
    same(&got, &want[..few * vocab as usize], vocab, "scalar");
}

#[test]
fn what_memory_held_before() {
    let ids = small_tokens(5, 560);
    let vocab = SMALL.config().vocab_size;
    for rows in [Rows::F32, Rows::Bf16, Rows::Fp8, Rows::Fp8Fp4] {
        let want = alone(&SMALL, rows, &ids);
        for pattern in [NAN, HUGE] {
            for chunks in [&[560][..], &[3, 250, 1]] {
                let mut rig = Rig::new(&SMALL, rows, Isa::Auto, 2);
                rig.fill(pattern);
                let got = rig.request(3, &pages(4, 9, 3), &ids, chunks);
                same(&got, &want, vocab, format!("{rows:?} over {pattern:x?} in {chunks:?}"));
            }
        }
        // Another tenant's valid state in every slot and page.
        let mut rig = Rig::new(&SMALL, rows, Isa::Auto, 2);
        for slot in 0..SLOTS {
            let theirs = small_tokens(50 + slot, 900);
            rig.request(slot, &pages(slot * 4, 1, 4), &theirs, &[300]);
        }
        let got = rig.request(3, &pages(4, 9, 3), &ids, &[100]);
        same(&got, &want, vocab, format!("{rows:?} over another tenant's state"));
    }
}

#[test]
fn nobody_elses_memory_is_touched() {
    let ids = small_tokens(6, 300);
    let mut rig = Rig::new(&SMALL, Rows::Fp8Fp4, Isa::Auto, 2);
    rig.fill(HUGE);
    let mine = pages(4, 9, 2);
    rig.request(3, &mine, &ids, &[100]);
    let layout = rig.geometry.layout();
    let intact = |bytes: &[u8]| bytes.iter().all(|&b| b == HUGE[0]);
    for region in 0..layout.page.regions().len() {
        let others = (0..PAGES).map(PageId::new).filter(|page| !mine.contains(page));
        for page in others {
            assert!(intact(rig.arena.page(region, page)), "page {page} was written");
        }
    }
    for plane in 0..layout.slot.planes().len() {
        for slot in (0..SLOTS).filter(|&slot| slot != 3) {
            assert!(intact(rig.arena.slot(plane, SlotId::new(slot))), "slot {slot} was written");
        }
    }
}

/// The last layer skips tokens whose logits nobody wants: neither the wanted ones nor a byte of pages
/// and slots may tell, whatever kind of layer it is and whoever shares the batch.
#[test]
fn what_nobody_wants_shows_nowhere() {
    use LogitsWanted::{All, Last, None};
    let ids = [small_tokens(11, 400), small_tokens(12, 400)];
    for (ratio, rows) in [(0, Rows::Fp8), (128, Rows::Bf16), (4, Rows::Bf16), (4, Rows::Fp8Fp4)] {
        let mut config = small_config();
        config.cache.compress_ratios[3] = ratio;
        let weights = Arc::new(Weights::seeded(&config, 3).expect("weights"));
        let vocab = config.vocab_size as usize;
        // Chunks of both requests, what is wanted of them, and threads.
        let run = |wanted: &[[LogitsWanted; 2]], threads: usize| {
            let mut rig = Rig::new(&weights, rows, Isa::Auto, threads);
            rig.fill(HUGE);
            let tables = [pages(1, 2, 2), pages(0, 2, 2)];
            let (mut at, mut out) = ([0; 2], Vec::new());
            for (i, wanted) in wanted.iter().enumerate() {
                // One of them decodes while the other prefills, and the other way round.
                let lens = if i % 2 == 0 { [130, 1] } else { [1, 127] };
                let batch: Vec<SequenceChunk<'_>> = (0..2)
                    .map(|r| SequenceChunk {
                        slot: SlotId::new(r as u32),
                        pages: &tables[r],
                        start: at[r] as u32,
                        tokens: &ids[r][at[r]..][..lens[r]],
                        before: Option::None,
                        logits: wanted[r],
                    })
                    .collect();
                let mut logits = Logits::new();
                rig.model.forward(&mut rig.arena, &batch, &mut logits).expect("a sound batch");
                for (r, wanted) in wanted.iter().enumerate() {
                    let all = logits.sequence(r).to_vec();
                    let rows = match wanted {
                        None => 0,
                        Last => 1,
                        All => lens[r],
                    };
                    assert_eq!(all.len(), rows * vocab);
                    out.push(all);
                    at[r] += lens[r];
                }
            }
            let layout = rig.geometry.layout();
            let mut bytes: Vec<u8> = Vec::new();
            for region in 0..layout.page.regions().len() {
                (0..PAGES).for_each(|p| bytes.extend(rig.arena.page(region, PageId::new(p))));
            }
            for plane in 0..layout.slot.planes().len() {
                (0..SLOTS).for_each(|s| bytes.extend(rig.arena.slot(plane, SlotId::new(s))));
            }
            (out, bytes)
        };
        let (want, memory) = run(&[[All, All]; 4], 1);
        for (threads, wanted) in [
            (1, [[None, None], [Last, None], [None, Last], [Last, Last]]),
            (2, [[Last, None], [None, None], [All, None], [None, All]]),
            (3, [[None, Last], [All, Last], [Last, None], [Last, Last]]),
        ] {
            let (got, bytes) = run(&wanted, threads);
            for (got, want) in got.iter().zip(&want) {
                let tail = &want[want.len() - got.len()..];
                same(got, tail, config.vocab_size, format!("ratio {ratio}, {wanted:?}"));
            }
            assert!(bytes == memory, "ratio {ratio}, {wanted:?}: memory differs");
        }
    }
}

/// Copies what an image rule carries at `boundary`, by the layout's own words.
fn carry(rig: &mut Rig, image: &ImageLayout, boundary: Boundary, from: SlotId, to: SlotId) {
    for segment in image.segments() {
        for (plane, range) in harness::ranges(segment, boundary) {
            let bytes = rig.arena.slot(plane, from)[range.clone()].to_vec();
            rig.arena.slot_mut(plane, to)[range].copy_from_slice(&bytes);
        }
    }
}

/// Computes a prefix, lets its request run on as far as the rings have slack for, carries its image
/// to another slot and resumes there.
fn resume(
    rig: &mut Rig,
    rule: ImageRule,
    ids: &[u32],
    boundary: usize,
    chunks: [usize; 2],
) -> Vec<f32> {
    let drafts = rig.geometry.options().draft_tokens;
    let options = CacheOptions { image: rule, ..*rig.geometry.options() };
    let image = Dsv4Geometry::new(rig.geometry.config(), &options).expect("caches");
    rig.fill(NAN);
    let mut table = pages(1, 5, 4);
    rig.request(2, &table, &ids[..boundary], &[chunks[0]]);
    // What the first request did after the boundary must not matter; its pages there are its own.
    let keep = boundary / 256;
    let mut scratch = table[..keep].to_vec();
    scratch.extend(pages(22, 1, 1));
    let overrun = small_tokens(70, drafts as usize);
    if !overrun.is_empty() {
        rig.batch(&[Piece { slot: 2, pages: &scratch, start: boundary, tokens: &overrun }]);
    }
    let at = BLOCK_TOKENS.boundary_at(statepages_page::Tokens::new(boundary as u32));
    let at = at.expect("a boundary");
    carry(rig, &image.layout().image, at, SlotId::new(2), SlotId::new(4));
    table.truncate(keep);
    table.extend(pages(3, 4, 4 - keep as u32));
    rig.resumed(4, &table, ids, boundary, chunks[1])
}

#[test]
fn resuming_from_an_image() {
    let ids = small_tokens(7, 900);
    let vocab = SMALL.config().vocab_size as usize;
    for rows in Rows::SERVED {
        for drafts in 0..=5 {
            let mut rig = Rig::with_drafts(&SMALL, rows, Isa::Auto, 2, drafts);
            let want = rig.request(0, &pages(0, 1, 4), &ids, &[900]);
            for (i, rule) in (0..).zip([ImageRule::Whole, ImageRule::Carried, ImageRule::Live]) {
                // Every rule at every boundary, spread over the rings.
                let boundary = 256 * (1 + (i + drafts as usize) % 3);
                let rest = resume(&mut rig, rule, &ids, boundary, [200, 900]);
                let what = format!("{rows:?}: {rule:?} image at {boundary} with {drafts} drafts");
                same(&rest, &want[boundary * vocab..], vocab as u32, what);
            }
        }
    }
}

#[test]
fn a_wrong_slot_shows() {
    let ids = small_tokens(8, 300);
    let vocab = SMALL.config().vocab_size as usize;
    let mut rig = Rig::new(&SMALL, Rows::Bf16, Isa::Auto, 2);
    let want = rig.request(0, &pages(0, 1, 2), &ids, &[300]);
    rig.request(1, &pages(4, 1, 2), &small_tokens(9, 256), &[256]);
    let (slot, start, tokens) = (1, 256, &ids[256..]);
    let got = rig.batch(&[Piece { slot, pages: &pages(0, 1, 2), start, tokens }]);
    let rows = got[0].chunks(vocab).zip(want[start * vocab..].chunks(vocab));
    let wrong = rows.filter(|(got, want)| got != want).count();
    assert_eq!(wrong, tokens.len(), "another request's window changes every token");
}

#[test]
fn rejected_drafts_leave_no_trace() {
    let ids = small_tokens(10, 400);
    let vocab = SMALL.config().vocab_size as usize;
    for (drafts, rows) in [(1, Rows::F32), (3, Rows::Fp8), (5, Rows::Fp8Fp4)] {
        let mut rig = Rig::with_drafts(&SMALL, rows, Isa::Auto, 2, drafts);
        let want = rig.request(0, &pages(0, 1, 2), &ids, &[400]);
        let table = pages(7, 3, 2);
        rig.fill(NAN);
        let mut got = rig.request(1, &table, &ids[..120], &[120]);
        let mut start = 120;
        while start < ids.len() {
            // The first `right` drafts are accepted; the others are another token's.
            let right = start % (drafts as usize + 1);
            let end = ids.len().min(start + 1 + drafts as usize);
            let mut round = ids[start..end].to_vec();
            for wrong in round.iter_mut().skip(1 + right) {
                *wrong = (*wrong + 1) % vocab as u32;
            }
            let rows = rig.batch(&[Piece { slot: 1, pages: &table, start, tokens: &round }]);
            let accepted = round.len().min(1 + right);
            got.extend_from_slice(&rows[0][..accepted * vocab]);
            start += accepted;
        }
        same(&got, &want, vocab as u32, format!("{drafts} drafts"));
    }
}

/// Logits of the requests of [`batch_mixes`], each alone, by row format.
static WANT: [OnceLock<Vec<Vec<f32>>>; 3] = [const { OnceLock::new() }; 3];

/// Logits of the request of [`resumed_is_cold`], alone, by row format.
static COLD: [OnceLock<Vec<f32>>; 3] = [const { OnceLock::new() }; 3];

/// One request's turn in a batch: which request, and how many of its tokens.
fn schedule() -> impl Strategy<Value = Vec<Vec<(usize, usize)>>> {
    let length = prop_oneof![3 => Just(1usize), 2 => 2usize..9, 2 => 9usize..150];
    let batch = proptest::collection::vec((0usize..4, length), 1..5);
    proptest::collection::vec(batch, 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..Default::default() })]

    #[test]
    fn batch_mixes(schedule in schedule(), threads in 1usize..4, format in 0usize..3) {
        let vocab = SMALL.config().vocab_size as usize;
        let requests: Vec<Vec<u32>> =
            [300, 257, 130, 511].iter().zip(0..).map(|(&n, seed)| small_tokens(seed, n)).collect();
        let rows = Rows::SERVED[format];
        let want = WANT[format].get_or_init(|| {
            requests.iter().map(|ids| alone(&SMALL, rows, ids)).collect()
        });
        let mut rig = Rig::new(&SMALL, rows, Isa::Auto, threads);
        rig.fill(NAN);
        let tables: Vec<Vec<PageId>> = (0..4).map(|i| pages(i * 3, 13, 2)).collect();
        let mut done = [0usize; 4];
        for batch in schedule {
            let mut pieces: Vec<(usize, Piece<'_>)> = Vec::new();
            for (request, len) in batch {
                let ids = &requests[request];
                let end = ids.len().min(done[request] + len);
                let start = done[request];
                if pieces.iter().any(|(other, _)| *other == request) || start == end {
                    continue;
                }
                let slot = 5 - request as u32;
                let (pages, tokens) = (&tables[request][..], &ids[start..end]);
                pieces.push((request, Piece { slot, pages, start, tokens }));
            }
            let batch: Vec<Piece<'_>> = pieces.iter().map(|(_, piece)| *piece).collect();
            for ((request, piece), got) in pieces.iter().zip(rig.batch(&batch)) {
                let from = piece.start * vocab;
                let want = &want[*request][from..from + got.len()];
                prop_assert_eq!(first_difference(&got, want), None);
                done[*request] += piece.tokens.len();
            }
        }
    }

    #[test]
    fn resumed_is_cold(
        format in 0usize..3,
        drafts in 0u32..6,
        rule in 0usize..3,
        boundary in 1usize..4,
        beyond in prop_oneof![1usize..6, 126usize..131, 254usize..259],
        first in prop_oneof![1usize..5, 120usize..140, 250usize..260],
        second in 1usize..200,
    ) {
        let vocab = SMALL.config().vocab_size as usize;
        let ids = small_tokens(7, 900);
        let rows = Rows::SERVED[format];
        let want = COLD[format].get_or_init(|| alone(&SMALL, rows, &ids));
        let mut rig = Rig::with_drafts(&SMALL, rows, Isa::Auto, 2, drafts);
        let rule = [ImageRule::Whole, ImageRule::Carried, ImageRule::Live][rule];
        let boundary = 256 * boundary;
        let ids = &ids[..ids.len().min(boundary + beyond)];
        let rest = resume(&mut rig, rule, ids, boundary, [first, second]);
        let want = &want[boundary * vocab..ids.len() * vocab];
        prop_assert_eq!(first_difference(&rest, want), None);
    }
}
