//! The page pool.
use statepages_page::PageId;
/// Pages and their owners.
#[derive(Debug)]
pub(crate) struct PagePool;
impl PagePool {
    pub(crate) fn oldest_cached(&self) -> Option<PageId> {
        None
    }
    pub(crate) fn cached_after(&self, _: PageId) -> Option<PageId> {
        None
    }
    pub(crate) fn is_cached(&self, _: PageId) -> bool {
        false
    }
}
