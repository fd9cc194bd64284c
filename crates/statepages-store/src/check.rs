//! The audit of the whole, for tests and simulators.

use crate::control::ControlPlane;
use crate::index::Trace;

impl ControlPlane {
    /// Audits everything in O(n).
    ///
    /// # Panics
    /// Where an invariant does not hold.
    pub fn check(&self) {
        self.pool.check();
        self.store.check(&self.pool);
        self.policy.check();
        assert_eq!(self.pool.held(), 0, "no page is held between operations");
        let taken = self.slots.check();
        assert!(self.residents <= taken, "every residency has a slot");
        self.counters().check(&self.gauges());
        for key in self.store.ready_keys() {
            assert!(self.index.page(key).is_some(), "READY {key:?} is found by the index");
        }
        let filed = self.pending.keys().chain(self.store.keys());
        for page in filed.filter_map(|key| self.index.page(key)) {
            assert!(self.index.trace(page) != Trace::Never, "{page}'s key is known to be filed");
        }
        for page in self.index.pages() {
            let live = self.pool.shares(page) > 0;
            assert!(live || self.pool.is_cached(page), "{page} is found and holds no content");
        }
        for page in self.pool.cached_pages() {
            assert!(self.index.key(page).is_some(), "cached {page} is found by the index");
        }
        for slot in self.restores.slots() {
            assert!(
                self.slots.is_taken(slot),
                "a queued restore aims at {slot}, which nobody holds"
            );
        }
        let pins = self.restores.len() + self.restores_in_flight;
        assert_eq!(self.store.pins(), pins, "every pin is one queued or carried restore");
        for slot in self.pending.slots() {
            assert!(self.slots.is_taken(slot), "a pending store reads {slot}, which nobody holds");
        }
    }
}
