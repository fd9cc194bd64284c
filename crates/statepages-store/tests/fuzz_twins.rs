//! The stable twins of the fuzz targets: the same checks, on bytes that proptest draws.

#[path = "../../../fuzz/checks/interval.rs"]
mod interval;
#[path = "../../../fuzz/checks/wire.rs"]
mod wire;

use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn any_wire_bytes(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        wire::check(&bytes);
    }

    #[test]
    fn any_interval(
        tokens in prop_oneof![any::<i64>(), -2..5000i64],
        block in prop_oneof![any::<u32>(), 0..300u32],
    ) {
        interval::check(tokens, block);
    }
}
