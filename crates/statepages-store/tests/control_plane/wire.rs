//! The wire form of a runtime: strict, versioned, and every refusal names both sides.

#[path = "../../../../fuzz/checks/wire.rs"]
mod check;
#[path = "../../../../fuzz/checks/interval.rs"]
mod interval;

use std::collections::BTreeMap;

use proptest::prelude::*;
use statepages_page::{Bytes, LayoutId};
use statepages_store::{
    CheckpointSpec, StateRuntime, StateTransfer, SuccessorRoom, WireError, WireValue,
};

fn layout(id: &str) -> LayoutId {
    LayoutId::new(id).unwrap()
}

fn spec(id: &str) -> CheckpointSpec {
    CheckpointSpec::new(
        Bytes::new(1_521_920),
        Bytes::new(25_395_200),
        Bytes::new(25_395_200),
        layout(id),
    )
    .unwrap()
}

fn copy() -> StateRuntime {
    StateRuntime::new(StateTransfer::Copy { layout: layout("v1") }, Some(spec("v1"))).unwrap()
}

fn all() -> [StateRuntime; 3] {
    [
        copy(),
        StateRuntime::new(StateTransfer::Fork { tokens: 1 }, None).unwrap(),
        StateRuntime::new(StateTransfer::None, None).unwrap(),
    ]
}

fn at<'a>(wire: &'a mut WireValue, path: &[&str]) -> &'a mut BTreeMap<String, WireValue> {
    let WireValue::Map(map) = wire else { panic!("a mapping") };
    match path {
        [] => map,
        [first, rest @ ..] => at(map.get_mut(*first).unwrap(), rest),
    }
}

#[test]
fn every_class_survives_the_wire() {
    for runtime in all() {
        assert_eq!(StateRuntime::from_wire(&runtime.to_wire()).unwrap(), runtime);
    }
    assert_eq!(copy().spec().unwrap().units_per_checkpoint().get(), 17);
    let mut wire = copy().to_wire();
    let spec = at(&mut wire, &["checkpoint_spec"]);
    assert!(!spec.contains_key("units_per_checkpoint"), "derived, never sent");
}

#[test]
fn unknown_and_missing_fields_are_refused_at_every_level() {
    for path in [&[][..], &["transfer"], &["checkpoint_spec"]] {
        let mut wire = copy().to_wire();
        at(&mut wire, path).insert("surprise".into(), WireValue::Null);
        let error = StateRuntime::from_wire(&wire).unwrap_err();
        assert!(error.to_string().contains("surprise"), "{error}");
        let names: Vec<String> = at(&mut copy().to_wire(), path).keys().cloned().collect();
        for name in names {
            let mut wire = copy().to_wire();
            at(&mut wire, path).remove(&name);
            let error = StateRuntime::from_wire(&wire).unwrap_err();
            assert!(
                matches!(&error, WireError::Fields { expected, .. } if expected.contains(&name))
            );
        }
    }
}

#[test]
fn wrong_types_are_refused_in_every_field() {
    let paths: &[(&[&str], &str)] = &[
        (&[], "version"),
        (&[], "transfer"),
        (&["transfer"], "kind"),
        (&["transfer"], "fork_tokens"),
        (&["transfer"], "paged_layout_id"),
        (&["checkpoint_spec"], "page_unit_bytes"),
        (&["checkpoint_spec"], "slot_bytes"),
        (&["checkpoint_spec"], "image_bytes"),
        (&["checkpoint_spec"], "layout_id"),
    ];
    for (path, field) in paths {
        for value in [WireValue::Bool(true), WireValue::Null] {
            let mut wire = copy().to_wire();
            at(&mut wire, path).insert((*field).to_owned(), value);
            let error = StateRuntime::from_wire(&wire).unwrap_err();
            assert!(
                matches!(&error, WireError::Type { field: f, .. } if f.ends_with(field)),
                "{error}"
            );
        }
    }
    assert!(StateRuntime::from_wire(&WireValue::Int(1)).is_err());
}

#[test]
fn impossible_values_are_refused() {
    let set = |path: &[&str], field: &str, value: WireValue| {
        let mut wire = copy().to_wire();
        at(&mut wire, path).insert(field.to_owned(), value);
        StateRuntime::from_wire(&wire).unwrap_err().to_string()
    };
    let text = set(&[], "version", WireValue::Int(2));
    assert_eq!(text, "state_runtime.version: expected 1, got 2");
    set(&["transfer"], "kind", WireValue::Str("teleport".into()));
    set(&["transfer"], "fork_tokens", WireValue::Int(1));
    set(&["transfer"], "paged_layout_id", WireValue::Str(String::new()));
    set(&["checkpoint_spec"], "slot_bytes", WireValue::Int(0));
    set(&["checkpoint_spec"], "slot_bytes", WireValue::Int(-5));
    let text = set(&["checkpoint_spec"], "image_bytes", WireValue::Int(25_395_201));
    assert!(text.contains("25395200") && text.contains("25395201"), "{text}");
    let text = set(&["checkpoint_spec"], "layout_id", WireValue::Str("v2".into()));
    assert!(text.contains("v1") && text.contains("v2"), "{text}");
    let mut wire = all()[1].to_wire();
    at(&mut wire, &["transfer"]).insert("fork_tokens".into(), WireValue::Int(0));
    assert!(StateRuntime::from_wire(&wire).is_err());
    at(&mut wire, &["transfer"]).insert("fork_tokens".into(), WireValue::Int(1 << 33));
    assert!(StateRuntime::from_wire(&wire).is_err());
}

#[test]
fn transfer_and_spec_have_to_fit_each_other() {
    let copy = StateTransfer::Copy { layout: layout("v1") };
    let bad = [
        (copy.clone(), None),
        (copy, Some(spec("v2"))),
        (StateTransfer::Fork { tokens: 1 }, Some(spec("v1"))),
        (StateTransfer::Fork { tokens: 0 }, None),
        (StateTransfer::None, Some(spec("v1"))),
    ];
    for (transfer, spec) in bad {
        assert!(StateRuntime::new(transfer, spec).is_err());
    }
    let rooms = all().map(|runtime| runtime.transfer().successor_room());
    assert_eq!(rooms, [SuccessorRoom::Tokens(0), SuccessorRoom::Tokens(1), SuccessorRoom::Never]);
}

#[test]
fn drifted_geometry_is_refused_naming_both_sides() {
    let ours = copy();
    assert_eq!(ours.agree(&copy()), Ok(()));
    let drifted = CheckpointSpec::new(
        Bytes::new(1_521_936),
        Bytes::new(25_395_200),
        Bytes::new(25_395_200),
        layout("v1"),
    )
    .unwrap();
    let theirs =
        StateRuntime::new(StateTransfer::Copy { layout: layout("v1") }, Some(drifted)).unwrap();
    let text = ours.agree(&theirs).unwrap_err().to_string();
    assert!(text.contains("page_unit_bytes"), "{text}");
    assert!(text.contains("1521920") && text.contains("1521936"), "{text}");
    assert!(ours.agree(&all()[1]).is_err());
}

fn any_wire() -> impl Strategy<Value = WireValue> {
    let leaf = prop_oneof![
        Just(WireValue::Null),
        any::<bool>().prop_map(WireValue::Bool),
        any::<i64>().prop_map(WireValue::Int),
        (-2..40i64).prop_map(WireValue::Int),
        prop_oneof!["copy", "fork", "none", "v1", ""].prop_map(WireValue::Str),
    ];
    leaf.prop_recursive(3, 24, 5, |inner| {
        let name = prop::sample::select(&check::FIELDS[..]);
        prop::collection::btree_map(name.prop_map(str::to_owned), inner, 0..6)
            .prop_map(WireValue::Map)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    /// The stable twin of the fuzz target `wire`: nothing panics, and what is read is written the
    /// same; whole payloads get one value or one field exchanged, so that most come far.
    #[test]
    fn fuzz_any_wire_value_is_refused_or_comes_back_the_same(
        which in 0..3usize,
        level in 0..3usize,
        field in 0..4usize,
        value in any_wire(),
        alone in 0..8u8,
    ) {
        let mut wire = all()[which].to_wire();
        if alone == 0 {
            wire = value;
        } else {
            let path = [&[][..], &["transfer"], &["checkpoint_spec"]][level];
            let whole = path.is_empty() || matches!(&wire, WireValue::Map(map)
                if matches!(map.get(path[0]), Some(WireValue::Map(_))));
            if whole {
                let map = at(&mut wire, path);
                let name = map.keys().nth(field % map.len()).unwrap().clone();
                map.insert(name, value);
            }
        }
        check::check_value(&wire);
    }

    /// The same, of what bytes make, as the fuzz target has it.
    #[test]
    fn fuzz_any_wire_bytes_are_refused_or_come_back_the_same(
        bytes in prop::collection::vec(any::<u8>(), 0..64),
    ) {
        check::check(&bytes);
    }

    /// The stable twin of the fuzz target `interval`.
    #[test]
    fn fuzz_any_interval_is_refused_or_no_finer_than_a_block(
        tokens in prop_oneof![any::<i64>(), -3..70_000i64],
        block in prop_oneof![any::<u32>(), 0..5_000u32, 0..300u32],
    ) {
        interval::check(tokens, block);
    }
}
