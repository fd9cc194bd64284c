//! The host backend: copies at once, on the caller's thread. It is the specification of every
//! other backend.

use std::marker::PhantomData;

use statepages_page::{Boundary, MaintenanceOps, PageId, Pages, Segment, SlotId, StateLayout};

use crate::{
    Batcher, CopyBackend, CopyError, CopyOrder, CopyPlan, CopyState, CopyTicket, HostArena,
    OpChecker, Pieces, Refused, Step,
};

/// Executes batches on host memory: the project's own [`HostArena`], or an engine's.
///
/// Every move is a multiple of 16 bytes long and starts at one, in slots and in pages: layouts are
/// checked for it, and an arena's buffers start on a cache line.
pub struct HostBackend<M = HostArena> {
    copier: Copier,
    tickets: Tickets,
    memory: PhantomData<fn(&mut M)>,
}

/// Pages and slots in host memory. Places lie within the layout that the memory was made for.
pub trait HostMemory {
    /// Number of pages.
    fn pages(&self) -> Pages;

    /// Number of slots.
    fn slots(&self) -> u32;

    /// Copies bytes of a slot into a page.
    fn scatter(&mut self, from: SlotPlace, to: PagePlace, bytes: usize);

    /// Copies bytes of a page into a slot.
    fn gather(&mut self, from: PagePlace, to: SlotPlace, bytes: usize);

    /// Copies a whole slot, plane by plane.
    fn move_slot(&mut self, from: SlotId, to: SlotId);
}

/// A byte of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlotPlace {
    /// The slot.
    pub slot: SlotId,
    /// Plane of the slot.
    pub plane: usize,
    /// Byte in the slot's part of the plane.
    pub offset: usize,
}

/// A byte of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PagePlace {
    /// The page.
    pub page: PageId,
    /// Region of the page.
    pub region: usize,
    /// Byte in the page's part of the region.
    pub offset: usize,
}

/// Issues tickets and holds the failure latch: what every backend has beside its copies.
pub struct Tickets {
    next: u64,
    /// Tickets below this were issued before the last reset.
    valid_from: u64,
    health: Health,
}

enum Health {
    Sound,
    Failed,
}

/// Which way an image goes.
#[derive(Clone, Copy)]
enum Direction {
    SlotToUnits,
    UnitsToSlot,
}

/// The moves themselves, without tickets or latch.
pub(crate) struct Copier {
    layout: StateLayout,
    plan: CopyPlan,
    checker: OpChecker,
    batcher: Batcher,
}

impl HostBackend {
    /// A backend for an arena of `layout`.
    pub fn new(layout: StateLayout) -> Self {
        Self::over(layout)
    }
}

impl<M: HostMemory> HostBackend<M> {
    /// A backend for memory of `layout`, whoever owns it.
    pub fn over(layout: StateLayout) -> Self {
        Self { copier: Copier::new(layout), tickets: Tickets::new(), memory: PhantomData }
    }

    /// The plan by which images are copied.
    pub fn plan(&self) -> &CopyPlan {
        &self.copier.plan
    }
}

impl<M: HostMemory> CopyBackend for HostBackend<M> {
    type Memory = M;

    fn layout(&self) -> &StateLayout {
        self.copier.layout()
    }

    fn order(&self) -> CopyOrder {
        CopyOrder::Ordered
    }

    fn submit(&mut self, memory: &mut M, ops: &MaintenanceOps) -> Result<CopyTicket, CopyError> {
        self.tickets.sound()?;
        let checked = self.copier.check(memory, ops);
        self.tickets.latch(checked.map_err(CopyError::from))?;
        self.copier.run(memory, ops, usize::MAX);
        Ok(self.tickets.issue())
    }

    fn poll(&mut self, _: &mut M, ticket: CopyTicket) -> Result<CopyState, CopyError> {
        self.tickets.valid(ticket)?;
        Ok(CopyState::Done)
    }

    fn reset(&mut self) {
        self.tickets.reset();
    }
}

impl Tickets {
    /// None issued, and sound.
    #[expect(clippy::new_without_default, reason = "a backend states that it starts sound")]
    pub const fn new() -> Self {
        Self { next: 0, valid_from: 0, health: Health::Sound }
    }

    /// The next ticket.
    pub fn issue(&mut self) -> CopyTicket {
        self.next += 1;
        CopyTicket::new(self.next - 1)
    }

    /// Refuses while a failure is latched.
    pub fn sound(&self) -> Result<(), CopyError> {
        match self.health {
            Health::Sound => Ok(()),
            Health::Failed => Err(CopyError::PriorFailure),
        }
    }

    /// Refuses while a failure is latched, and for a ticket from before the last reset.
    ///
    /// # Panics
    /// For a ticket that was never issued.
    pub fn valid(&self, ticket: CopyTicket) -> Result<(), CopyError> {
        assert!(ticket.raw() < self.next, "{ticket:?} was never issued");
        self.sound()?;
        if ticket.raw() < self.valid_from { Err(CopyError::PriorFailure) } else { Ok(()) }
    }

    /// Passes a result on, and latches where it is an error.
    pub fn latch<T>(&mut self, result: Result<T, CopyError>) -> Result<T, CopyError> {
        if result.is_err() {
            self.health = Health::Failed;
        }
        result
    }

    /// Ends a failure; tickets issued so far are void.
    pub fn reset(&mut self) {
        self.health = Health::Sound;
        self.valid_from = self.next;
    }
}

impl Copier {
    pub(crate) fn new(layout: StateLayout) -> Self {
        Self {
            plan: CopyPlan::new(&layout),
            checker: OpChecker::new(&layout),
            batcher: Batcher::new(),
            layout,
        }
    }

    pub(crate) fn layout(&self) -> &StateLayout {
        &self.layout
    }

    pub(crate) fn check(
        &mut self,
        memory: &impl HostMemory,
        ops: &MaintenanceOps,
    ) -> Result<(), Refused> {
        self.checker.check(ops, memory.pages(), memory.slots())
    }

    /// Runs the first `moves` relocations and spans of a checked bundle.
    pub(crate) fn run(&mut self, memory: &mut impl HostMemory, ops: &MaintenanceOps, moves: usize) {
        let mut moves = moves;
        for launch in self.batcher.place(ops, memory.slots()) {
            for &step in launch {
                let (slot, boundary, units, direction) = match step {
                    Step::Relocate { from, to } => {
                        if moves > 0 {
                            memory.move_slot(from, to);
                            moves -= 1;
                        }
                        continue;
                    }
                    Step::Store { op, from } => {
                        let op = &ops.stores[op as usize];
                        (from, op.boundary, op.units, Direction::SlotToUnits)
                    }
                    Step::Restore { op, to } => {
                        let op = &ops.restores[op as usize];
                        (to, op.boundary, op.units, Direction::UnitsToSlot)
                    }
                };
                let image = ImageCopy { slot, boundary, units: ops.units(units), direction };
                image.run(memory, &self.plan, self.layout.image.segments(), &mut moves);
            }
        }
    }
}

/// One image on its way.
struct ImageCopy<'a> {
    slot: SlotId,
    boundary: Boundary,
    units: &'a [PageId],
    direction: Direction,
}

impl ImageCopy<'_> {
    fn run(
        &self,
        memory: &mut impl HostMemory,
        plan: &CopyPlan,
        segments: &[Segment],
        moves: &mut usize,
    ) {
        for span in plan.spans().iter().take(*moves) {
            let segment = &segments[span.segment as usize];
            let (slot, plane) = (self.slot, usize::from(segment.plane()));
            let (page, region) = (self.units[span.unit as usize], span.region as usize);
            let mut at = span.region_offset as usize;
            for piece in Pieces::new(segment, span.segment_offset, span.len, self.boundary) {
                let bytes = piece.len as usize;
                let in_slot = SlotPlace { slot, plane, offset: piece.offset as usize };
                let in_page = PagePlace { page, region, offset: at };
                match self.direction {
                    Direction::SlotToUnits => memory.scatter(in_slot, in_page, bytes),
                    Direction::UnitsToSlot => memory.gather(in_page, in_slot, bytes),
                }
                at += bytes;
            }
        }
        *moves = moves.saturating_sub(plan.spans().len());
    }
}
