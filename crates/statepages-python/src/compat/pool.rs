//! The block pool of engines that have one: names and behaviour of `block_pool`, on the pages of
//! `statepages-store`.
//!
//! ```text
//!   vacant --pop--> held --allocate--> live(shares) --free, last share--> cached (has a hash) | vacant
//!   cached --pop--> held with its content ---^  ^-- claim --- cached
//!   vacant | cached --reserve_units--> raw unit(owner, piece) --release_units--> vacant
//! ```
//!
//! Invariants:
//! - the owner of every page is known by `PagePool` alone; this file adds what a page holds (hash and
//!   tokens) and which hash leads to it;
//! - no lock is held while Python code runs: `on_evict` is called when a change is complete, from a
//!   list of what went, and may call anything;
//! - a hash leads to at most one page; a page may hold a hash that leads to a newer page.
//!
//! The store of `page_unit_checkpoint` takes and gives back pages through [`PoolCore`].

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pyclass::CompareOp;
use pyo3::types::{PyDict, PyList, PyTuple, PyType};
use pyo3::{PyTraverseError, PyVisit};
use statepages_page::{CheckpointId, ContentKey, PageId, Pages};
use statepages_store::parts::{Afterlife, Claim, KeyTable, PagePool, RetireTop, Unshare};

use super::key::{hash_of, key_of};
use super::no_surplus;
use super::values::{BlockRetirement, Field};
use crate::bug::{bug, guarded, lock};

/// The key of -1.
const NO_HASH: ContentKey = ContentKey::from_raw(u128::MAX);

/// Owners that are no checkpoint's are numbered from here.
const OTHER_OWNERS: u64 = 1 << 63;

/// Pages, what they hold, and which hash leads where.
pub(crate) struct PoolCore {
    pub(crate) pool: PagePool,
    index: KeyTable,
    contents: Vec<Content>,
    /// Tokens of contents that have gone. Dropped with no lock held: they are anybody's objects.
    pub(crate) trash: Vec<Py<PyAny>>,
    /// Units held by each numbered owner.
    owned: BTreeMap<u64, u32>,
    next_owner: u64,
}

#[derive(Default)]
struct Content {
    hash: Option<ContentKey>,
    /// Tokens as the engine gave them.
    tokens: Option<Py<PyAny>>,
    /// Whether the index leads here, under whatever hash.
    indexed: bool,
}

impl PoolCore {
    fn page(&self, id: i64) -> PyResult<PageId> {
        let page = u32::try_from(id).ok().filter(|&page| page < self.pool.total());
        page.map(PageId::new).ok_or_else(|| {
            bug(format!("block id: expected one of {}, got {id}", self.pool.total()))
        })
    }

    /// Takes the content of a page away and says which hash no longer leads to it.
    fn drop_content(&mut self, page: PageId) -> Option<ContentKey> {
        let Content { tokens, indexed, .. } = std::mem::take(&mut self.contents[page.index()]);
        self.trash.extend(tokens);
        indexed.then(|| {
            let key = self.index.key(page.raw());
            self.index.remove(page.raw());
            ContentKey::from_raw(key)
        })
    }

    /// Takes `count` free pages, vacant before cached, each ready to be given content.
    ///
    /// # Panics
    /// Where so many are not free.
    pub(crate) fn hold(
        &mut self,
        count: u32,
        pages: &mut Vec<PageId>,
        evicted: &mut Vec<ContentKey>,
    ) {
        for _ in 0..count {
            let page = self.pool.hold_vacant().unwrap_or_else(|| {
                let page = self.pool.oldest_cached().expect("so many pages are free");
                self.pool.set_aside(page);
                evicted.extend(self.drop_content(page));
                page
            });
            pages.push(page);
        }
    }

    fn is_used(&self, page: PageId) -> bool {
        self.pool.shares(page) > 0 || self.pool.raw_owner(page).is_some()
    }

    fn ref_count(&self, page: PageId) -> u32 {
        self.pool.shares(page).max(u32::from(self.pool.raw_owner(page).is_some()))
    }
}

/// The pool.
#[pyclass(module = "statepages.compat.block_pool", subclass, frozen)]
pub(crate) struct BlockPool {
    pub(crate) core: Arc<Mutex<PoolCore>>,
    on_evict: Mutex<Option<Py<PyAny>>>,
    /// Numbers of owners that are no checkpoint's. Looked into with no lock held: owners compare by
    /// Python code.
    owners: Py<PyDict>,
    max_blocks: u32,
}

#[pymethods]
impl BlockPool {
    #[new]
    #[classmethod]
    #[pyo3(
        signature = (num_blocks, on_evict=None, max_blocks=None, *args, **kwargs),
        text_signature = "(num_blocks, on_evict=None, max_blocks=None)"
    )]
    fn new(
        cls: &Bound<'_, PyType>,
        num_blocks: i64,
        on_evict: Option<Py<PyAny>>,
        max_blocks: Option<i64>,
        args: &Bound<'_, PyTuple>,
        kwargs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let py = cls.py();
        no_surplus(&py.get_type::<Self>(), cls, args, kwargs)?;
        let wanted = max_blocks.unwrap_or(num_blocks);
        let max = u32::try_from(wanted).ok().filter(|&max| max < u32::MAX);
        let now = u32::try_from(num_blocks).ok();
        let (Some(now), Some(max)) = (now.filter(|&now| i64::from(now) <= wanted), max) else {
            return Err(PyValueError::new_err(format!(
                "num_blocks: expected 0 <= num_blocks <= max_blocks, got {num_blocks} of {wanted}"
            )));
        };
        let mut contents = Vec::new();
        contents.resize_with(max as usize, Content::default);
        let core = PoolCore {
            pool: PagePool::new(Pages::new(now), Pages::new(max)),
            index: KeyTable::new(max),
            contents,
            trash: Vec::new(),
            owned: BTreeMap::new(),
            next_owner: OTHER_OWNERS,
        };
        Ok(Self {
            core: Arc::new(Mutex::new(core)),
            on_evict: Mutex::new(on_evict),
            owners: PyDict::new(py).unbind(),
            max_blocks: max,
        })
    }

    #[pyo3(signature = (*_args, **_kwargs))]
    #[expect(clippy::unused_self, reason = "for a subclass to call; `__new__` has done it all")]
    fn __init__(&self, _args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) {}

    #[getter]
    fn num_blocks(&self) -> PyResult<u32> {
        Ok(lock(&self.core)?.pool.total())
    }

    #[getter]
    pub(crate) const fn max_blocks(&self) -> u32 {
        self.max_blocks
    }

    #[getter]
    fn num_free(&self) -> PyResult<u32> {
        Ok(lock(&self.core)?.pool.free())
    }

    #[getter]
    fn num_used(&self) -> PyResult<u32> {
        let core = lock(&self.core)?;
        Ok(core.pool.live() + core.pool.raw())
    }

    #[getter]
    fn num_indexed(&self) -> PyResult<u32> {
        Ok(lock(&self.core)?.index.len())
    }

    /// Called with a hash after the entry that led to a reused block has gone.
    #[getter(on_evict)]
    fn get_on_evict(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        Ok(lock(&self.on_evict)?.as_ref().map(|call| call.clone_ref(py)))
    }

    #[setter(on_evict)]
    fn set_on_evict(&self, call: Option<Py<PyAny>>) -> PyResult<()> {
        let old = std::mem::replace(&mut *lock(&self.on_evict)?, call);
        drop(old);
        Ok(())
    }

    fn has_free(&self, n: i64) -> PyResult<bool> {
        Ok(i64::from(lock(&self.core)?.pool.free()) >= n)
    }

    fn is_used(&self, block_id: i64) -> PyResult<bool> {
        let core = lock(&self.core)?;
        let page = core.page(block_id)?;
        Ok(core.is_used(page))
    }

    fn block(&self, block_id: i64) -> PyResult<Block> {
        let page = lock(&self.core)?.page(block_id)?;
        Ok(self.view(page))
    }

    fn lookup(&self, h: &Bound<'_, PyAny>) -> PyResult<i64> {
        let key = key_of(h)?;
        Ok(lock(&self.core)?.index.get(key.raw()).map_or(-1, i64::from))
    }

    /// Gives a live block its hash and tokens and leads the hash to it.
    fn publish(&self, block_id: i64, h: &Bound<'_, PyAny>, token_ids: Py<PyAny>) -> PyResult<()> {
        let key = key_of(h)?;
        if key == NO_HASH {
            return Err(PyValueError::new_err("h: expected a hash, got -1, which means none"));
        }
        let mut core = lock(&self.core)?;
        let page = core.page(block_id)?;
        if core.pool.shares(page) == 0 {
            return Err(bug(format!("block {block_id} is not live: it cannot be published")));
        }
        if let Some(older) = core.index.get(key.raw()) {
            core.index.remove(older);
            core.contents[older as usize].indexed = false;
        }
        if core.contents[page.index()].indexed {
            core.index.remove(page.raw());
        }
        core.index.insert(key.raw(), page.raw());
        let content = Content { hash: Some(key), tokens: Some(token_ids), indexed: true };
        let old = std::mem::replace(&mut core.contents[page.index()], content);
        drop(core);
        drop(old);
        Ok(())
    }

    /// Makes nothing findable. Live blocks keep what they hold; cached ones have nothing left.
    fn clear_index(&self) -> PyResult<()> {
        let mut core = lock(&self.core)?;
        core.index.clear();
        for content in &mut core.contents {
            content.indexed = false;
        }
        while let Some(page) = core.pool.oldest_cached() {
            core.pool.vacate(page);
            let gone = core.drop_content(page);
            assert!(gone.is_none(), "nothing leads to a page any more");
        }
        unlock_and_drop(core);
        Ok(())
    }

    /// Takes a block off the free list: vacant before cached, lowest first, longest free first.
    fn pop(&self) -> PyResult<u32> {
        let mut core = lock(&self.core)?;
        if let Some(page) = core.pool.hold_vacant() {
            return Ok(page.raw());
        }
        let page = core.pool.oldest_cached().ok_or_else(|| bug("no free block to pop"))?;
        core.pool.set_aside(page);
        Ok(page.raw())
    }

    /// Gives a block fresh content; `on_evict` hears of the hash that led to it.
    fn allocate(&self, block_id: i64, py: Python<'_>) -> PyResult<Block> {
        let mut core = lock(&self.core)?;
        let page = core.page(block_id)?;
        if core.pool.is_cached(page) {
            core.pool.set_aside(page);
        } else if core.pool.is_vacant(page) {
            core.pool.hold(page);
        } else if !core.pool.is_held(page) {
            return Err(bug(format!("block {block_id} is in use: it cannot be allocated")));
        }
        let evicted = core.drop_content(page);
        core.pool.share(page);
        unlock_and_drop(core);
        if let Some(key) = evicted {
            self.tell_evicted(py, &[key])?;
        }
        Ok(self.view(page))
    }

    /// Takes a share of a block with content.
    fn claim(&self, block_id: i64) -> PyResult<Block> {
        let mut core = lock(&self.core)?;
        let page = core.page(block_id)?;
        if core.pool.shares(page) == 0 && !core.pool.is_cached(page) {
            return Err(bug(format!("block {block_id} has no content to claim")));
        }
        match core.pool.claim(page) {
            Claim::Shared | Claim::Revived => {}
        }
        drop(core);
        Ok(self.view(page))
    }

    /// Gives up a share.
    fn free(&self, block_id: i64) -> PyResult<()> {
        let mut core = lock(&self.core)?;
        let page = core.page(block_id)?;
        if core.pool.raw_owner(page).is_some() {
            return Err(bug(format!(
                "block {block_id} is a reserved unit: release_units frees it"
            )));
        }
        if core.pool.shares(page) == 0 {
            return Err(bug(format!("block {block_id} is not live: it cannot be freed")));
        }
        let hashed = core.contents[page.index()].hash.is_some();
        let afterlife = if hashed { Afterlife::Cached } else { Afterlife::Vacant };
        match core.pool.unshare(page, afterlife) {
            Unshare::Shared | Unshare::Freed => {}
        }
        Ok(())
    }

    /// Takes `count` blocks as raw units of `owner`, or nothing.
    fn reserve_units<'py>(
        &self,
        count: i64,
        owner: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyList>>> {
        let py = owner.py();
        if owner.is_none() {
            return Err(PyValueError::new_err("owner: expected a hashable object, got None"));
        }
        let count = u64::try_from(count).map_err(|_| {
            PyValueError::new_err(format!("count: expected zero or more units, got {count}"))
        })?;
        let id = if let Some(id) = self.known_owner(owner)? {
            id
        } else {
            let mut core = lock(&self.core)?;
            let id = core.next_owner;
            core.next_owner += 1;
            drop(core);
            self.owners.bind(py).set_item(owner, id)?;
            id
        };
        let (mut pages, mut evicted) = (Vec::new(), Vec::new());
        {
            let mut core = lock(&self.core)?;
            if count > u64::from(core.pool.free()) {
                let forget = id >= OTHER_OWNERS && !core.owned.contains_key(&id);
                drop(core);
                if forget {
                    self.owners.bind(py).del_item(owner)?;
                }
                return Ok(None);
            }
            core.hold(count as u32, &mut pages, &mut evicted);
            core.pool.make_units(&pages, CheckpointId::new(id));
            *core.owned.entry(id).or_default() += count as u32;
            unlock_and_drop(core);
        }
        if let Err(error) = self.tell_evicted(py, &evicted) {
            let mut core = lock(&self.core)?;
            guarded(|| core.pool.release_units(&pages, CheckpointId::new(id)))?;
            return Err(error);
        }
        PyList::new(py, pages.iter().map(|page| page.raw())).map(Some)
    }

    /// Gives back raw units, each of which is its owner's piece of that number.
    fn release_units(&self, unit_ids: Vec<i64>, owner: &Bound<'_, PyAny>) -> PyResult<()> {
        let mut sorted = unit_ids.clone();
        sorted.sort_unstable();
        sorted.dedup();
        if sorted.len() != unit_ids.len() {
            let message = format!("unit_ids: expected distinct units, got {unit_ids:?}");
            return Err(PyValueError::new_err(message));
        }
        let id = self.known_owner(owner)?;
        let mut core = lock(&self.core)?;
        let mut pages = Vec::with_capacity(unit_ids.len());
        for (piece, &unit) in (0u32..).zip(&unit_ids) {
            let page = core.page(unit)?;
            let owned = core.pool.raw_owner(page);
            if owned.is_none() || owned != id.map(|id| (CheckpointId::new(id), piece)) {
                return Err(bug(format!("unit {unit} is not piece {piece} of its owner")));
            }
            pages.push(page);
        }
        let Some(id) = id else { return Ok(()) };
        core.pool.release_units(&pages, CheckpointId::new(id));
        let last = core.owned.get_mut(&id).is_some_and(|units| {
            *units = units.saturating_sub(pages.len() as u32);
            *units == 0
        });
        if last {
            core.owned.remove(&id);
        }
        drop(core);
        if last && id >= OTHER_OWNERS {
            self.owners.bind(owner.py()).del_item(owner)?;
        }
        Ok(())
    }

    /// Adds up to `count` blocks at the top and says how many.
    fn extend(&self, count: i64) -> PyResult<u32> {
        let count = u32::try_from(count.max(0)).unwrap_or(u32::MAX);
        Ok(lock(&self.core)?.pool.extend(Pages::new(count)).get())
    }

    /// Takes the highest block out of the pool, its content to a free one where it is live.
    fn retire_top(&self, py: Python<'_>) -> PyResult<Option<BlockRetirement>> {
        let mut evicted = Vec::new();
        let answer = {
            let mut core = lock(&self.core)?;
            let top = core.pool.total().checked_sub(1).map(PageId::new);
            let live = top.is_some_and(|top| core.pool.shares(top) > 0);
            if live
                && core.pool.vacant() == 0
                && let Some(page) = core.pool.oldest_cached()
            {
                core.pool.vacate(page);
                evicted.extend(core.drop_content(page));
            }
            let answer = match core.pool.retire_top() {
                RetireTop::Retired(page) => Some((page, None)),
                RetireTop::Evicted(page) => {
                    evicted.extend(core.drop_content(page));
                    Some((page, None))
                }
                RetireTop::Moved { from, to } => {
                    let content = std::mem::take(&mut core.contents[from.index()]);
                    if content.indexed {
                        let key = core.index.key(from.raw());
                        core.index.remove(from.raw());
                        core.index.insert(key, to.raw());
                    }
                    core.contents[to.index()] = content;
                    Some((from, Some(to)))
                }
                RetireTop::Refused(_) | RetireTop::Empty => None,
            };
            unlock_and_drop(core);
            answer
        };
        self.tell_evicted(py, &evicted)?;
        let Some((page, to)) = answer else { return Ok(None) };
        let moved_to = to.map_or(-1, |to| i64::from(to.raw()));
        Ok(Some(BlockRetirement {
            retired: Field::Python(page.raw().into_pyobject(py)?.into_any().unbind()),
            moved_to: Field::Python(moved_to.into_pyobject(py)?.into_any().unbind()),
        }))
    }

    /// Audits every page, in O(n).
    fn _check(&self) -> PyResult<()> {
        let core = lock(&self.core)?;
        guarded(|| core.pool.check())
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.owners)?;
        if let Ok(call) = self.on_evict.try_lock()
            && let Some(call) = &*call
        {
            visit.call(call)?;
        }
        Ok(())
    }

    fn __clear__(&self) {
        if let Ok(mut call) = self.on_evict.try_lock() {
            *call = None;
        }
    }
}

impl BlockPool {
    fn view(&self, page: PageId) -> Block {
        Block { place: Place::Pool { core: Arc::clone(&self.core), page } }
    }

    /// Tells Python which hashes lead nowhere now. All are told; the first exception is raised.
    pub(crate) fn tell_evicted(&self, py: Python<'_>, evicted: &[ContentKey]) -> PyResult<()> {
        if evicted.is_empty() {
            return Ok(());
        }
        let Some(call) = self.get_on_evict(py)? else { return Ok(()) };
        let mut told = Ok(());
        for &key in evicted {
            let answer = hash_of(py, key).and_then(|hash| call.call1(py, (hash,)));
            told = told.and(answer.map(drop));
        }
        told
    }

    /// The number of an owner; none where it is no checkpoint and owns nothing.
    fn known_owner(&self, owner: &Bound<'_, PyAny>) -> PyResult<Option<u64>> {
        if let Ok(pair) = owner.cast::<PyTuple>()
            && let Ok((kind, id)) = pair.extract::<(String, u64)>()
            && kind == "state-checkpoint"
            && id < OTHER_OWNERS
        {
            return Ok(Some(id));
        }
        let id = self.owners.bind(owner.py()).get_item(owner)?;
        id.map(|id| id.extract()).transpose()
    }
}

/// One block: of a pool, where it shows what is, or by itself.
#[pyclass(module = "statepages.compat.block_pool")]
pub(crate) struct Block {
    place: Place,
}

enum Place {
    Pool { core: Arc<Mutex<PoolCore>>, page: PageId },
    Alone { id: i64, ref_count: i64, hash: Py<PyAny>, tokens: Py<PyAny> },
}

#[pymethods]
impl Block {
    #[new]
    fn new(block_id: i64, py: Python<'_>) -> PyResult<Self> {
        let (hash, tokens) = ((-1i64).into_pyobject(py)?.into_any().unbind(), empty(py));
        Ok(Self { place: Place::Alone { id: block_id, ref_count: 0, hash, tokens } })
    }

    #[getter]
    fn block_id(&self) -> i64 {
        match &self.place {
            Place::Pool { page, .. } => i64::from(page.raw()),
            Place::Alone { id, .. } => *id,
        }
    }

    #[getter]
    fn ref_count(&self) -> PyResult<i64> {
        match &self.place {
            Place::Pool { core, page } => Ok(i64::from(lock(core)?.ref_count(*page))),
            Place::Alone { ref_count, .. } => Ok(*ref_count),
        }
    }

    #[getter]
    fn hash<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match &self.place {
            Place::Pool { core, page } => {
                let hash = lock(core)?.contents[page.index()].hash;
                hash.map_or_else(
                    || Ok((-1i64).into_pyobject(py)?.into_any()),
                    |key| hash_of(py, key),
                )
            }
            Place::Alone { hash, .. } => Ok(hash.bind(py).clone()),
        }
    }

    #[getter]
    fn token_ids(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let tokens = match &self.place {
            Place::Pool { core, page } => lock(core)?.contents[page.index()]
                .tokens
                .as_ref()
                .map(|tokens| tokens.clone_ref(py)),
            Place::Alone { tokens, .. } => Some(tokens.clone_ref(py)),
        };
        Ok(tokens.unwrap_or_else(|| empty(py)))
    }

    /// Sets hash and tokens; what the index finds does not change.
    fn update(&mut self, hash: &Bound<'_, PyAny>, token_ids: Py<PyAny>) -> PyResult<()> {
        match &mut self.place {
            Place::Pool { core, page } => {
                let key = key_of(hash)?;
                let mut core = lock(core)?;
                if core.pool.shares(*page) == 0 {
                    return Err(bug(format!("block {} is not live", page.raw())));
                }
                let content = &mut core.contents[page.index()];
                content.hash = (key != NO_HASH).then_some(key);
                let old = content.tokens.replace(token_ids);
                drop(core);
                drop(old);
            }
            Place::Alone { hash: own, tokens, .. } => {
                *own = hash.clone().unbind();
                *tokens = token_ids;
            }
        }
        Ok(())
    }

    /// One reference, no hash, no tokens.
    fn reset(&mut self, py: Python<'_>) -> PyResult<()> {
        match &mut self.place {
            Place::Pool { core, page } => {
                let mut core = lock(core)?;
                if core.pool.shares(*page) != 1 {
                    return Err(bug(format!("block {} has not one reference", page.raw())));
                }
                // Whoever resets a block knows what it held: no eviction is told.
                let _: Option<ContentKey> = core.drop_content(*page);
                unlock_and_drop(core);
            }
            Place::Alone { ref_count, hash, tokens, .. } => {
                *ref_count = 1;
                *hash = (-1i64).into_pyobject(py)?.into_any().unbind();
                *tokens = empty(py);
            }
        }
        Ok(())
    }

    fn __richcmp__(&self, other: &Bound<'_, PyAny>, op: CompareOp) -> PyResult<bool> {
        let same = other.cast::<Self>().is_ok_and(|other| {
            match (&self.place, other.try_borrow().as_ref().map(|other| &other.place)) {
                (
                    Place::Pool { core, page },
                    Ok(Place::Pool { core: other_core, page: other_page }),
                ) => Arc::ptr_eq(core, other_core) && page == other_page,
                _ => false,
            }
        });
        match op {
            CompareOp::Eq => Ok(same),
            CompareOp::Ne => Ok(!same),
            _ => Err(pyo3::exceptions::PyTypeError::new_err("blocks have no order")),
        }
    }

    fn __hash__(&self) -> i64 {
        self.block_id()
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let (id, refs, hash) = (self.block_id(), self.ref_count()?, self.hash(py)?);
        Ok(format!("Block(block_id={id}, ref_count={refs}, hash={hash})"))
    }
}

/// Ends a lock, then drops the objects that have become nobody's: their ends may call anything.
pub(crate) fn unlock_and_drop(mut core: MutexGuard<'_, PoolCore>) {
    let trash = std::mem::take(&mut core.trash);
    drop(core);
    drop(trash);
}

fn empty(py: Python<'_>) -> Py<PyAny> {
    PyList::empty(py).into_any().unbind()
}
