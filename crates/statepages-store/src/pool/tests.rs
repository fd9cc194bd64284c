//! The pool in lockstep with a naive twin.

use proptest::prelude::*;
use statepages_page::{CheckpointId, PageId, Pages};

use super::{Afterlife, Claim, PagePool, RetireTop, Unshare};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Vacant,
    Cached,
    Held,
    Live(u32),
    Raw(u64, u32),
}

#[derive(Debug)]
struct Naive {
    pages: Vec<Kind>,
    max: usize,
    /// Cached pages, freed longest ago first.
    order: Vec<usize>,
}

#[derive(Clone, Debug)]
enum Act {
    Hold,
    Share(u8),
    Claim(u8),
    Unshare(u8, bool),
    Vacate(u8),
    MakeImage(u8),
    ReleaseImage(u8),
    AsideAndBack(u8),
    GiveUpAside(u8, u8),
    Extend(u8),
    RetireTop,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        6 => Just(Act::Hold),
        6 => any::<u8>().prop_map(Act::Share),
        3 => any::<u8>().prop_map(Act::Claim),
        5 => (any::<u8>(), any::<bool>()).prop_map(|(p, c)| Act::Unshare(p, c)),
        2 => any::<u8>().prop_map(Act::Vacate),
        2 => (1..5u8).prop_map(Act::MakeImage),
        2 => any::<u8>().prop_map(Act::ReleaseImage),
        2 => any::<u8>().prop_map(Act::AsideAndBack),
        2 => (any::<u8>(), any::<u8>()).prop_map(|(p, n)| Act::GiveUpAside(p, n)),
        1 => (0..4u8).prop_map(Act::Extend),
        2 => Just(Act::RetireTop),
    ]
}

fn pick(all: &[usize], which: u8) -> Option<(PageId, usize)> {
    let at = *all.get(usize::from(which) % all.len().max(1))?;
    Some((PageId::new(at as u32), at))
}

impl Naive {
    fn of(&self, wanted: impl Fn(Kind) -> bool) -> Vec<usize> {
        (0..self.pages.len()).filter(|&page| wanted(self.pages[page])).collect()
    }

    fn compare(&self, real: &PagePool) {
        real.check();
        let count = |wanted: fn(Kind) -> bool| self.of(wanted).len() as u32;
        assert_eq!(real.total() as usize, self.pages.len());
        assert_eq!(real.vacant(), count(|k| k == Kind::Vacant));
        assert_eq!(real.cached(), count(|k| k == Kind::Cached));
        assert_eq!(real.held(), count(|k| k == Kind::Held));
        assert_eq!(real.live(), count(|k| matches!(k, Kind::Live(_))));
        assert_eq!(real.raw(), count(|k| matches!(k, Kind::Raw(..))));
        let order: Vec<usize> = real.cached_pages().map(PageId::index).collect();
        assert_eq!(order, self.order);
        assert_eq!(real.oldest_cached().map(PageId::index), order.first().copied());
        for (at, kind) in self.pages.iter().enumerate() {
            let page = PageId::new(at as u32);
            let shares = if let Kind::Live(shares) = kind { *shares } else { 0 };
            assert_eq!(real.shares(page), shares);
            let raw = if let Kind::Raw(owner, piece) = *kind {
                Some((CheckpointId::new(owner), piece))
            } else {
                None
            };
            assert_eq!(real.raw_owner(page), raw);
        }
    }

    /// Does one act to both and compares what they answer.
    fn act(&mut self, real: &mut PagePool, act: &Act, next_owner: &mut u64) {
        match *act {
            Act::Hold => {
                let want = self.of(|k| k == Kind::Vacant).first().copied();
                assert_eq!(real.hold_vacant().map(PageId::index), want);
                if let Some(page) = want {
                    self.pages[page] = Kind::Held;
                }
            }
            Act::Share(which) => {
                if let Some((page, at)) = pick(&self.of(|k| k == Kind::Held), which) {
                    real.share(page);
                    self.pages[at] = Kind::Live(1);
                }
            }
            Act::Claim(which) => {
                let some = self.of(|k| matches!(k, Kind::Live(_) | Kind::Cached));
                if let Some((page, at)) = pick(&some, which) {
                    let want = if let Kind::Live(shares) = self.pages[at] {
                        self.pages[at] = Kind::Live(shares + 1);
                        Claim::Shared
                    } else {
                        self.pages[at] = Kind::Live(1);
                        self.order.retain(|&page| page != at);
                        Claim::Revived
                    };
                    assert_eq!(real.claim(page), want);
                }
            }
            Act::Unshare(which, cached) => {
                if let Some((page, at)) = pick(&self.of(|k| matches!(k, Kind::Live(_))), which) {
                    let afterlife = if cached { Afterlife::Cached } else { Afterlife::Vacant };
                    let want = match self.pages[at] {
                        Kind::Live(1) => {
                            self.pages[at] = if cached { Kind::Cached } else { Kind::Vacant };
                            if cached {
                                self.order.push(at);
                            }
                            Unshare::Freed
                        }
                        Kind::Live(shares) => {
                            self.pages[at] = Kind::Live(shares - 1);
                            Unshare::Shared
                        }
                        other => panic!("{other:?}"),
                    };
                    assert_eq!(real.unshare(page, afterlife), want);
                }
            }
            Act::Vacate(which) => {
                if let Some((page, at)) = pick(&self.of(|k| k == Kind::Cached), which) {
                    real.vacate(page);
                    self.pages[at] = Kind::Vacant;
                    self.order.retain(|&page| page != at);
                }
            }
            Act::MakeImage(units) => {
                let vacant = self.of(|k| k == Kind::Vacant);
                if vacant.len() >= usize::from(units) {
                    let owner = CheckpointId::new(*next_owner);
                    let mut pages = Vec::new();
                    real.hold_lowest(u32::from(units), &mut pages);
                    let lowest = vacant.iter().take(usize::from(units));
                    assert!(pages.iter().map(|page| page.index()).eq(lowest.copied()));
                    real.make_units(&pages, owner);
                    for (piece, page) in (0u32..).zip(&pages) {
                        self.pages[page.index()] = Kind::Raw(*next_owner, piece);
                    }
                    *next_owner += 1;
                }
            }
            Act::ReleaseImage(which) => {
                let heads = self.of(|k| matches!(k, Kind::Raw(_, 0)));
                if let Some((page, _)) = pick(&heads, which) {
                    let (owner, _) = real.raw_owner(page).unwrap();
                    let mut units = self.of(|k| matches!(k, Kind::Raw(o, _) if o == owner.raw()));
                    units.sort_by_key(|&at| match self.pages[at] {
                        Kind::Raw(_, piece) => piece,
                        other => panic!("{other:?}"),
                    });
                    let ids: Vec<PageId> = units.iter().map(|&at| PageId::new(at as u32)).collect();
                    real.release_units(&ids, owner);
                    for at in units {
                        self.pages[at] = Kind::Vacant;
                    }
                }
            }
            Act::AsideAndBack(which) => {
                let some = self.order.clone();
                let chosen: Vec<PageId> = some
                    .iter()
                    .enumerate()
                    .filter(|(at, _)| which & 1 << (at % 8) != 0)
                    .map(|(_, &page)| PageId::new(page as u32))
                    .collect();
                real.set_aside_all(&chosen);
                assert_eq!(real.cached() as usize, some.len() - chosen.len());
                for &page in chosen.iter().rev() {
                    real.put_back(page);
                }
            }
            Act::GiveUpAside(which, count) => {
                // Some cached pages, and the lowest of these and the vacant ones.
                let chosen: Vec<usize> = self
                    .order
                    .iter()
                    .enumerate()
                    .filter(|(at, _)| which & 1 << (at % 8) != 0)
                    .map(|(_, &page)| page)
                    .collect();
                let mut pages: Vec<PageId> =
                    chosen.iter().map(|&at| PageId::new(at as u32)).collect();
                real.set_aside_all(&pages);
                self.order.retain(|page| !chosen.contains(page));
                for &at in &chosen {
                    self.pages[at] = Kind::Vacant;
                }
                let vacant = self.of(|k| k == Kind::Vacant);
                // Now and then none of them, exactly those, or all there are.
                let counts =
                    [0, chosen.len(), vacant.len(), usize::from(count) % (vacant.len() + 1)];
                let count = counts[usize::from(count) % counts.len()];
                real.hold_lowest(count as u32, &mut pages);
                assert!(pages.iter().map(|page| page.index()).eq(vacant[..count].iter().copied()));
                for &at in &vacant[..count] {
                    self.pages[at] = Kind::Held;
                }
            }
            Act::Extend(count) => {
                let want = usize::from(count).min(self.max - self.pages.len());
                let got = real.extend(Pages::new(u32::from(count)));
                assert_eq!(got.index(), want);
                self.pages.extend(std::iter::repeat_n(Kind::Vacant, want));
            }
            Act::RetireTop => self.retire_top(real),
        }
    }

    fn retire_top(&mut self, real: &mut PagePool) {
        let got = real.retire_top();
        let Some(top) = self.pages.len().checked_sub(1) else {
            assert_eq!(got, RetireTop::Empty);
            return;
        };
        let page = PageId::new(top as u32);
        let want = match self.pages[top] {
            Kind::Vacant => RetireTop::Retired(page),
            Kind::Cached => RetireTop::Evicted(page),
            Kind::Held | Kind::Raw(..) => RetireTop::Refused(page),
            live @ Kind::Live(_) => match self.of(|k| k == Kind::Vacant).first() {
                None => RetireTop::Refused(page),
                Some(&to) => {
                    self.pages[to] = live;
                    RetireTop::Moved { from: page, to: PageId::new(to as u32) }
                }
            },
        };
        assert_eq!(got, want);
        if !matches!(want, RetireTop::Refused(_)) {
            self.pages.pop();
            self.order.retain(|&page| page != top);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn the_pool_moves_in_lockstep_with_its_twin(
        pages in 0..24usize,
        spare in 0..6usize,
        acts in prop::collection::vec(act(), 1..200),
    ) {
        let max = pages + spare;
        let mut real = PagePool::new(Pages::new(pages as u32), Pages::new(max as u32));
        let mut twin = Naive { pages: vec![Kind::Vacant; pages], max, order: Vec::new() };
        let mut next_owner = 0;
        for act in &acts {
            twin.act(&mut real, act, &mut next_owner);
            twin.compare(&real);
        }
    }
}

#[test]
fn a_wrong_owner_frees_nothing() {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    let mut pool = PagePool::new(Pages::new(4), Pages::new(4));
    let units: Vec<PageId> = (0..2).map(|_| pool.hold_vacant().unwrap()).collect();
    pool.make_units(&units, CheckpointId::new(7));
    let swapped = [units[1], units[0]];
    let twice = [units[0], units[0]];
    for (ids, owner) in [(&units[..], 8), (&swapped[..], 7), (&twice[..], 7)] {
        let mut attempt = AssertUnwindSafe(&mut pool);
        let result = catch_unwind(move || attempt.release_units(ids, CheckpointId::new(owner)));
        assert!(result.is_err());
        assert_eq!(pool.raw(), 2, "checked before any is freed");
        pool.check();
    }
    pool.release_units(&units, CheckpointId::new(7));
    pool.check();
}
