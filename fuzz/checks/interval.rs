//! Any interval flag is refused or becomes a grid that is no finer than a block.

use statepages_page::BlockSize;
use statepages_store::CheckpointInterval;

pub(crate) fn check(tokens: i64, block: u32) {
    let Some(block) = BlockSize::new(block) else { return };
    if let Ok((CheckpointInterval::Grid(blocks), snapped)) =
        CheckpointInterval::parse(tokens, block)
    {
        let used = u64::from(blocks.get()) * u64::from(block.get());
        assert!(used > 0 && used <= tokens as u64);
        assert_eq!(snapped.is_some(), used != tokens as u64);
    }
}
