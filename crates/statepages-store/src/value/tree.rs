//! Which blocks some image needs, and which are loose.
//!
//! ```text
//!   (absent) --found--> uncovered <--cover / uncover--> covered
//!      ^                    |                              |
//!      +------- lost -------+-------------- lost ----------+         moved: another page, same block
//! ```
//!
//! KV without state behind it resumes nobody, and so does state without the KV before it. A block is
//! *covered* while a READY image lies on it or on a block after it; a cached page whose block is not
//! is *loose*, and costs nothing to give up.
//!
//! Invariants:
//! - `cover` counts the block's own image and its covered children, so a walk that changes it goes on
//!   to the parent exactly where the block became covered or ceased to be: one walk costs what the
//!   image alone needs;
//! - a parent is named with its generation: a child of a block that was lost has no parent, even if
//!   the node serves another block since;
//! - loose pages are ordered by when they became loose, of one chain the last block first.
//!
//! Called by the policy alone, from the notices of the control plane.

use statepages_page::{PageId, Pages};

use crate::order::Order;
use crate::value::directory::EntryIndex;

/// Index of a block in the tree, valid until it is lost.
pub(crate) type NodeIndex = u32;

/// The findable blocks.
#[derive(Debug)]
pub(crate) struct Tree {
    nodes: Vec<Node>,
    absent: Vec<NodeIndex>,
    pages: Vec<PageState>,
    loose: Order,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    page: PageId,
    parent: Option<Parent>,
    /// Blocks from the first of the chain to this one.
    depth: u32,
    generation: u32,
    cover: u32,
    /// All covered children, by exclusive or: where there is one, it.
    heirs: NodeIndex,
    /// The image on the block, as the directory's index of it.
    image: Option<EntryIndex>,
}

#[derive(Clone, Copy, Debug)]
struct Parent {
    node: NodeIndex,
    generation: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct PageState {
    node: Option<NodeIndex>,
    hold: Hold,
}

/// Whether a page can be given up, and for how little.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Hold {
    /// It is not cached.
    #[default]
    Taken,
    /// Cached, and some image needs it.
    Covered,
    /// Cached, and in the order of loose pages.
    Loose,
}

/// What one image is worth holding for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bundle {
    /// Blocks a resumer computes again without it: from the image before it on its chain.
    pub(crate) saves: Pages,
    /// Blocks that no other image needs.
    pub(crate) alone: Pages,
}

impl Tree {
    pub(crate) fn new(pages_max: Pages) -> Self {
        let blank = Node {
            page: PageId::new(0),
            parent: None,
            depth: 0,
            generation: 0,
            cover: 0,
            heirs: 0,
            image: None,
        };
        Self {
            nodes: vec![blank; pages_max.index()],
            absent: (0..pages_max.get()).rev().collect(),
            pages: vec![PageState::default(); pages_max.index()],
            loose: Order::new(pages_max.get()),
        }
    }

    /// Bytes held, used or not.
    pub(crate) fn bytes(&self) -> u64 {
        let nodes = size_of_val(&*self.nodes) + self.nodes.len() * size_of::<NodeIndex>();
        (nodes + size_of_val(&*self.pages)) as u64 + self.loose.bytes()
    }

    /// A page became the one that holds a block.
    pub(crate) fn found(&mut self, page: PageId, parent: Option<PageId>, depth: Pages) {
        let parent = parent.and_then(|page| self.pages[page.index()].node).map(|node| {
            let generation = self.nodes[node as usize].generation;
            Parent { node, generation }
        });
        let index = self.absent.pop().expect("no more blocks are found than there are pages");
        let node = &mut self.nodes[index as usize];
        let generation = node.generation;
        *node =
            Node { page, parent, depth: depth.get(), generation, cover: 0, heirs: 0, image: None };
        assert_eq!(self.pages[page.index()].node, None, "{page} holds one block");
        self.pages[page.index()].node = Some(index);
    }

    /// A block is found in another page, which is not cached.
    pub(crate) fn moved(&mut self, from: PageId, to: PageId) {
        self.uncached(from);
        let node = self.pages[from.index()].node.take().expect("a block that moves was found");
        self.nodes[node as usize].page = to;
        self.pages[to.index()].node = Some(node);
    }

    /// A block is found no longer. Its image has been uncovered before.
    pub(crate) fn lost(&mut self, page: PageId) {
        let index = self.pages[page.index()].node.take().expect("a block that is lost was found");
        assert_eq!(self.nodes[index as usize].image, None, "the image goes first");
        if self.nodes[index as usize].cover > 0 {
            self.forsake(index);
        }
        let node = &mut self.nodes[index as usize];
        (node.cover, node.heirs) = (0, 0);
        node.generation = node.generation.wrapping_add(1);
        self.absent.push(index);
    }

    /// Nothing is found any more. Images have been uncovered and cached pages given up before.
    pub(crate) fn clear(&mut self) {
        for page in 0..self.pages.len() {
            if let Some(index) = self.pages[page].node.take() {
                let node = &mut self.nodes[index as usize];
                (node.cover, node.heirs) = (0, 0);
                node.generation = node.generation.wrapping_add(1);
                self.absent.push(index);
            }
        }
    }

    /// A found page is free.
    pub(crate) fn cached(&mut self, page: PageId) {
        let state = &mut self.pages[page.index()];
        assert_eq!(state.hold, Hold::Taken, "{page} becomes cached once");
        let node = state.node.expect("a cached page is found");
        state.hold = Hold::Covered;
        if self.nodes[node as usize].cover == 0 {
            self.loosen(page);
        }
    }

    /// A page is free no longer, or holds its block no longer.
    pub(crate) fn uncached(&mut self, page: PageId) {
        let hold = std::mem::take(&mut self.pages[page.index()].hold);
        if hold == Hold::Loose {
            self.loose.remove(page.raw());
        }
    }

    /// Loose pages, the one that became loose first ahead.
    pub(crate) fn loose_pages(&self) -> impl Iterator<Item = PageId> {
        self.loose.iter().map(PageId::new)
    }

    pub(crate) const fn loose(&self) -> u32 {
        self.loose.len()
    }

    /// The block that a page holds.
    pub(crate) fn node(&self, page: PageId) -> Option<NodeIndex> {
        self.pages[page.index()].node
    }

    /// An image lies on a block. Answers the other image whose bundle is smaller by it, if there is
    /// one: of what that one held alone, the two hold a part together now.
    pub(crate) fn cover(&mut self, index: NodeIndex, image: EntryIndex) -> Option<EntryIndex> {
        let node = &mut self.nodes[index as usize];
        assert_eq!(node.image, None, "one image a block");
        node.image = Some(image);
        node.cover += 1;
        if node.cover == 2 {
            let other = node.heirs;
            return self.image_below(other);
        }
        let mut covered = index;
        while self.nodes[covered as usize].cover == 1 {
            let page = self.nodes[covered as usize].page;
            if self.pages[page.index()].hold == Hold::Loose {
                self.loose.remove(page.raw());
                self.pages[page.index()].hold = Hold::Covered;
            }
            let parent = self.parent(covered)?;
            let node = &mut self.nodes[parent as usize];
            node.cover += 1;
            node.heirs ^= covered;
            if node.cover == 2 && node.image.is_none() {
                let other = node.heirs ^ covered;
                return self.image_below(other);
            }
            covered = parent;
        }
        self.nodes[covered as usize].image.filter(|&other| other != image)
    }

    /// The image on a block is gone. Answers the image that now holds alone what the two held
    /// together, if there is one.
    pub(crate) fn uncover(&mut self, index: NodeIndex) -> Option<EntryIndex> {
        let node = &mut self.nodes[index as usize];
        assert!(node.image.is_some(), "an image lay there");
        node.image = None;
        node.cover -= 1;
        self.loosen_from(index)
    }

    /// What an image on a block saves, and what is held for it alone: whether it lies there already
    /// or is only thought of.
    pub(crate) fn bundle(&self, index: NodeIndex) -> Bundle {
        let own = &self.nodes[index as usize];
        let mut alone = 0;
        // Along the chain, a block is held for this image alone as long as nothing else covers it.
        let by_it = u32::from(own.image.is_some());
        let mut exclusive = own.cover == by_it;
        let mut at = index;
        let before = loop {
            alone += u32::from(exclusive);
            let Some(parent) = self.parent(at) else { break 0 };
            let node = &self.nodes[parent as usize];
            if node.image.is_some() {
                break node.depth;
            }
            exclusive &= node.cover == by_it;
            at = parent;
        };
        Bundle { saves: Pages::new(own.depth - before), alone: Pages::new(alone) }
    }

    /// The nearest image before a block.
    pub(crate) fn image_before(&self, index: NodeIndex) -> Option<EntryIndex> {
        std::iter::successors(self.parent(index), |&node| self.parent(node))
            .find_map(|node| self.nodes[node as usize].image)
    }

    /// A covered block leaves its parent.
    fn forsake(&mut self, index: NodeIndex) {
        if let Some(parent) = self.parent(index) {
            let node = &mut self.nodes[parent as usize];
            node.cover -= 1;
            node.heirs ^= index;
            self.loosen_from(parent);
        }
    }

    /// Goes on from a block that may have ceased to be covered.
    fn loosen_from(&mut self, from: NodeIndex) -> Option<EntryIndex> {
        let mut index = from;
        while self.nodes[index as usize].cover == 0 {
            let page = self.nodes[index as usize].page;
            if self.pages[page.index()].hold == Hold::Covered {
                self.loosen(page);
            }
            let parent = self.parent(index)?;
            let node = &mut self.nodes[parent as usize];
            node.cover -= 1;
            node.heirs ^= index;
            index = parent;
        }
        let node = &self.nodes[index as usize];
        if node.cover == 1 { self.image_below(index) } else { node.image }
    }

    /// The image on the only covered path from a block on.
    fn image_below(&self, from: NodeIndex) -> Option<EntryIndex> {
        let mut index = from;
        loop {
            let node = &self.nodes[index as usize];
            match (node.image, node.cover) {
                (Some(image), _) => return Some(image),
                (None, 1) => index = node.heirs,
                (None, _) => return None,
            }
        }
    }

    fn loosen(&mut self, page: PageId) {
        self.pages[page.index()].hold = Hold::Loose;
        self.loose.push_back(page.raw());
    }

    fn parent(&self, index: NodeIndex) -> Option<NodeIndex> {
        let Parent { node, generation } = self.nodes[index as usize].parent?;
        (self.nodes[node as usize].generation == generation).then_some(node)
    }

    /// Audits counts and orders in O(n).
    pub(crate) fn check(&self) {
        let mut covers = vec![0; self.nodes.len()];
        let mut heirs = vec![0; self.nodes.len()];
        let live =
            |index: usize| self.pages[self.nodes[index].page.index()].node == Some(index as u32);
        for index in 0..self.nodes.len() {
            let node = &self.nodes[index];
            covers[index] += u32::from(node.image.is_some());
            if live(index)
                && node.cover > 0
                && let Some(parent) = self.parent(index as u32)
            {
                covers[parent as usize] += 1;
                heirs[parent as usize] ^= index as u32;
            }
        }
        let mut loose = 0;
        for (index, node) in self.nodes.iter().enumerate().filter(|&(index, _)| live(index)) {
            assert_eq!(node.cover, covers[index], "cover of {}", node.page);
            assert_eq!(node.heirs, heirs[index], "covered children of {}", node.page);
            let hold = self.pages[node.page.index()].hold;
            assert!(hold != Hold::Loose || node.cover == 0, "{} is loose", node.page);
            assert!(hold != Hold::Covered || node.cover > 0, "{} is covered", node.page);
            loose += u32::from(hold == Hold::Loose);
        }
        assert_eq!(loose, self.loose.len(), "loose pages are in their order");
    }
}
