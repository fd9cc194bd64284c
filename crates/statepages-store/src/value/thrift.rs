//! When to stop paying for images that nobody reads.
//!
//! ```text
//!   paying --two pools of bundles unread--> thrifty --one of them would have been read--> paying
//! ```
//!
//! Three accounts: images kept ahead of any need (anchors, prompt ends, decode); those that an
//! earlier prompt's path asks for (demand); and the grid, a hedge against paths that leave others where
//! no image is. A path that did so counts as a read of the hedge, and before the first one its credit is
//! small. Each counts the pages of the bundles it was kept for since
//! one of its images was last asked for. A thrifty account cuts no prefill and gives nothing up;
//! images that need no cut and find vacant pages are stored all the same.
//!
//! What was not kept is remembered by the directory like what was, so that an image that would have
//! been read is noticed at once.

use statepages_page::Pages;

/// What images are kept for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Account {
    /// An identical or continued prompt that may come.
    Ahead,
    /// A prefix that has come twice.
    Demand,
    /// A path that may leave another one anywhere: the grid.
    Hedge,
}

/// Whether an account pays for cuts and evictions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spending {
    /// It does.
    Paying,
    /// It does not, since the admission of this number.
    Thrifty {
        /// Admissions before, this one included.
        since: u64,
    },
}

/// How much may go unread before an account stops paying.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Credit {
    /// An eighth of a pool: what it costs to see whether traffic is of a kind.
    Sample,
    /// Two pools: what is kept has been given up by then unless it was read.
    TwoPools,
}

/// The two accounts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Thrift {
    accounts: [State; 3],
}

#[derive(Clone, Copy, Debug)]
struct State {
    unread: u64,
    credit: Credit,
    spending: Spending,
}

impl Thrift {
    pub(crate) const fn new() -> Self {
        let paying = State { unread: 0, credit: Credit::TwoPools, spending: Spending::Paying };
        Self { accounts: [paying, paying, State { credit: Credit::Sample, ..paying }] }
    }

    pub(crate) const fn spending(&self, account: Account) -> Spending {
        self.accounts[account as usize].spending
    }

    /// An image of the account was asked for.
    pub(crate) const fn read(&mut self, account: Account) {
        self.accounts[account as usize] =
            State { unread: 0, credit: Credit::TwoPools, spending: Spending::Paying };
    }

    /// Admission number `admission` wants an image of the account, for a bundle of so many pages.
    pub(crate) const fn want(
        &mut self,
        account: Account,
        bundle: u64,
        pool: Pages,
        admission: u64,
    ) {
        let state = &mut self.accounts[account as usize];
        state.unread = state.unread.saturating_add(bundle);
        let pool = pool.get() as u64;
        let credit = match state.credit {
            Credit::Sample => pool / 8,
            Credit::TwoPools => 2 * pool,
        };
        if let Spending::Paying = state.spending
            && state.unread >= credit
        {
            state.spending = Spending::Thrifty { since: admission };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_stops_after_two_pools_and_goes_on_with_the_first_read() {
        let mut thrift = Thrift::new();
        for admission in 1..=19 {
            thrift.want(Account::Ahead, 10, Pages::new(100), admission);
            assert_eq!(thrift.spending(Account::Ahead), Spending::Paying);
        }
        thrift.want(Account::Ahead, 10, Pages::new(100), 20);
        thrift.want(Account::Ahead, 10, Pages::new(100), 21);
        assert_eq!(thrift.spending(Account::Ahead), Spending::Thrifty { since: 20 });
        assert_eq!(thrift.spending(Account::Demand), Spending::Paying);
        thrift.read(Account::Demand);
        assert_eq!(thrift.spending(Account::Ahead), Spending::Thrifty { since: 20 });
        thrift.read(Account::Ahead);
        thrift.want(Account::Ahead, 199, Pages::new(100), 22);
        assert_eq!(thrift.spending(Account::Ahead), Spending::Paying);
    }
}
