//! A router's view of the prefix index, kept from events alone.

use std::collections::BTreeMap;

use statepages_page::{ContentKey, DomainTag};
use statepages_store::{ControlPlane, EventDrain, KvEvent};

type Block = (Option<ContentKey>, DomainTag, Vec<u32>);

/// Blocks that are found, as far as events say.
#[derive(Debug, Default)]
pub(crate) struct Mirror {
    blocks: BTreeMap<ContentKey, Block>,
    /// Whether events were lost, so that the view has to be rebuilt.
    behind: bool,
}

impl Mirror {
    /// Takes the events since the last call.
    ///
    /// # Panics
    /// Where a block becomes findable that is, or is lost that is not.
    pub(crate) fn follow(&mut self, mut events: EventDrain<'_>) {
        while let Some(event) = events.next_event() {
            match event {
                KvEvent::Stored { key, parent, domain, tokens } => {
                    let known = self.blocks.insert(key, (parent, domain, tokens.to_vec()));
                    assert!(known.is_none(), "events: {key:?} becomes findable twice");
                }
                KvEvent::Removed { key } => {
                    let known = self.blocks.remove(&key);
                    assert!(known.is_some(), "events: {key:?} is lost and was not findable");
                }
                KvEvent::Cleared => self.blocks.clear(),
            }
        }
        self.behind |= events.lost() > 0;
    }

    /// Compares the view with the index, or rebuilds it where events were lost.
    ///
    /// # Panics
    /// Where they differ.
    pub(crate) fn compare(&mut self, control: &ControlPlane) {
        let indexed = control.indexed();
        if std::mem::take(&mut self.behind) {
            let block = |(key, parent, domain, tokens): (_, _, _, &[u32])| {
                (key, (parent, domain, tokens.to_vec()))
            };
            self.blocks = indexed.map(block).collect();
            return;
        }
        let mut found = 0;
        for (key, parent, domain, tokens) in indexed {
            let told = self.blocks.get(&key);
            let same =
                told.is_some_and(|told| (told.0, told.1, &told.2[..]) == (parent, domain, tokens));
            assert!(same, "events: {key:?} is found and was told as {told:?}");
            found += 1;
        }
        assert_eq!(found, self.blocks.len(), "events: blocks that are not found any more");
    }
}
