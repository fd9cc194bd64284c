//! What a memory budget holds: slots first, pages from the rest.

use std::fmt;

use statepages_page::{Bytes, Pages};

use crate::Dsv4Geometry;

/// What an engine is given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Budget {
    /// Memory for slots and pages together.
    pub memory: Bytes,
    /// Resident requests, each of one slot.
    pub max_seqs: u32,
}

/// What fits into a [`Budget`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capacity {
    /// Slots: one per resident request.
    pub slots: u32,
    /// Pages, shared by blocks and checkpoint units.
    pub pages: Pages,
    /// Whole images that fit if every page is a unit.
    pub images: u32,
    /// Tokens of KV that fit if every page is a block.
    pub tokens: u64,
    /// Memory of all slots.
    pub slot_bytes: Bytes,
    /// Memory of all pages.
    pub page_bytes: Bytes,
    /// Memory that makes no whole page.
    pub unused: Bytes,
}

/// A budget that cannot serve.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CapacityError {
    /// No request may be resident.
    NoSequences,
    /// The slots alone exceed the memory.
    SlotsExceedMemory {
        /// Slots asked for.
        max_seqs: u32,
        /// Bytes of one slot.
        slot: Bytes,
        /// The memory.
        memory: Bytes,
    },
    /// The slots leave fewer pages than one image takes, so no checkpoint could ever be kept.
    PoolBelowOneImage {
        /// Pages that fit.
        pages: Pages,
        /// Units of one image.
        units: Pages,
        /// The memory.
        memory: Bytes,
        /// The least memory that serves with as many slots.
        needed: Bytes,
    },
    /// More pages than page ids.
    TooManyPages {
        /// Pages that would fit.
        pages: u64,
    },
}

impl fmt::Display for CapacityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSequences => f.write_str("max-seqs: expected at least 1, got 0"),
            Self::SlotsExceedMemory { max_seqs, slot, memory } => write!(
                f,
                "memory: too small for the slots: expected more than {max_seqs} * {slot} bytes, \
                 got {memory}"
            ),
            Self::PoolBelowOneImage { pages, units, memory, needed } => write!(
                f,
                "memory: too small for one checkpoint beside the slots: {pages} pages fit and an \
                 image takes {units}; expected at least {needed} bytes, got {memory}"
            ),
            Self::TooManyPages { pages } => {
                write!(f, "memory: expected at most {} pages, got {pages}", u32::MAX)
            }
        }
    }
}

impl std::error::Error for CapacityError {}

impl Dsv4Geometry {
    /// What `budget` holds: `pages = (memory - max_seqs * slot_bytes) / page_unit_bytes`.
    pub fn capacity(&self, budget: Budget) -> Result<Capacity, CapacityError> {
        let Budget { memory, max_seqs } = budget;
        if max_seqs == 0 {
            return Err(CapacityError::NoSequences);
        }
        let (page, slot) = (self.layout().page.page_bytes(), self.layout().slot.slot_bytes());
        let slots = slot.get().checked_mul(u64::from(max_seqs)).filter(|&all| all < memory.get());
        let Some(slots) = slots.map(Bytes::new) else {
            return Err(CapacityError::SlotsExceedMemory { max_seqs, slot, memory });
        };
        let rest = memory - slots;
        let pages = rest.get() / page.get();
        let pages = u32::try_from(pages)
            .map(Pages::new)
            .map_err(|_| CapacityError::TooManyPages { pages })?;
        let units = self.layout().units_per_checkpoint();
        if pages < units {
            let image = Bytes::new(u64::from(units.get()) * page.get());
            let needed = slots + image;
            return Err(CapacityError::PoolBelowOneImage { pages, units, memory, needed });
        }
        let page_bytes = Bytes::new(u64::from(pages.get()) * page.get());
        Ok(Capacity {
            slots: max_seqs,
            pages,
            images: pages.get() / units.get(),
            tokens: u64::from(pages.get()) * u64::from(self.options().block.get()),
            slot_bytes: slots,
            page_bytes,
            unused: rest - page_bytes,
        })
    }
}
