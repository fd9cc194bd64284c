//! What start-up logs: the geometry that checkpoints rest on.

use std::fmt;

use statepages_page::{Bytes, LayoutId, Pages};
use statepages_store::CheckpointSpec;

/// Facts of an engine whose state is copied, for its first log lines.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StartupFacts {
    /// Bytes of one unit: of one page.
    pub unit: Bytes,
    /// Bytes of one slot.
    pub slot: Bytes,
    /// Bytes of one image.
    pub image: Bytes,
    /// Units that one checkpoint takes.
    pub units_per_checkpoint: Pages,
    /// Name of the layout.
    pub layout: LayoutId,
}

impl StartupFacts {
    /// The facts of a validated spec.
    pub fn of(spec: &CheckpointSpec) -> Self {
        Self {
            unit: spec.page_unit_bytes(),
            slot: spec.slot_bytes(),
            image: spec.image_bytes(),
            units_per_checkpoint: spec.units_per_checkpoint(),
            layout: spec.layout().clone(),
        }
    }

    /// The image's share of the slot, in `(0, 1]`.
    pub fn image_share(&self) -> f64 {
        self.image.get() as f64 / self.slot.get() as f64
    }
}

impl fmt::Display for StartupFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "checkpoints of layout {}: {} units of {} bytes each; image {} of the slot's {} bytes \
             ({:.1} %)",
            self.layout,
            self.units_per_checkpoint,
            self.unit,
            self.image,
            self.slot,
            100.0 * self.image_share()
        )
    }
}
