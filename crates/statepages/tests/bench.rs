//! `statepages bench copy`, run as a user runs it. What is checked is what it says, never how fast.

mod command;

use std::fs;

use serde_json::Value;

use crate::command::{json, misused, statepages};

fn words(args: &str) -> Vec<&str> {
    let small = ["bench", "copy", "--model", "mini", "--rounds", "2", "--rotate", "4MiB"];
    small.into_iter().chain(args.split_whitespace()).collect()
}

fn report(args: &str) -> Value {
    json(&words(args))
}

#[test]
fn rows_hold_what_the_documentation_names() {
    let report = report("--image whole --images 1,3 --direction mixed --json");
    let slot = report["slot_bytes"].as_u64().unwrap();
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2);
    for (row, images) in rows.iter().zip([1, 3]) {
        assert_eq!(row["images"], images);
        assert_eq!(row["bytes"], images * slot);
        assert_eq!(row["verified"], true);
        for name in ["launch_us", "memcpy_us", "ratio", "tb_s", "enqueue_us"] {
            assert!(row[name].as_f64().unwrap() > 0.0, "{name}");
        }
        let (launch, memcpy) =
            (row["launch_us"].as_f64().unwrap(), row["memcpy_us"].as_f64().unwrap());
        assert!((row["ratio"].as_f64().unwrap() - launch / memcpy).abs() < 1e-9);
    }
}

#[test]
fn every_rule_and_direction_is_verified() {
    for image in ["whole", "carried", "live"] {
        for direction in ["store", "restore", "mixed"] {
            let args = format!("--image {image} --direction {direction} --images 2 --json");
            assert_eq!(report(&args)["rows"][0]["verified"], true, "{args}");
        }
    }
    // The narrowest image is the shortest copy.
    let bytes = |image| {
        let args = format!("--image {image} --images 1 --units in-order --json");
        report(&args)["rows"][0]["bytes"].as_u64().unwrap()
    };
    assert!(bytes("live") < bytes("carried") && bytes("carried") < bytes("whole"));
}

#[test]
fn a_picture_is_drawn() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let output = statepages(&words(&format!("--images 1,2 --picture {}", file.path().display())));
    assert!(output.status.success());
    let picture = fs::read_to_string(file.path()).unwrap();
    assert!(picture.starts_with("<svg") && picture.trim_end().ends_with("</svg>"));
    assert_eq!(picture.matches("<polyline").count(), 2, "both arms");
}

#[test]
fn mistakes_are_refused_by_name() {
    for (args, wanted) in [
        ("--device tpu:0", "expected cpu, cuda:N or hip:N, got tpu:0"),
        ("--images 0", "invalid value '0' for '--images"),
        ("--draft-tokens 4000000000", "do not fit together"),
        ("--shape 100,2,8", "got 100,2,8"),
    ] {
        misused(&words(args), &[wanted]);
    }
    misused(&["bench", "copy", "--rounds", "0"], &["invalid value '0' for '--rounds"]);
}
