//! The checkpoint store.
use statepages_page::CheckpointId;
/// Checkpoint records.
#[derive(Debug)]
pub(crate) struct CheckpointStore;
impl CheckpointStore {
    pub(crate) fn oldest_evictable(&self, _: Option<CheckpointId>) -> Option<CheckpointId> {
        None
    }
    pub(crate) fn evictable_after(
        &self,
        _: CheckpointId,
        _: Option<CheckpointId>,
    ) -> Option<CheckpointId> {
        None
    }
    pub(crate) fn is_evictable(&self, _: CheckpointId, _: Option<CheckpointId>) -> bool {
        false
    }
}
