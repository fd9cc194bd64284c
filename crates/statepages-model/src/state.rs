//! Pages and slots of a batch: everything that outlives a forward is read and written here.
//!
//! Order of one layer, for every sequence of the batch:
//!
//! ```text
//! pool      reads compressor rings before the chunk, and the chunk's projections
//! publish   writes the entries to pages, then the rings: last pool_len positions of the chunk
//! keys      reads indexer rows of every visible entry         CSA layers
//! entries   reads compressed rows that some token attends to
//! window    reads window rows before the chunk, then writes the chunk's last ones
//! ```
//!
//! - A ring row is read only for a position that the request has computed; positions before zero
//!   are left out of a pool. So a recycled slot needs no reset.
//! - The window is read before it is written: with rings no longer than window and drafts, a long
//!   chunk's last rows replace rows that its first tokens see.
//! - Rows that nothing reads are not decoded: what lies in them cannot show.
//! - A decode step's rows are read where its token is computed, indexer rows where they are scored;
//!   its window after it is written, for then the ring holds the token's own row and no longer the one
//!   that left its window.

use std::ops::Range;

use prefetch_index::prefetch_index;
use statepages_copy::HostArena;
use statepages_geometry::{PageBytes, SlotBytes, StateField};
use statepages_page::{PageId, SlotId, Tokens};

use crate::batch::{Span, Token};
use crate::kernel::lanes::Machine;
use crate::kernel::norm::{NormWeight, rms_norm};
use crate::kernel::pool::{Pooled, pool};
use crate::pass::Pass;
use crate::rope::{Angle, Turn, turn};
use crate::row::{PARTS_MAX, RowFormat};
use crate::tile::{Projections, Rows32, Tile};
use crate::weights::CompressorWeights;

/// The tiles of a batch, all of the same length but the last.
#[derive(Clone, Copy)]
pub(crate) struct Tiles<'a> {
    pub(crate) tiles: &'a [Tile],
    pub(crate) len: usize,
}

/// Entries that a batch completes in one layer.
#[derive(Debug, Default)]
pub(crate) struct Entries {
    /// Sequence and entry number.
    places: Vec<(usize, u32)>,
    /// `[entries][width]`.
    main: Vec<f32>,
    /// `[entries][index width]`, in CSA layers.
    index: Vec<f32>,
}

/// What one compressor pools.
struct Source<'a> {
    weights: &'a CompressorWeights,
    of_tile: fn(&Tile) -> &Projections,
    value: StateField,
    score: StateField,
}

fn sources<'a>(pass: &Pass<'a>) -> (Source<'a>, Option<Source<'a>>) {
    let compressed = pass.weights.attn.compressed.as_ref();
    let compressed = compressed.expect("the layer has compressed entries");
    let (value, score) = if pass.indexed() {
        (StateField::CsaMainKv, StateField::CsaMainScore)
    } else {
        (StateField::HcaMainKv, StateField::HcaMainScore)
    };
    let main = Source { weights: &compressed.main, of_tile: |tile| &tile.main, value, score };
    let index = compressed.indexer.as_ref().map(|indexer| Source {
        weights: &indexer.compressor,
        of_tile: |tile| &tile.index,
        value: StateField::CsaIndexKv,
        score: StateField::CsaIndexScore,
    });
    (main, index)
}

fn slot_row<'a>(arena: &'a HostArena, span: &Span<'_>, at: &SlotBytes) -> &'a [u8] {
    &arena.slot(at.plane, span.slot)[at.bytes.clone()]
}

/// Calls `write` with each span and the planes of its slot, in parallel.
fn write_slots<'a>(
    pass: &Pass<'a>,
    arena: &mut HostArena,
    write: impl Fn(&Span<'a>, &mut [&mut [u8]]) + Sync,
) {
    let spans = &pass.plan.spans;
    let slots: Vec<SlotId> = spans.iter().map(|span| span.slot).collect();
    let planes = arena.planes();
    let mut lent = arena.slots_mut(&slots);
    let slots = spans.iter().zip(lent.chunks_exact_mut(planes));
    pass.all.each(slots, |(span, planes)| write(span, planes));
}

fn page_row_mut<'a>(arena: &'a mut HostArena, pages: &[PageId], at: &PageBytes) -> &'a mut [u8] {
    &mut arena.page_mut(at.region, pages[at.block])[at.bytes.clone()]
}

/// The parts of an indexer row.
fn index_parts(pass: &Pass<'_>, entry: u32) -> impl Iterator<Item = (usize, PageBytes)> {
    let row = pass.core.geometry.indexer_row(pass.cache, entry);
    [Some(row.data), row.scales].into_iter().flatten().enumerate()
}

impl Tiles<'_> {
    /// Bytes of a token's KV row.
    fn kv_bytes(&self, flat: usize, row_bytes: usize) -> &[u8] {
        &self.tiles[flat / self.len].kv_bytes[flat % self.len * row_bytes..][..row_bytes]
    }

    /// KV row of a token.
    fn kv(&self, flat: usize, width: usize) -> &[f32] {
        self.row(flat, |tile| (&tile.kv, width))
    }

    /// Entries that the span's tokens chose.
    fn chosen(&self, pass: &Pass<'_>, span: &Span<'_>) -> impl Iterator<Item = &u32> {
        let tiles = span.first / self.len..span.flat(span.end).div_ceil(self.len);
        self.tiles[tiles].iter().flat_map(|tile| {
            let tokens = tile.tokens.iter().enumerate();
            let own = |(i, token): (usize, &Token)| {
                (pass.plan.span(token).slot == span.slot).then_some(i)
            };
            tokens.filter_map(own).flat_map(|i| tile.chosen_of(i))
        })
    }

    fn row<'a>(&'a self, flat: usize, rows: impl Fn(&'a Tile) -> (&'a [f32], usize)) -> &'a [f32] {
        let (data, columns) = rows(&self.tiles[flat / self.len]);
        &data[flat % self.len * columns..][..columns]
    }
}

impl Entries {
    /// Pools the entries that the batch completes.
    pub(crate) fn pool(&mut self, pass: &Pass<'_>, tiles: Tiles<'_>, arena: &HostArena) {
        self.places.clear();
        for (sequence, span) in pass.plan.spans.iter().enumerate() {
            let entries = span.start / pass.ratio..span.end / pass.ratio;
            self.places.extend(entries.map(|entry| (sequence, entry)));
        }
        let dims = &pass.core.dims;
        let (main, index) = sources(pass);
        let places = &self.places;
        let fill = |rows: &mut Vec<f32>, width: usize, source: &Source<'_>| {
            rows.resize(places.len() * width, 0.0);
            let rows = rows.chunks_exact_mut(width).zip(places);
            pass.all.each(rows, |(row, &place)| source.pool(pass, tiles, arena, place, row));
        };
        fill(&mut self.main, dims.width, &main);
        if let Some(index) = index {
            fill(&mut self.index, dims.index_width, &index);
        }
    }

    /// Writes the pooled entries to their pages, then the compressor rings.
    pub(crate) fn publish(&self, pass: &Pass<'_>, tiles: Tiles<'_>, arena: &mut HostArena) {
        let (core, dims) = (pass.core, &pass.core.dims);
        let pages = |sequence: usize| pass.plan.spans[sequence].pages;
        for (row, &(sequence, entry)) in self.main.chunks_exact(dims.width).zip(&self.places) {
            for part in 0..core.kv.parts() {
                let at = core.geometry.compressed_row(pass.cache, entry, part);
                core.kv.encode(core.machine, part, row, page_row_mut(arena, pages(sequence), &at));
            }
        }
        let (main, index) = sources(pass);
        if index.is_some() {
            let rows = self.index.chunks_exact(dims.index_width).zip(&self.places);
            for (row, &(sequence, entry)) in rows {
                for (part, at) in index_parts(pass, entry) {
                    core.index.encode(
                        core.machine,
                        part,
                        row,
                        page_row_mut(arena, pages(sequence), &at),
                    );
                }
            }
        }
        write_slots(pass, arena, |span, planes| {
            for source in [Some(&main), index.as_ref()].into_iter().flatten() {
                source.store(pass, tiles, span, planes);
            }
        });
    }
}

impl Source<'_> {
    /// Pools one entry: its positions from the ring before the chunk, from the chunk after.
    fn pool(
        &self,
        pass: &Pass<'_>,
        tiles: Tiles<'_>,
        arena: &HostArena,
        (sequence, entry): (usize, u32),
        row: &mut [f32],
    ) {
        let (core, width) = (pass.core, row.len());
        let span = &pass.plan.spans[sequence];
        let end = (entry + 1) * pass.ratio;
        let first = end.saturating_sub(pass.pool_len());
        let pooled: Vec<Pooled<'_>> = (first..end)
            .map(|position| {
                // Where pools overlap, the previous block's share is the first half of the columns.
                let own = pass.indexed() && position >= end - pass.ratio;
                let columns = if own { width..2 * width } else { 0..width };
                let (value, score) = if position < span.start {
                    let ring = |field| {
                        let position = Tokens::new(position);
                        let at = core.geometry.state_row(pass.cache, field, position);
                        bytemuck::cast_slice(slot_row(arena, span, &at))
                    };
                    (ring(self.value), ring(self.score))
                } else {
                    let flat = span.flat(position);
                    let of = |tile| (self.of_tile)(tile);
                    (
                        tiles.row(flat, |tile| (&of(tile).values, of(tile).columns)),
                        tiles.row(flat, |tile| (&of(tile).scores, of(tile).columns)),
                    )
                };
                Pooled { value: &value[columns.clone()], score: &score[columns] }
            })
            .collect();
        pool(core.machine, &pooled, row);
        let norm = NormWeight::Each(&self.weights.norm);
        rms_norm(core.machine, row, width, norm, core.config.rms_norm_eps);
        let mut angles = vec![Angle::default(); pass.rope().pairs()];
        pass.rope().angles(entry * pass.ratio, &mut angles);
        turn(row, &angles, Turn::Forward);
    }

    /// Writes the chunk's last positions to the rings in the planes of its slot.
    fn store(&self, pass: &Pass<'_>, tiles: Tiles<'_>, span: &Span<'_>, planes: &mut [&mut [u8]]) {
        let first = span.end.saturating_sub(pass.pool_len()).max(span.start);
        for position in first..span.end {
            let flat = span.flat(position);
            let of = |tile| (self.of_tile)(tile);
            let value = tiles.row(flat, |tile| (&of(tile).values, of(tile).columns));
            let score = tiles.row(flat, |tile| (&of(tile).scores, of(tile).columns));
            for (field, row) in [(self.value, value), (self.score, score)] {
                let position = Tokens::new(position);
                let at = pass.core.geometry.state_row(pass.cache, field, position);
                planes[at.plane][at.bytes].copy_from_slice(bytemuck::cast_slice(row));
            }
        }
    }
}

impl Rows32 {
    /// Makes room for `rows` rows of each sequence and fills them, sequences in parallel; what a
    /// caller does not fill is left as it was. Whoever computes a decode step reads its rows itself.
    fn read<'a>(
        &mut self,
        pass: &Pass<'a>,
        width: usize,
        rows: impl Fn(&Span<'a>) -> u32,
        fill: impl Fn(&Span<'a>, &mut [f32]) + Sync,
    ) {
        self.first.clear();
        let spans = &pass.plan.spans;
        let read = |span: &Span<'a>| !span.is_step() && pass.attends(span);
        let rows = |span: &Span<'a>| if read(span) { rows(span) } else { 0 };
        let mut total = 0;
        for span in spans {
            self.first.push(total);
            total += rows(span) as usize;
        }
        let mut rest = self.data.fit(total * width);
        let mut parts = Vec::with_capacity(spans.len());
        for span in spans {
            let (part, others) = rest.split_at_mut(rows(span) as usize * width);
            parts.push((span, part));
            rest = others;
        }
        parts.retain(|(span, _)| read(span));
        pass.all.each(parts.into_iter(), |(span, part)| fill(span, part));
    }

    /// Indexer rows of every entry that the batch can see.
    pub(crate) fn read_keys(&mut self, pass: &Pass<'_>, arena: &HostArena) {
        let width = pass.core.dims.index_width;
        let visible = |span: &Span<'_>| span.end / pass.ratio;
        self.read(pass, width, visible, |span, rows| {
            read_keys(pass, arena, span, 0, rows);
        });
    }

    /// Compressed rows that some token of the batch attends to.
    pub(crate) fn read_entries(&mut self, pass: &Pass<'_>, tiles: Tiles<'_>, arena: &HostArena) {
        let width = pass.core.dims.width;
        let visible = |span: &Span<'_>| span.end / pass.ratio;
        self.read(pass, width, visible, |span, rows| {
            let mut needed = vec![!pass.indexed(); visible(span) as usize];
            if pass.indexed() {
                for &entry in tiles.chosen(pass, span) {
                    needed[entry as usize] = true;
                }
            }
            // Runs of needed rows.
            let mut first = 0;
            for run in needed.chunk_by(|a, b| a == b) {
                if run[0] {
                    let entries: Vec<u32> = (first..first + run.len() as u32).collect();
                    let rows = &mut rows[first as usize * width..][..run.len() * width];
                    read_entries(pass, arena, span, &entries, rows);
                }
                first += run.len() as u32;
            }
        });
    }

    /// Window rows of every token of the batch.
    pub(crate) fn read_window(&mut self, pass: &Pass<'_>, tiles: Tiles<'_>, arena: &HostArena) {
        let (width, window) = (pass.core.dims.width, pass.core.dims.window);
        let seen = |span: &Span<'_>| span.end - span.window_start(window);
        self.read(pass, width, seen, |span, rows| {
            let first = span.window_start(window);
            let (old, own) = rows.split_at_mut((span.start - first) as usize * width);
            read_window(pass, arena, span, first, old);
            for (position, row) in (span.start..).zip(own.chunks_exact_mut(width)) {
                row.copy_from_slice(tiles.kv(span.flat(position), width));
            }
        });
    }
}

/// Rows behind a run that are asked for before it is decoded: scattered rows lie in pages of memory of
/// their own, where a processor foresees nothing.
const ROWS_AHEAD: usize = 12;

/// Bytes that memory hands out at a time.
const LINE_BYTES: usize = 64;

/// Decodes rows. `place(i, part)` is where the bytes of row `i` lie: a page or slot, and a range of
/// it; `ahead(i)` rows from it on, at least itself, lie one behind the other.
fn decode_rows<'a>(
    format: RowFormat,
    machine: Machine,
    width: usize,
    rows: &mut [f32],
    ahead: impl Fn(usize) -> usize,
    place: impl Fn(usize, usize) -> (&'a [u8], Range<usize>),
) {
    let total = rows.len() / width;
    let fetch = |i: usize| {
        for part in 0..format.parts() {
            let (bytes, row) = place(i, part);
            row.step_by(LINE_BYTES).for_each(|line| prefetch_index(bytes, line));
        }
    };
    let (mut first, mut asked) = (0, 0);
    while first < total {
        let count = ahead(first).min(total - first);
        let near = (first + count + ROWS_AHEAD).min(total);
        (asked..near).for_each(&fetch);
        asked = near;
        let rows = &mut rows[first * width..][..count * width];
        let mut parts = [&[][..]; PARTS_MAX];
        for (part, of_rows) in parts.iter_mut().enumerate().take(format.parts()) {
            let (bytes, row) = place(first, part);
            let all = row.start..row.start + count * row.len();
            debug_assert_eq!(place(first + count - 1, part).1.end, all.end, "a run has no gaps");
            *of_rows = &bytes[all];
        }
        format.decode(machine, parts, width, rows);
        first += count;
    }
}

/// Indexer rows of the entries from `first` on.
pub(crate) fn read_keys(
    pass: &Pass<'_>,
    arena: &HostArena,
    span: &Span<'_>,
    first: u32,
    rows: &mut [f32],
) {
    let core = pass.core;
    let each = core.geometry.entries_per_block(pass.cache);
    let ahead = |i: usize| (each - (first + i as u32) % each) as usize;
    decode_rows(core.index, core.machine, core.dims.index_width, rows, ahead, |i, part| {
        let row = core.geometry.indexer_row(pass.cache, first + i as u32);
        let at = if part == 0 { Some(row.data) } else { row.scales };
        let at = at.expect("a format of two parts has scales");
        (arena.page(at.region, span.pages[at.block]), at.bytes)
    });
}

/// Compressed rows, of these entries.
pub(crate) fn read_entries(
    pass: &Pass<'_>,
    arena: &HostArena,
    span: &Span<'_>,
    entries: &[u32],
    rows: &mut [f32],
) {
    if entries.is_empty() {
        // A layer of a window alone has no blocks of entries.
        return;
    }
    let core = pass.core;
    let each = core.geometry.entries_per_block(pass.cache);
    let ahead = |i: usize| {
        let block = (each - entries[i] % each) as usize;
        let next = entries[i..].iter().take(block).zip(entries[i]..);
        next.take_while(|(entry, next)| *entry == next).count()
    };
    decode_rows(core.kv, core.machine, core.dims.width, rows, ahead, |i, part| {
        let at = core.geometry.compressed_row(pass.cache, entries[i], part);
        (arena.page(at.region, span.pages[at.block]), at.bytes)
    });
}

/// Window rows of the positions from `first` on, from the ring.
pub(crate) fn read_window(
    pass: &Pass<'_>,
    arena: &HostArena,
    span: &Span<'_>,
    first: u32,
    rows: &mut [f32],
) {
    let core = pass.core;
    let position = |i: usize| Tokens::new(first + i as u32);
    let ahead = |i: usize| core.geometry.window_run(pass.cache, position(i)) as usize;
    decode_rows(core.kv, core.machine, core.dims.width, rows, ahead, |i, part| {
        let at = core.geometry.window_row(pass.cache, position(i), part);
        (arena.slot(at.plane, span.slot), at.bytes)
    });
}

/// Writes the chunks' last rows to the window rings.
pub(crate) fn store_window(pass: &Pass<'_>, tiles: Tiles<'_>, arena: &mut HostArena) {
    let core = pass.core;
    write_slots(pass, arena, |span, planes| {
        for position in span.end.saturating_sub(core.dims.window).max(span.start)..span.end {
            let mut row = tiles.kv_bytes(span.flat(position), core.kv_parts.iter().sum());
            for (part, &len) in core.kv_parts.iter().enumerate() {
                let at = core.geometry.window_row(pass.cache, Tokens::new(position), part);
                let (bytes, rest) = row.split_at(len);
                planes[at.plane][at.bytes].copy_from_slice(bytes);
                row = rest;
            }
        }
    });
}
